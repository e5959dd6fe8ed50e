//! Killed processes: nothing of a network outlives its sandbox.

use crate::testnet::{TestNet, TestUser};
use msb_e2e::{Process, eventually, gives};
use std::io::{BufRead, BufReader};

/// The devices of the machine that msb runs on.
fn devices(user: &TestUser) -> String {
    let mut command = user.at_home("cat");
    gives(command.arg("/proc/net/dev")).line().lines().skip(2).fold(String::new(), |all, line| {
        all + line.split(':').next().unwrap_or_default().trim() + " "
    })
}

fn gateway(processes: &[Process]) -> Process {
    let found = processes.iter().find(|process| process.name == "msb-gateway");
    found.unwrap_or_else(|| panic!("no gateway: {processes:?}")).clone()
}

/// Attack 44.
#[test]
fn a_gateway_that_is_killed_leaves_a_sandbox_without_a_network() {
    for user in TestNet::users() {
        user.lasting("net", &["-p", "8000"]);
        let processes = user.msb.processes("net");
        let gateway = gateway(&processes);
        msb_e2e::signal_pid(gateway.pid, "KILL");
        eventually("the gateway is gone", || !gateway.is_alive());
        // No way out, and no waiting for one.
        let gave = user.within("net", "curl -sS --max-time 60 http://203.0.113.10/; echo $?");
        assert!(!gave.stdout.contains("hello"), "{gave:#?}");
        eventually("it is told", || {
            user.run(["events", "net"]).ok().stdout.contains("gateway ended")
        });
        assert_eq!(user.within("net", "echo still").line(), "still");
        assert_ne!(user.run(["net", "net"]).code, 0);
        user.run(["restart", "net"]).ok();
        assert_eq!(user.probe_in("net", &["tcp 203.0.113.10 80"]), ["open"]);
    }
}

/// Attack 44.
#[test]
fn a_worker_that_is_killed_takes_its_network_along() {
    for user in TestNet::users() {
        let before = devices(&user);
        user.lasting("net", &["-p", "8000"]);
        let processes = user.msb.processes("net");
        gateway(&processes);
        msb_e2e::signal_pid(processes[0].pid, "KILL");
        eventually("nothing of it runs", || !processes.iter().any(Process::is_alive));
        assert_eq!(devices(&user), before);
        user.run(["start", "net"]).ok();
        assert_eq!(user.probe_in("net", &["tcp 203.0.113.10 80"]), ["open"]);
    }
}

/// Attack 44.
#[test]
fn a_caller_that_is_killed_takes_its_network_along() {
    for user in TestNet::users() {
        let before = devices(&user);
        let script = "exec /usr/bin/python3 /world/streams.py wait web.example.com 7000";
        let mut run = user.inside_command(&["-p", "8000"], script);
        let mut run = run.spawn().unwrap();
        let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "open");
        let name = user.run(["ls", "-q"]).line();
        let processes = user.msb.processes(&name);
        let gateway = gateway(&processes);
        run.kill().unwrap();
        run.wait().unwrap();
        eventually("nothing of it runs", || {
            !processes.iter().any(Process::is_alive) && !gateway.is_alive()
        });
        assert_eq!(devices(&user), before);
        eventually("nothing of it is known", || user.run(["ls", "-q"]).line() == "");
    }
}

#[test]
fn a_sandbox_that_stops_takes_its_network_along() {
    for user in TestNet::users() {
        let before = devices(&user);
        user.lasting("net", &[]);
        let processes = user.msb.processes("net");
        gateway(&processes);
        user.run(["stop", "net"]).ok();
        eventually("nothing of it runs", || !processes.iter().any(Process::is_alive));
        assert_eq!(devices(&user), before);
    }
}

/// A gateway that was taken over can do nothing but its work.
#[test]
fn the_gateway_is_jailed() {
    for user in TestNet::users() {
        user.lasting("net", &[]);
        let gateway = gateway(&user.msb.processes("net"));
        let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.pid)).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim_start_matches(':').trim().to_owned()
        };
        assert_eq!(field("Seccomp"), "2", "{status}");
        assert_eq!(field("NoNewPrivs"), "1", "{status}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(field(set), "0000000000000000", "{set}");
        }
        let root = std::fs::read_dir(format!("/proc/{}/root/", gateway.pid)).unwrap();
        assert_eq!(root.count(), 0);
        for file in ["environ", "cmdline"] {
            let text = std::fs::read(format!("/proc/{}/{file}", gateway.pid)).unwrap();
            let text = String::from_utf8_lossy(&text).into_owned();
            assert!(!text.contains("MSB_HOME"), "{file}: {text}");
        }
        let namespace =
            |kind: &str, pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
        for kind in ["user", "mnt", "ipc", "uts"] {
            assert_ne!(
                namespace(kind, &gateway.pid.to_string()),
                namespace(kind, "self"),
                "{kind}"
            );
        }
    }
}
