//! Connections that end in other ways than by saying so.

use crate::fixture::SshFixture;
use msb_e2e::{Msb, Process, ends, eventually, signal_pid};
use std::process::{Child, Command, Stdio};

fn is_inside(fixture: &SshFixture, pattern: &str) -> bool {
    fixture.msb.run(["exec", "box", "--", "pgrep", "-f", pattern]).code == 0
}

/// A client that is killed leaves no command behind, whatever it was doing.
#[test]
fn killed_clients_leave_nothing() {
    for fixture in SshFixture::each() {
        let key = fixture.key("ann");
        fixture.msb.run(["ssh", "authorize", &format!("{}.pub", key.display())]).ok();
        let served = fixture.serve();
        let mut by_port = served.ssh(&fixture, &key);
        by_port.arg("sleep 7001");
        let mut by_pipe = fixture.program("ssh");
        by_pipe.args(["box", "sleep 7002"]);
        // One that cannot get rid of its output, and one that does not read.
        let mut talks = served.ssh(&fixture, &key);
        talks.arg("yes 7003");
        let mut deaf = served.ssh(&fixture, &key);
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
            eventually(pattern, || is_inside(&fixture, pattern));
            // ssh itself, not what stands before it to change the user.
            for process in Process::tree(child.id()) {
                signal_pid(process.pid, "KILL");
            }
            let _ = child.wait();
            eventually("nothing left", || !is_inside(&fixture, pattern));
        }
    }
}

/// What has left its session lives on when that ends, as it would with sshd.
#[test]
fn daemons_outlive_their_session() {
    let fixture = SshFixture::new(Msb::new());
    // It has left once it is what it is to be.
    let left = "until pgrep -f '^sleep 7100' >/dev/null; do sleep 0.05; done";
    let line = format!("setsid sleep 7100 >/dev/null 2>&1 </dev/null & {left}; echo started");
    assert_eq!(fixture.ssh(["box", &line]).line(), "started");
    assert!(is_inside(&fixture, "^sleep 7100"));
}

/// A server ends with its sandbox.
#[test]
fn a_server_ends_with_its_sandbox() {
    let fixture = SshFixture::new(Msb::new());
    let served = fixture.serve();
    fixture.msb.words("stop box").ok();
    assert!(served.said().contains("the sandbox has ended"));
}

/// A connection that stays, with a socket by which others use it.
struct ControlMaster {
    child: Child,
    path: String,
}

impl ControlMaster {
    fn new(fixture: &SshFixture, mut command: Command) -> Self {
        let control = fixture.msb.scratch().join("control");
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
    fn runs(&self, fixture: &SshFixture) -> bool {
        let mut command = fixture.program("ssh");
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

impl Drop for ControlMaster {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection to a sandbox does not carry over to the next one of that name.
#[test]
fn a_connection_is_for_one_sandbox() {
    let fixture = SshFixture::new(Msb::new());
    let key = fixture.key("ann");
    for at_a_port in [true, false] {
        fixture
            .msb
            .run(["ssh", "authorize", "--for", "box", &format!("{}.pub", key.display())])
            .ok();
        let served = fixture.serve();
        let command = match at_a_port {
            true => served.ssh(&fixture, &key),
            false => {
                let mut command = fixture.program("ssh");
                command.arg("box");
                command
            }
        };
        let mut master = ControlMaster::new(&fixture, command);
        assert!(master.runs(&fixture));
        fixture.msb.words("create -q --replace --name box --no-net host").ok();
        assert!(!master.runs(&fixture), "{at_a_port}");
        assert_ne!(fixture.msb.words("exec box -- test -e /tmp/in").code, 0, "{at_a_port}");
        eventually("the connection to end", || master.child.try_wait().unwrap().is_some());
        assert!(served.said().contains("the sandbox has ended"));
    }
}

/// One that is restarted is the same, and one that is stopped has ended.
#[test]
fn a_connection_outlives_a_restart_and_no_stop() {
    let fixture = SshFixture::new(Msb::new());
    let mut command = fixture.program("ssh");
    command.arg("box");
    let mut master = ControlMaster::new(&fixture, command);
    fixture.msb.words("restart box").ok();
    assert!(master.runs(&fixture));
    fixture.msb.words("stop box").ok();
    eventually("the connection to end", || master.child.try_wait().unwrap().is_some());
}

/// The settings of ssh stay right when the sandbox is made anew.
#[test]
fn settings_outlive_the_sandbox() {
    let fixture = SshFixture::new(Msb::new());
    fixture.msb.words("rm -f box").ok();
    fixture.msb.words("create -q --name box --no-net host").ok();
    assert_eq!(fixture.ssh(["box", "echo in"]).line(), "in");
}
