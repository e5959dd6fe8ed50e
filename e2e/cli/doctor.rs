//! `msb doctor`: what this host can do, tier by tier, and how to mend what it cannot.

use msb_e2e::terminal::Terminal;
use msb_e2e::{CmdOutput, Msb, gives};
use std::fs;

#[test]
fn both_tiers_are_reported_with_a_fix_for_each_problem() {
    for msb in Msb::each() {
        let findings = msb.json(["doctor", "--json"]);
        let findings = findings.as_array().unwrap();
        for tier in ["process", "vm"] {
            assert!(findings.iter().any(|one| one["tier"] == tier), "{tier}: {findings:?}");
        }
        for finding in findings {
            assert_eq!(finding["grade"] == "good", finding["fix"].is_null(), "{finding}");
        }
        let text = msb.words("doctor").ok().stdout;
        for finding in findings {
            assert!(text.contains(finding["what"].as_str().unwrap()), "{finding}: {text}");
            assert!(text.contains(finding["found"].as_str().unwrap()), "{finding}: {text}");
        }
    }
}

#[test]
fn the_findings_of_doctor_are_true() {
    for msb in Msb::each() {
        let findings = msb.json(["doctor", "--json"]);
        let found = |what: &str| {
            let one = findings.as_array().unwrap().iter().find(|one| one["what"] == what);
            one.unwrap_or_else(|| panic!("no `{what}`: {findings}"))["found"].to_string()
        };
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        assert!(found("kernel").contains(release.trim()));
        let flags = fs::read_to_string("/proc/cpuinfo").unwrap();
        let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
        let hardware = has("svm") || has("vmx");
        assert_eq!(found("processor").contains("no hardware virtualisation"), !hardware);
    }
}

#[test]
fn without_user_namespaces_doctor_and_run_say_what_is_missing() {
    for msb in Msb::each() {
        let within = |script: &str| {
            let mut shell = msb.user_command("unshare");
            shell.args(["--user", "--map-root-user", "sh", "-c"]);
            shell.arg(format!("echo 0 > /proc/sys/user/max_user_namespaces; {script}"));
            CmdOutput::from(shell.arg(msb.binary()).output().unwrap())
        };
        let gave = within("\"$0\" doctor");
        let lines: Vec<&str> = gave.stdout.lines().collect();
        let at = lines.iter().position(|line| line.contains("user namespaces")).unwrap();
        assert!(lines[at].trim_start().starts_with("no "), "{gave:?}");
        assert!(lines[at + 1].trim_start().starts_with("fix:"), "{gave:?}");
        assert!(lines[0].starts_with("process: does not work"), "{gave:?}");

        let gave = within("\"$0\" run -- true");
        assert_eq!(gave.code, 125);
        assert!(gave.stderr.contains("user namespaces"), "{gave:?}");
        assert!(gave.stderr.contains("hint: ") && gave.stderr.contains("doctor"), "{gave:?}");
    }
}

#[test]
fn lines_at_a_terminal_break_between_words() {
    let msb = Msb::new();
    let piped = msb.words("doctor").stdout;
    let mut command = msb.command(["doctor"]);
    let (_, shown) = Terminal::start(command.env("NO_COLOR", "1"), 24, 60).ends();
    // Amounts of free space may differ.
    let words = |text: &str| -> Vec<String> {
        let words = text.split_whitespace().filter(|word| !word.contains(char::is_numeric));
        words.map(str::to_owned).collect()
    };
    assert_eq!(words(&shown), words(&piped));
    // A path may be longer than a line.
    let too_long = |line: &&str| {
        let last = line.split_whitespace().last().unwrap_or_default();
        line.trim_end().chars().count() > 60 && last.chars().count() < 30
    };
    assert_eq!(shown.lines().find(too_long), None, "{shown}");
}

#[test]
fn colours_follow_the_usual_rules() {
    let msb = Msb::new();
    let coloured = |variables: &[(&str, &str)]| {
        let mut command = msb.command(["doctor"]);
        command.envs(variables.iter().copied());
        gives(&mut command).stdout.contains('\u{1b}')
    };
    assert!(!coloured(&[]));
    assert!(coloured(&[("FORCE_COLOR", "1")]));
    assert!(coloured(&[("CLICOLOR_FORCE", "1")]));
    assert!(!coloured(&[("FORCE_COLOR", "1"), ("NO_COLOR", "1")]));
    // A terminal has colours, a dumb one has none.
    let shown = |term: &str| {
        let mut command = msb.command(["doctor"]);
        command.env("TERM", term);
        Terminal::start(&command, 24, 80).ends().1
    };
    assert!(shown("xterm").contains("\u{1b}[32mok"));
    assert!(!shown("dumb").contains('\u{1b}'));
}
