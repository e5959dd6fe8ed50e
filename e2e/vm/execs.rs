//! Commands in a microVM: their ends, their streams, their terminals.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use msb_e2e::{ends, eventually, gives, signal_pid};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::lab::{self, SharedSandbox};
use msb_e2e::terminal::Terminal;

#[test]
fn run_gives_output_and_exit_code_of_a_kernel_of_its_own() {
    for msb in lab::each() {
        let gave = msb.shell("uname -r; echo said >&2; id -u; exit 7");
        assert_eq!((gave.code, gave.stderr.as_str()), (7, "said\n"), "{gave:#?}");
        let host = gives(msb.user_command("uname").arg("-r")).line();
        let (kernel, rest) = gave.stdout.split_once('\n').unwrap();
        assert_ne!(kernel, host);
        assert_eq!(rest, "0\n");
        assert_eq!(msb.words("ls -q").line(), "", "nothing stays");
    }
}

#[test]
fn every_end_of_a_command_has_its_code() {
    let Some(shared) = SharedSandbox::get() else { return };
    for (script, code) in [("exit 0", 0), ("exit 42", 42), ("kill -9 $$", 137), ("kill $$", 143)] {
        assert_eq!(shared.shell(script).code, code, "{script}");
    }
    let run = |words: &str| shared.msb.words(words).code;
    assert_eq!(run("exec box -- no-such-program"), 127);
    assert_eq!(run("exec box -- /etc/passwd"), 126);
    assert_eq!(run("exec --timeout 1s box -- sleep 1000"), 124);
}

#[test]
fn stdin_reaches_the_command_and_ends() {
    let Some(shared) = SharedSandbox::get() else { return };
    let bytes: Vec<u8> = (0..=255).cycle().take(3_000_001).collect();
    let gave = shared.msb.run_with(["exec", "box", "--", "sha256sum"], &bytes);
    let wanted: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(gave.line(), format!("{wanted}  -"));
}

#[test]
fn output_of_background_processes_is_read_to_its_end() {
    let Some(shared) = SharedSandbox::get() else { return };
    let counted =
        shared.shell("(while kill -0 $$; do :; done; seq 20000; echo over) 2>&- & exit 3");
    assert_eq!((counted.code, counted.stdout.lines().count()), (3, 20001));
    assert_eq!(shared.shell("sleep 7300 & echo on").line(), "on");
    assert_eq!(shared.shell("yes & exit 4").code, 4);
    shared.shell("pkill yes; pkill -f 'sleep 7300'; true").ok();
}

#[test]
fn options_of_exec_reach_the_command() {
    let Some(shared) = SharedSandbox::get() else { return };
    let flags = ["exec", "-e", "B=2", "-w", "/usr", "-u", "web", "--rlimit", "nofile=123", "box"];
    let script = ["--", "sh", "-c", "echo $A $B; pwd; id -un; ulimit -n; hostname"];
    let gave = shared.msb.run([&flags[..], &script].concat());
    assert_eq!(gave.line(), "1 2\n/usr\nweb\n123\nbox");
}

#[test]
fn a_command_at_a_terminal_has_one_that_can_be_resized() {
    let Some(shared) = SharedSandbox::get() else { return };
    let script = "tty >/dev/null && stty size; read line; stty size; echo \"got $line\"; exit 6";
    let command = shared.msb.command(["exec", "box", "--", "sh", "-c", script]);
    let mut terminal = Terminal::start(&command, 33, 99);
    terminal.shows("33 99\n");
    terminal.resize(50, 132);
    terminal.types("typed\r");
    let (code, shown) = terminal.ends();
    assert!(shown.ends_with("50 132\ngot typed\n"), "{shown:?}");
    assert_eq!(code, 6);
}

#[test]
fn keys_of_a_terminal_interrupt_the_command() {
    let Some(shared) = SharedSandbox::get() else { return };
    let script = "trap 'echo caught; exit 42' INT; echo ready; while :; do sleep 0.1; done";
    let command = shared.msb.command(["exec", "box", "--", "sh", "-c", script]);
    let mut terminal = Terminal::start(&command, 24, 80);
    terminal.shows("ready\n");
    terminal.types("\x03");
    assert_eq!(terminal.ends(), (42, "ready\n^Ccaught\n".to_owned()));
}

#[test]
fn signals_reach_commands_in_front_and_in_the_background() {
    let Some(shared) = SharedSandbox::get() else { return };
    let msb = &shared.msb;
    let script = "trap 'echo term; exit 3' TERM; echo up; while :; do sleep 0.1; done";
    let mut child = msb.spawn(["exec", "box", "--", "sh", "-c", script]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "up");
    signal_pid(child.id(), "TERM");
    assert_eq!(lines.next().unwrap().unwrap(), "term");
    assert_eq!(ends(child).code, 3);

    let id = msb.run(["exec", "-d", "box", "--", "sh", "-c", script]).line();
    let said = || msb.run(["logs", "box", "--source", "stdout", "--exec", &id]).stdout;
    eventually("it is up", || said() == "up\n");
    msb.run(["kill", "box", &id]).ok();
    eventually("it heard", || said() == "up\nterm\n");
    let ended = msb.json(["ps", "box", "--execs", "-a", "--json"]);
    let id: u64 = id.parse().unwrap();
    let exec = ended.as_array().unwrap().iter().find(|exec| exec["id"] == id).unwrap();
    assert_eq!(exec["exit"]["code"], json!(3), "{exec}");
}

#[test]
fn a_command_ends_when_its_caller_is_killed() {
    let Some(shared) = SharedSandbox::get() else { return };
    let mut child = shared.msb.spawn(["exec", "box", "--", "sleep", "4242"]);
    let runs = || shared.shell("ps -o args | grep -c '^sleep 4242'; true").stdout == "1\n";
    eventually("it runs", runs);
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("it is gone", || !runs());
}

#[test]
fn a_hundred_megabytes_come_out_as_they_are() {
    let Some(shared) = SharedSandbox::get() else { return };
    const SIZE: usize = 100 << 20;
    let script = "head -c 104857600 /dev/zero | tr '\\000' x";
    let mut command = shared.msb.command(["exec", "box", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut buffer = vec![0; 1 << 16];
    let mut came = 0;
    loop {
        let count = stdout.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        assert!(buffer[..count].iter().all(|byte| *byte == b'x'), "after {came} bytes");
        came += count;
    }
    assert_eq!((came, child.wait().unwrap().code()), (SIZE, Some(0)));
}

#[test]
fn many_commands_at_once_do_not_mix() {
    let Some(shared) = SharedSandbox::get() else { return };
    let begin = |number: usize| {
        let script = format!("for i in 1 2 3 4 5; do echo {number}; done; exit {number}");
        shared.msb.spawn(["exec", "box", "--", "sh", "-c", &script])
    };
    let children: Vec<_> = (0..12).map(begin).collect();
    for (number, child) in children.into_iter().enumerate() {
        let gave = ends(child);
        assert_eq!(gave.code, i32::try_from(number).unwrap(), "{gave:#?}");
        assert_eq!(gave.stdout, format!("{number}\n").repeat(5));
    }
}
