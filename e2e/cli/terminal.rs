//! At a terminal: its size, its keys, and leaving a command running.

use msb_e2e::terminal::Terminal;
use msb_e2e::{Msb, eventually};
use serde_json::json;

/// What each test types to the shell inside and waits for is made of two parts there, so that
/// the echo of the typing is not mistaken for the answer.
const ANSWER: &str = "printf '%s-%s\\n' an swer\r";

#[test]
fn a_command_at_a_terminal_gets_one_of_the_same_size() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let script = "tty >/dev/null && stty size; echo $TERM";
        for verb in [&["run"][..], &["exec", "box"]] {
            let command = msb.command([verb, &["--", "sh", "-c", script]].concat());
            let terminal = Terminal::start(&command, 33, 99);
            assert_eq!(terminal.ends(), (0, "33 99\nxterm\n".to_owned()));
        }
    }
}

#[test]
fn a_resize_reaches_the_command() {
    for msb in Msb::each() {
        let script = "import os, signal, time
size = lambda *_: print('now', *os.get_terminal_size(), flush=True)
signal.signal(signal.SIGWINCH, size)
print('ready', flush=True)
while True: time.sleep(1)";
        let command = msb.command(["run", "--", "python3", "-c", script]);
        let mut terminal = Terminal::start(&command, 24, 80);
        terminal.shows("ready\n");
        terminal.resize(50, 132);
        terminal.shows("now 132 50\n");
        terminal.types("\x03");
        terminal.ends();
    }
}

#[test]
fn ctrl_c_interrupts_the_command_and_not_the_caller() {
    for msb in Msb::each() {
        let script = "trap 'echo caught; exit 42' INT; echo ready; while :; do sleep 0.05; done";
        let command = msb.command(["run", "--", "sh", "-c", script]);
        let mut terminal = Terminal::start(&command, 24, 80);
        terminal.shows("ready\n");
        terminal.types("\x03");
        let (code, shown) = terminal.ends();
        assert_eq!((code, shown.as_str()), (42, "ready\n^Ccaught\n"));

        let mut terminal = Terminal::start(&msb.command(["run", "--", "cat"]), 24, 80);
        terminal.types("one\r");
        terminal.shows("one\none\n");
        terminal.types("\x03");
        assert_eq!(terminal.ends().0, 130);
    }
}

#[test]
fn a_shell_is_interactive_and_ends_with_ctrl_d() {
    for msb in Msb::each() {
        let mut command = msb.command(["run", "./rootfs", "--", "/bin/sh"]);
        msb.rootfs();
        command.env("PS1", "$ ");
        let mut terminal = Terminal::start(&command, 24, 80);
        terminal.types(ANSWER);
        terminal.shows("\nan-swer\n");
        terminal.types("exit 6\r");
        assert_eq!(terminal.ends().0, 6);

        let mut terminal = Terminal::start(&command, 24, 80);
        terminal.types(ANSWER);
        terminal.shows("\nan-swer\n");
        terminal.types("\x04");
        assert_eq!(terminal.ends().0, 0);
    }
}

#[test]
fn detach_keys_leave_the_command_running_and_attach_comes_back() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let script = "echo ready; while read line; do echo \"got $line\"; done";
        let command = msb.command(["exec", "box", "--", "sh", "-c", script]);
        let mut terminal = Terminal::start(&command, 24, 80);
        terminal.shows("ready\n");
        terminal.types("\x10\x11");
        let (code, shown) = terminal.ends();
        assert_eq!(code, 0);
        assert!(shown.contains("detached; `msb attach box 1`\n"), "{shown}");
        assert_eq!(msb.json(["ps", "box", "--execs", "--json"])[0]["id"], 1);

        let mut terminal = Terminal::start(&msb.command(["attach", "box"]), 24, 80);
        terminal.types("again\r");
        terminal.shows("got again\n");
        terminal.types("\x04");
        assert_eq!(terminal.ends().0, 0);
        eventually("it ends", || msb.json(["ps", "box", "--execs", "--json"]) == json!([]));
    }
}

#[test]
fn detach_keys_leave_a_run_alive() {
    for msb in Msb::each() {
        let command = msb.command(["run", "-n", "job", "--", "sh", "-c", "echo ready; cat"]);
        let mut terminal = Terminal::start(&command, 24, 80);
        terminal.shows("ready\n");
        terminal.types("\x10\x11");
        assert_eq!(terminal.ends().0, 0);
        assert_eq!(msb.json(["inspect", "job"])["status"], "running");
        let mut terminal = Terminal::start(&msb.command(["attach", "job"]), 24, 80);
        terminal.types("hello\r");
        terminal.shows("hello\nhello\n");
        terminal.types("\x04");
        assert_eq!(terminal.ends().0, 0);
        eventually("it ends", || msb.json(["inspect", "job"])["status"] == "stopped");
    }
}

#[test]
fn half_of_the_detach_keys_is_typed_as_it_is() {
    for msb in Msb::each() {
        let script = "stty raw -echo; echo ready; head -c 2 | od -An -tx1; stty sane";
        let command = msb.command(["run", "--", "sh", "-c", script]);
        let mut terminal = Terminal::start(&command, 24, 80);
        terminal.shows("ready\n");
        terminal.types("\x10x");
        terminal.shows(" 10 78\n");
        assert_eq!(terminal.ends().0, 0);
    }
}

#[test]
fn the_terminal_is_as_before_when_the_command_is_over() {
    for msb in Msb::each() {
        let script = "before=$(stty -g); \"$0\" run -- stty raw -echo; \
                      \"$0\" run -- no-such-program; \
                      test \"$(stty -g)\" = \"$before\" && echo the-same";
        let mut shell = msb.user_command("sh");
        shell.args(["-c", script]).arg(msb.binary());
        let terminal = Terminal::start(&shell, 24, 80);
        let (code, shown) = terminal.ends();
        assert_eq!(code, 0, "{shown}");
        assert!(shown.ends_with("the-same\n"), "{shown}");
    }
}

#[test]
fn pipes_instead_of_a_terminal_and_the_other_way_round_on_request() {
    for msb in Msb::each() {
        let script = "tty >/dev/null && echo terminal || echo pipes";
        let command = msb.command(["run", "--no-tty", "--", "sh", "-c", script]);
        assert_eq!(Terminal::start(&command, 24, 80).ends().1, "pipes\n");
        let gave = msb.run(["run", "--tty", "--", "sh", "-c", script]);
        assert_eq!((gave.code, gave.stdout.trim_end()), (0, "terminal"), "{gave:?}");
    }
}

#[test]
fn colour_is_for_terminals_that_want_it() {
    for msb in Msb::each() {
        let mut command = msb.command(["exec", "nobody", "--", "true"]);
        let coloured = Terminal::start(&command, 24, 80).ends().1;
        assert!(coloured.starts_with("\x1b["), "{coloured:?}");
        command.env("NO_COLOR", "1");
        let plain = Terminal::start(&command, 24, 80).ends().1;
        assert!(plain.starts_with("error: no sandbox `nobody`\n"), "{plain:?}");
    }
}

#[test]
fn a_terminal_that_is_closed_ends_the_command() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let command = msb.command(["exec", "box", "--", "sleep", "1000"]);
        let terminal = Terminal::start(&command, 24, 80);
        let execs = || msb.json(["ps", "box", "--execs", "--json"]).as_array().unwrap().len();
        eventually("it runs", || execs() == 1);
        terminal.hang_up();
        eventually("it is over", || execs() == 0);
    }
}
