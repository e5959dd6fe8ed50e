//! Makes one shell script of a page: what a reader runs from top to bottom.
//!
//! Every command must succeed by itself: `set -e` alone does not see the left side of `&&` fail.

use crate::markdown::{Code, Kind, Part};
use std::process::{Command, Stdio};

/// Functions for the script and for the set-up that pages hold.
const PRELUDE: &str = include_str!("setup.sh");

/// The script of a page; none if nothing of the page is run.
pub(crate) fn script(name: &str, parts: &[Part]) -> Option<String> {
    let is_run =
        |part: &Part| matches!(part, Part::Block(Kind::Run | Kind::Follow | Kind::Terminal, _));
    if !parts.iter().any(is_run) {
        return None;
    }
    let mut script = PRELUDE.to_owned();
    for part in parts {
        let (function, code) = match part {
            Part::Setup(code) | Part::Block(Kind::Run, code) => (None, code),
            Part::Block(Kind::Follow, code) => (Some("follow"), code),
            Part::Block(Kind::Terminal, code) => (Some("terminal"), code),
            Part::Block(..) => continue,
        };
        for Code { line, text } in commands(code) {
            script.push_str(&format!("announce {}\n", quoted(&format!("{name}:{line}: {text}"))));
            match function {
                None => script.push_str(&text),
                Some(function) => script.push_str(&format!("{function} {}", quoted(&text))),
            }
            script.push_str("\ncheck $?\n");
        }
    }
    Some(script)
}

/// The commands of a block, each with its line; one may take several lines.
pub(crate) fn commands(code: &Code) -> Vec<Code> {
    let mut commands = Vec::new();
    let mut command = String::new();
    for (line, number) in code.text.lines().zip(code.line..) {
        if command.is_empty() && (line.trim().is_empty() || line.trim_start().starts_with('#')) {
            continue;
        }
        if !command.is_empty() {
            command.push('\n');
        }
        command.push_str(line);
        if is_whole(&command) {
            let first = number - command.matches('\n').count();
            commands.push(Code { line: first, text: std::mem::take(&mut command) });
        }
    }
    if !command.is_empty() {
        // The shell will say what is wrong with it.
        let last = code.line + code.text.lines().count();
        commands.push(Code { line: last - command.lines().count(), text: command });
    }
    commands
}

/// Whether the shell would run this at the end of the line, and not wait for more.
fn is_whole(command: &str) -> bool {
    if command.ends_with('\\') {
        return false;
    }
    let output = Command::new("bash").args(["-n", "-c", command]).stdin(Stdio::null()).output();
    // A here-document without its end is only worth a warning to bash.
    output.is_ok_and(|output| output.status.success() && output.stderr.is_empty())
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<(usize, String)> {
        let code = Code { line: 10, text: text.to_owned() };
        commands(&code).into_iter().map(|Code { line, text }| (line, text)).collect()
    }

    #[test]
    fn each_line_is_a_command_but_for_those_that_go_on() {
        assert_eq!(
            of(
                "# a comment\none\n\ntwo \\\n  --flag\nfor x in 1 2; do\n  three\ndone\ncat <<E\nx\nE\n"
            ),
            [
                (11, "one".to_owned()),
                (13, "two \\\n  --flag".to_owned()),
                (15, "for x in 1 2; do\n  three\ndone".to_owned()),
                (18, "cat <<E\nx\nE".to_owned()),
            ]
        );
    }

    #[test]
    fn what_never_ends_is_left_to_the_shell() {
        assert_eq!(of("one\nif two\nthree\n"), [(10, "one".into()), (11, "if two\nthree".into())]);
    }

    #[test]
    fn a_page_without_commands_has_no_script() {
        let text = Part::Block(Kind::Text, Code { line: 1, text: "msb ls\n".to_owned() });
        assert_eq!(script("page.md", &[text]), None);
    }

    #[test]
    fn a_script_holds_set_up_and_commands_in_order() {
        let part = |kind, text: &str| Part::Block(kind, Code { line: 1, text: text.to_owned() });
        let setup = Part::Setup(Code { line: 1, text: "touch a".to_owned() });
        let parts = [setup, part(Kind::Run, "echo 'b'\n"), part(Kind::Follow, "echo 'c'\n")];
        let script = script("page.md", &parts).expect("a script");
        let body = script.strip_prefix(PRELUDE).expect("the functions");
        assert_eq!(
            body,
            r"announce 'page.md:1: touch a'
touch a
check $?
announce 'page.md:1: echo '\''b'\'''
echo 'b'
check $?
announce 'page.md:1: echo '\''c'\'''
follow 'echo '\''c'\'''
check $?
"
        );
    }
}
