//! Connections that end in other ways than by saying so.

use crate::desk::Desk;
use msb_e2e::{Msb, Process, ends, eventually, signal_pid};
use std::process::{Child, Command, Stdio};

fn is_inside(desk: &Desk, pattern: &str) -> bool {
    desk.msb.run(["exec", "box", "--", "pgrep", "-f", pattern]).code == 0
}

/// A client that is killed leaves no command behind, whatever it was doing.
#[test]
fn killed_clients_leave_nothing() {
    for desk in Desk::each() {
        let key = desk.key("ann");
        desk.msb.run(["ssh", "authorize", &format!("{}.pub", key.display())]).ok();
        let served = desk.serve();
        let mut by_port = served.ssh(&desk, &key);
        by_port.arg("sleep 7001");
        let mut by_pipe = desk.program("ssh");
        by_pipe.args(["box", "sleep 7002"]);
        // One that cannot get rid of its output, and one that does not read.
        let mut talks = served.ssh(&desk, &key);
        talks.arg("yes 7003");
        let mut deaf = served.ssh(&desk, &key);
        deaf.arg("sleep 7004").stdin(Stdio::piped());
        for (mut command, pattern) in [
            (by_port, "^sleep 7001"),
            (by_pipe, "^sleep 7002"),
            (talks, "^yes 7003"),
            (deaf, "^sleep 7004"),
        ] {
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            if let Some(mut stdin) = child.stdin.take() {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut std::io::repeat(0), &mut stdin);
                });
            }
            eventually(pattern, || is_inside(&desk, pattern));
            // ssh itself, not what stands before it to change the user.
            for process in Process::tree(child.id()) {
                signal_pid(process.pid, "KILL");
            }
            let _ = child.wait();
            eventually("nothing left", || !is_inside(&desk, pattern));
        }
    }
}

/// What has left its session lives on when that ends, as it would with sshd.
#[test]
fn daemons_outlive_their_session() {
    let desk = Desk::new(Msb::new());
    // It has left once it is what it is to be.
    let left = "until pgrep -f '^sleep 7100' >/dev/null; do sleep 0.05; done";
    let line = format!("setsid sleep 7100 >/dev/null 2>&1 </dev/null & {left}; echo started");
    assert_eq!(desk.ssh(["box", &line]).line(), "started");
    assert!(is_inside(&desk, "^sleep 7100"));
}

/// A server ends with its sandbox.
#[test]
fn a_server_ends_with_its_sandbox() {
    let desk = Desk::new(Msb::new());
    let served = desk.serve();
    desk.msb.words("stop box").ok();
    assert!(served.said().contains("the sandbox has ended"));
}

/// A connection that stays, with a socket by which others use it.
struct Master {
    child: Child,
    path: String,
}

impl Master {
    fn new(desk: &Desk, mut command: Command) -> Self {
        let control = desk.msb.scratch().join("control");
        let path = format!("ControlPath={}", control.display());
        let child = command
            .args(["-MN", "-o", &path])
            .stderr(Stdio::null())
            .spawn()
            .expect("ssh is installed");
        eventually("the master", || control.exists());
        Self { child, path }
    }

    /// Whether a command can be run over it, and nowhere else.
    fn runs(&self, desk: &Desk) -> bool {
        let mut command = desk.program("ssh");
        command.args([
            "-o",
            &self.path,
            "-o",
            "ProxyCommand=false",
            "box",
            "echo in; touch /tmp/in",
        ]);
        ends(command.spawn().expect("ssh is installed")).stdout == "in\n"
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whoever was let in to one sandbox is not in the next one that has its name.
#[test]
fn a_connection_is_for_one_sandbox() {
    let desk = Desk::new(Msb::new());
    let key = desk.key("ann");
    for at_a_port in [true, false] {
        desk.msb.run(["ssh", "authorize", "--for", "box", &format!("{}.pub", key.display())]).ok();
        let served = desk.serve();
        let command = match at_a_port {
            true => served.ssh(&desk, &key),
            false => {
                let mut command = desk.program("ssh");
                command.arg("box");
                command
            }
        };
        let mut master = Master::new(&desk, command);
        assert!(master.runs(&desk));
        desk.msb.words("create -q --replace --name box --no-net host").ok();
        assert!(!master.runs(&desk), "{at_a_port}");
        assert_ne!(desk.msb.words("exec box -- test -e /tmp/in").code, 0, "{at_a_port}");
        eventually("the connection to end", || master.child.try_wait().unwrap().is_some());
        assert!(served.said().contains("the sandbox has ended"));
    }
}

/// One that is restarted is the same, and one that is stopped has ended.
#[test]
fn a_connection_outlives_a_restart_and_no_stop() {
    let desk = Desk::new(Msb::new());
    let mut command = desk.program("ssh");
    command.arg("box");
    let mut master = Master::new(&desk, command);
    desk.msb.words("restart box").ok();
    assert!(master.runs(&desk));
    desk.msb.words("stop box").ok();
    eventually("the connection to end", || master.child.try_wait().unwrap().is_some());
}

/// The settings of ssh stay right when the sandbox is made anew.
#[test]
fn settings_outlive_the_sandbox() {
    let desk = Desk::new(Msb::new());
    desk.msb.words("rm -f box").ok();
    desk.msb.words("create -q --name box --no-net host").ok();
    assert_eq!(desk.ssh(["box", "echo in"]).line(), "in");
}
