//! `MSB_LOG`: what msb does, on stderr, in the sandbox's directory or in a file.

use msb_e2e::{CmdOutput, Msb, ends, eventually};
use std::path::Path;
use std::process::Stdio;

/// Runs `msb` with variables for its log.
#[track_caller]
fn logged(msb: &Msb, variables: &[(&str, &str)], line: &str) -> CmdOutput {
    let mut command = msb.command(line.split_whitespace());
    command.envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    ends(command.spawn().expect("msb can be executed"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The lines without their times.
fn without_times(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| Some(line.split_once(' ')?.1)).collect()
}

#[test]
fn nothing_is_logged_by_default() {
    for msb in Msb::each() {
        for variables in [&[][..], &[("MSB_LOG", "")], &[("MSB_LOG", "off")]] {
            let created = logged(&msb, variables, "create -n box").ok();
            assert_eq!(created.stderr, "", "{variables:?}");
            msb.words("exec box -- true").ok();
            assert!(!msb.home().join("sandboxes/box/debug.log").exists(), "{variables:?}");
            msb.words("rm -f box").ok();
        }
    }
}

#[test]
fn worker_logs_into_the_directory_of_its_sandbox() {
    for msb in Msb::each() {
        let created = logged(&msb, &[("MSB_LOG", "debug")], "create -n box").ok();
        let lines = without_times(&created.stderr);
        let starting = "DEBUG engine: starting a worker sandbox=box";
        assert!(lines.iter().any(|line| line.starts_with(starting)), "{created:#?}");
        // The worker logs as it was told at its start; the command itself was told nothing.
        let gave = msb.run(["exec", "box", "--", "sh", "-c", "exit 3", "argument-of-a-command"]);
        assert_eq!((gave.code, gave.stderr.as_str()), (3, ""));
        let path = msb.home().join("sandboxes/box/debug.log");
        eventually("the exit is logged", || read(&path).contains("command exited code=3"));
        let text = read(&path);
        let lines = without_times(&text);
        assert!(lines[0].starts_with("INFO  worker sandbox{name=box}: the guest runs"), "{text}");
        let exited =
            lines.iter().find(|line| line.contains("command exited code=3")).expect("an exit");
        assert!(exited.starts_with("DEBUG worker sandbox{name=box}:exec{id="), "{text}");
        assert!(text.contains("program=sh"), "{text}");
        assert!(!text.contains("argument-of-a-command"), "{text}");
    }
}

#[test]
fn file_has_the_lines_of_every_process() {
    for msb in Msb::each() {
        let path = msb.scratch().join("msb.log");
        let file = path.to_str().expect("a path in UTF-8");
        let variables = [("MSB_LOG", "worker=debug"), ("MSB_LOG_FILE", file)];
        assert_eq!(logged(&msb, &variables, "run -- true").ok().stderr, "");
        let text = read(&path);
        assert!(text.contains("command exited code=0"), "{text}");
        assert!(without_times(&text).iter().all(|line| line[6..].starts_with("worker")), "{text}");
        // A second run appends.
        let variables = [("MSB_LOG", "debug"), ("MSB_LOG_FILE", file)];
        logged(&msb, &variables, "run -- true").ok();
        let both = read(&path);
        assert!(both.starts_with(&text) && both.contains("DEBUG engine"), "{both}");
    }
}

#[test]
fn wrong_values_are_errors() {
    let msb = Msb::new();
    let gave = logged(&msb, &[("MSB_LOG", "verbose")], "ls");
    let stderr = "error: cannot use the value of `MSB_LOG`\n  \
                  cause: no level is called `verbose`\n\
                  hint: there are off, error, warn, info, debug, trace; one part: `gateway=debug`\n";
    assert_eq!(gave, CmdOutput { code: 125, stdout: String::new(), stderr: stderr.to_owned() });
    let gave = logged(&msb, &[("MSB_LOG", "netwrok=debug")], "run -- true");
    assert!(gave.stderr.contains("no part of msb is called `netwrok`"), "{gave:#?}");
    let missing = [("MSB_LOG", "debug"), ("MSB_LOG_FILE", "/nowhere/log")];
    let gave = logged(&msb, &missing, "ls");
    assert!(gave.stderr.contains("cannot open `/nowhere/log`"), "{gave:#?}");
}
