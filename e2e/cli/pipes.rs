//! A reader that closes its end of a pipe ends the verb that writes, and hurts nothing else.

use msb_e2e::{CmdOutput, Msb, ends, eventually};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

/// Reads one line of a verb, closes the pipe, and waits for the end of the verb.
#[track_caller]
fn one_line(msb: &Msb, words: &str) -> (String, CmdOutput) {
    let mut command = msb.command(words.split(' '));
    let mut child: Child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("msb can be executed");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    (line, ends(child))
}

#[test]
fn a_closed_pipe_ends_verbs_that_follow() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        // It falls silent: only a look at the pipe itself can tell that it is closed.
        msb.run(["exec", "-d", "box", "--", "sh", "-c", "echo first; sleep 1000"]).ok();
        eventually("its line is in the log", || msb.words("logs box").stdout.contains("first"));
        let (line, gave) = one_line(&msb, "logs -f box");
        assert_eq!((line.as_str(), gave.code), ("first\n", 0), "{gave:#?}");
        assert_eq!(gave.stderr, "");
        for words in ["events -f box", "events -f"] {
            let (line, gave) = one_line(&msb, words);
            assert!(line.ends_with('\n'), "{words}: {line}");
            assert_eq!((gave.code, gave.stderr.as_str()), (0, ""), "{words}");
        }
        assert_eq!(msb.words("ls -q").line(), "box");
    }
}

#[test]
fn a_viewer_that_closes_its_pipe_does_not_end_the_command() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let script = "while :; do echo line; sleep 0.05; done";
        let id = msb.run(["exec", "-d", "box", "--", "sh", "-c", script]).line();
        let (line, gave) = one_line(&msb, &format!("attach --no-stdin box {id}"));
        assert_eq!((line.as_str(), gave.code), ("line\n", 0), "{gave:#?}");
        let running = msb.json(["ps", "box", "--execs", "--json"]);
        assert!(running.to_string().contains("while"), "{running}");
    }
}
