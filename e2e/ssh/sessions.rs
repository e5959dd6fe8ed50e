//! Commands and terminals.

use crate::fixture::SshFixture;
use msb_e2e::{eventually, gives};
use std::process::Stdio;
use std::thread;

/// Exit codes, streams, signals, variables and the directory are those of sshd.
#[test]
fn a_command_is_as_over_sshd() {
    for fixture in SshFixture::each() {
        let gave = fixture.ssh(["box", "echo out; echo err >&2; exit 7"]);
        assert_eq!((gave.code, &*gave.stdout, &*gave.stderr), (7, "out\n", "err\n"));
        assert_eq!(fixture.ssh(["box", "kill -TERM $$"]).code, 255);
        let told =
            fixture.ssh(["-o", "SetEnv=FOO=bar HOME=/x", "box", "echo $FOO $HOME $USER; pwd"]);
        assert_eq!(told.line(), "bar /root root\n/root");
        let gave = fixture.shell("echo 'echo from a script; exit 3' | $SSH -T box");
        assert_eq!((gave.code, &*gave.stdout), (3, "from a script\n"));
        // A client without a terminal that requests a PTY gets one of the default size.
        let size = fixture.shell("echo q | $SSH -q -tt box 'read x; stty size'").line();
        assert!(size.contains("24 80"), "{size:?}");
        let gave = fixture.ssh(["nosuch@box", "true"]);
        assert_eq!(gave.code, 255);
        assert!(gave.stderr.contains("msb: sandbox `box` has no user `nosuch`"), "{gave:?}");
        assert_eq!(fixture.msb.words("ssh box -- echo $0 a  b").line(), "/bin/bash a b");
        assert_eq!(fixture.msb.words("ssh box -- exit 9").code, 9);
    }
}

/// What one side does not read holds the other side back, and is not lost.
#[test]
fn streams_have_flow_control_and_end() {
    let fixture = SshFixture::new(msb_e2e::Msb::new());
    let sum = |text: String| text.split(' ').next().unwrap_or_default().to_owned();
    let bytes = "head -c 200000000 /dev/zero";
    let expected = sum(fixture.shell(&format!("{bytes} | sha256sum")).line());
    let echoed = fixture.shell(&format!("{bytes} | $SSH box cat | (sleep 1; sha256sum)"));
    assert_eq!(sum(echoed.line()), expected);
    assert_eq!(fixture.shell(&format!("{bytes} | $SSH box 'sleep 1; sha256sum'")).line(), {
        format!("{expected}  -")
    });
    // A command that does not read ends all the same.
    assert_eq!(fixture.shell(&format!("({bytes} || true) | $SSH box true")).code, 0);
    assert_eq!(fixture.shell("printf abc | $SSH box 'cat; echo'").line(), "abc");
}

/// A client that asks whether we are there is answered while a command reads nothing.
#[test]
fn a_late_reader_does_not_look_dead() {
    let fixture = SshFixture::new(msb_e2e::Msb::new());
    let alive = "-o ServerAliveInterval=4 -o ServerAliveCountMax=2";
    let line = format!("head -c 20000000 /dev/zero | $SSH {alive} box 'sleep 25; wc -c'");
    assert_eq!(fixture.shell(&line).line(), "20000000");
}

/// A gigabyte each way, with new keys in between.
#[test]
fn a_gigabyte_goes_both_ways() {
    let fixture = SshFixture::new(msb_e2e::Msb::new());
    let gave = fixture.shell(
        "key=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n'); \
         bytes() { head -c 1073741824 /dev/zero | openssl enc -aes-128-ctr -K $key -iv $key; }; \
         here=$(bytes | sha256sum); \
         there=$(bytes | $SSH -o RekeyLimit=300M box 'tee /tmp/big | sha256sum'); \
         back=$($SSH -o RekeyLimit=300M box 'cat /tmp/big' | sha256sum); \
         test \"$here\" = \"$there\" && test \"$here\" = \"$back\"",
    );
    gave.ok();
}

/// A terminal that is resized, interrupted and left, under tmux.
#[test]
fn a_terminal_works_under_tmux() {
    for fixture in SshFixture::each() {
        let tmux = |words: &[&str]| {
            let mut command = fixture.msb.user_command("tmux");
            command.arg("-S").arg(fixture.msb.scratch().join("tmux.sock")).args(words);
            gives(command.env("TERM", "xterm").env("SHELL", "/bin/sh"))
        };
        let line = format!("ssh -F {} box", fixture.config.display());
        tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", &line]).ok();
        let screen = || tmux(&["capture-pane", "-p", "-J"]).stdout;
        let type_in = |text: &str| drop(tmux(&["send-keys", text, "Enter"]).ok());
        type_in("echo term-$((6*7)) $TERM");
        eventually("a prompt that answers", || screen().contains("term-42 "));
        tmux(&["resize-window", "-x", "77", "-y", "22"]).ok();
        eventually("the new size", || {
            type_in("stty size");
            thread::sleep(std::time::Duration::from_millis(50));
            // The line of tmux itself takes one.
            screen().contains("21 77") || screen().contains("22 77")
        });
        type_in("sleep 1000; echo after-$((40+2))");
        eventually("sleep", || fixture.msb.words("exec box -- pgrep -f ^sleep.1000$").code == 0);
        tmux(&["send-keys", "C-c"]).ok();
        type_in("echo again-$((40+3))");
        eventually("the shell after Ctrl-C", || screen().contains("again-43"));
        type_in("exit");
        eventually("tmux to end", || tmux(&["has-session"]).code != 0);
    }
}

/// As many as an eager person has, as processes and over one connection.
#[test]
fn a_hundred_sessions_at_once_work() {
    let fixture = SshFixture::new(msb_e2e::Msb::new());
    let all = |args: &[&str]| {
        let children: Vec<_> = (0..100)
            .map(|n| {
                let line = format!("echo {n}; read line; exit {n}");
                let mut command = fixture.program("ssh");
                command.args(args).args(["box", &line]).stdin(Stdio::piped());
                command.spawn().unwrap()
            })
            .collect();
        for (n, child) in children.into_iter().enumerate() {
            let gave = msb_e2e::ends(child);
            let expected = (i32::try_from(n).unwrap(), format!("{n}\n"));
            assert_eq!((gave.code, gave.stdout.clone()), expected, "{args:?} {gave:?}");
        }
    };
    all(&[]);
    let control = fixture.msb.scratch().join("control");
    let path = format!("ControlPath={}", control.display());
    let mut master = fixture.program("ssh");
    let mut master = master.args(["-MN", "-o", &path, "box"]).spawn().unwrap();
    eventually("the master", || control.exists());
    all(&["-o", &path]);
    let _ = master.kill();
    let _ = master.wait();
}
