//! `msb completion`: a script that the shell itself accepts.

use msb_e2e::{CmdOutput, Msb, skip};
use std::fs;
use std::process::Command;

#[test]
fn bash_completes_verbs_and_flags() {
    let msb = Msb::new();
    let script = msb.file("msb.bash", msb.words("completion bash").ok().stdout);
    let complete = |words: &str, at: usize| {
        let shell = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD={at}; \
             function=$(complete -p msb | grep -o -- '-F [^ ]*' | cut -c 4-); \
             $function msb \"${{COMP_WORDS[$COMP_CWORD]}}\" \"${{COMP_WORDS[$COMP_CWORD-1]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            script.display()
        );
        let gave = CmdOutput::from(Command::new("bash").args(["-c", &shell]).output().unwrap());
        gave.line().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(complete("msb insp", 1), ["inspect"]);
    assert_eq!(complete("msb run --dry", 2), ["--dry-run"]);
    assert_eq!(complete("msb logs --ta", 2), ["--tail"]);
}

#[test]
fn zsh_and_fish_get_a_script_with_every_verb() {
    let msb = Msb::new();
    let help = msb.words("--help").ok().stdout;
    let verbs: Vec<&str> = help
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("  msb"))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(verbs.len() > 15, "{verbs:?}");
    for (shell, sign) in [("zsh", "#compdef msb"), ("fish", "complete -c msb")] {
        let script = msb.run(["completion", shell]).ok().stdout;
        assert!(script.contains(sign), "{shell}");
        for verb in &verbs {
            assert!(script.contains(verb), "{shell} {verb}");
        }
        if fs::exists(format!("/usr/bin/{shell}")).unwrap() {
            let file = msb.file(&format!("msb.{shell}"), &script);
            let checked = Command::new(shell).arg("-n").arg(file).status().unwrap();
            assert!(checked.success(), "{shell}");
        } else {
            skip(&format!("{shell} is not installed, so its script is not read by it"));
        }
    }
}

#[test]
fn another_shell_is_refused_by_name() {
    let gave = Msb::new().words("completion tcsh");
    assert_eq!(gave.code, 125);
    assert!(gave.stderr.contains("tcsh") && gave.stderr.contains("bash"), "{gave:?}");
}
