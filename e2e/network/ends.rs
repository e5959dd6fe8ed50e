//! Ends that nobody planned: nothing of a network outlives its sandbox.

use crate::world::{Person, World};
use msb_e2e::{Process, eventually, gives};
use std::io::{BufRead, BufReader};

/// The devices of the machine that msb runs on.
fn devices(person: &Person) -> String {
    let mut command = person.at_home("cat");
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
    for person in World::people() {
        person.lasting("net", &["-p", "8000"]);
        let processes = person.msb.processes("net");
        let gateway = gateway(&processes);
        msb_e2e::signal_pid(gateway.pid, "KILL");
        eventually("the gateway is gone", || !gateway.is_alive());
        // No way out, and no waiting for one.
        let gave = person.within("net", "curl -sS --max-time 60 http://203.0.113.10/; echo $?");
        assert!(!gave.stdout.contains("hello"), "{gave:#?}");
        eventually("it is told", || {
            person.run(["events", "net"]).ok().stdout.contains("gateway ended")
        });
        assert_eq!(person.within("net", "echo still").line(), "still");
        assert_ne!(person.run(["net", "net"]).code, 0);
        person.run(["restart", "net"]).ok();
        assert_eq!(person.probe_in("net", &["tcp 203.0.113.10 80"]), ["open"]);
    }
}

/// Attack 44.
#[test]
fn a_worker_that_is_killed_takes_its_network_along() {
    for person in World::people() {
        let before = devices(&person);
        person.lasting("net", &["-p", "8000"]);
        let processes = person.msb.processes("net");
        gateway(&processes);
        msb_e2e::signal_pid(processes[0].pid, "KILL");
        eventually("nothing of it runs", || !processes.iter().any(Process::is_alive));
        assert_eq!(devices(&person), before);
        person.run(["start", "net"]).ok();
        assert_eq!(person.probe_in("net", &["tcp 203.0.113.10 80"]), ["open"]);
    }
}

/// Attack 44.
#[test]
fn a_caller_that_is_killed_takes_its_network_along() {
    for person in World::people() {
        let before = devices(&person);
        let script = "exec /usr/bin/python3 /world/streams.py wait web.example.com 7000";
        let mut run = person.inside_command(&["-p", "8000"], script);
        let mut run = run.spawn().unwrap();
        let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "open");
        let name = person.run(["ls", "-q"]).line();
        let processes = person.msb.processes(&name);
        let gateway = gateway(&processes);
        run.kill().unwrap();
        run.wait().unwrap();
        eventually("nothing of it runs", || {
            !processes.iter().any(Process::is_alive) && !gateway.is_alive()
        });
        assert_eq!(devices(&person), before);
        eventually("nothing of it is known", || person.run(["ls", "-q"]).line() == "");
    }
}

#[test]
fn a_sandbox_that_stops_takes_its_network_along() {
    for person in World::people() {
        let before = devices(&person);
        person.lasting("net", &[]);
        let processes = person.msb.processes("net");
        gateway(&processes);
        person.run(["stop", "net"]).ok();
        eventually("nothing of it runs", || !processes.iter().any(Process::is_alive));
        assert_eq!(devices(&person), before);
    }
}

/// The gateway can do nothing but its work, whoever takes it over.
#[test]
fn the_gateway_is_jailed() {
    for person in World::people() {
        person.lasting("net", &[]);
        let gateway = gateway(&person.msb.processes("net"));
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
