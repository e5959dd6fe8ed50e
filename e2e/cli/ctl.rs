//! `sandbox-ctl` and its socket: children, asked for from inside.

use msb_e2e::{CmdOutput, Msb, Process, eventually, signal_pid};
use std::fs;

/// A client that was written from the protocol description alone.
const CLIENT: &str = include_str!("ctl_client.py");

const POLICY: &str = "max=3,total=40,cpus=6,memory=1G,child-cpus=1,child-memory=128M";

fn parent(msb: &Msb, policy: &str) {
    msb.run(["create", "-q", "-n", "lead", "--no-net", "--spawn", policy, "host"]).ok();
}

fn inside(msb: &Msb, name: &str, script: &str) -> CmdOutput {
    msb.run(["exec", name, "--", "sh", "-c", script])
}

fn python(msb: &Msb, what: &str) -> CmdOutput {
    msb.run(["exec", "lead", "--", "/usr/bin/python3", "-c", CLIENT, what])
}

#[test]
fn a_script_inside_has_children() {
    for msb in Msb::each() {
        parent(&msb, POLICY);
        let script = "set -e; sandbox-ctl ping; sandbox-ctl spawn --name k --memory 64M; \
                      sandbox-ctl list | sed 's/ [0-9]*s$/ TTL/'; \
                      sandbox-ctl exec k -- echo 'a  b' '$HOME'; \
                      code=0; sandbox-ctl exec k -- sh -c 'echo no >&2; exit 7' || code=$?; \
                      echo $code; sandbox-ctl run -- cat /proc/sys/kernel/hostname; \
                      sandbox-ctl run --stream -- head -c 300000 /dev/urandom | wc -c; \
                      sandbox-ctl destroy k; sandbox-ctl --json list";
        let gave = inside(&msb, "lead", script).ok();
        let expected = "ok (parent: lead)\nk\n\
                        NAME  IMAGE  CPUS  MEM(MB)  TTL\nk     host   1     64       TTL\n\
                        a  b $HOME\n7\nlead-child-0002\n300000\nk\n";
        let (said, json) = gave.stdout.split_at(expected.len().min(gave.stdout.len()));
        assert_eq!(said, expected);
        assert!(json.contains(r#""result":{"children":[]}"#), "{json}");
        assert_eq!(gave.stderr, "[stderr] no\n");
        let gave = inside(&msb, "lead", "sandbox-ctl destroy k");
        let said = "sandbox-ctl: NOT_FOUND: Child 'k' not found under 'lead'\n";
        assert_eq!((gave.code, gave.stderr.as_str()), (1, said));
        assert_eq!(inside(&msb, "lead", "sandbox-ctl fly").code, 2);
        // Any process inside may use the socket, and the host sees the children.
        let as_other_user = ["exec", "--user", "65534", "lead", "--", "sandbox-ctl", "spawn"];
        if !msb.has_one_id() {
            let child = msb.run(as_other_user).line();
            assert_eq!(msb.words("children -q lead").line(), child);
        }
        msb.words("rm -f lead").ok();
    }
}

#[test]
fn a_client_needs_no_more_than_the_description() {
    for msb in Msb::each() {
        parent(&msb, POLICY);
        python(&msb, "everything").ok();
    }
}

#[test]
fn a_storm_from_inside_gets_no_more_than_there_is() {
    let msb = Msb::new();
    parent(&msb, "max=40,total=50,cpus=40,memory=192M,child-cpus=1,child-memory=64M");
    assert_eq!(python(&msb, "storm").ok().line(), "3");
    assert_eq!(msb.words("children -q lead").line().lines().count(), 3);
}

#[test]
fn hostile_requests_from_inside_harm_no_sandbox() {
    for msb in Msb::each() {
        parent(&msb, POLICY);
        msb.words("create -q -n other host").ok();
        let gave = python(&msb, "hostile").ok();
        assert!(!gave.stderr.contains("Traceback"), "{gave:#?}");
        assert_eq!(msb.words("exec other -- echo on").line(), "on");
        assert_eq!(msb.words("children -q lead").line(), "");
        eventually("it answers again", || inside(&msb, "lead", "sandbox-ctl ping").code == 0);
    }
}

#[test]
fn without_a_policy_there_is_no_socket_and_no_program() {
    let msb = Msb::new();
    let look = "ls /run/sandbox-ctl.sock /usr/local/bin/sandbox-ctl 2>/dev/null | wc -l";
    msb.words("create -q -n plain host").ok();
    assert_eq!(inside(&msb, "plain", look).line(), "0");
    parent(&msb, &format!("{POLICY},nested"));
    assert_eq!(inside(&msb, "lead", look).line(), "2");
    assert_eq!(inside(&msb, "lead", "sandbox-ctl spawn --name child").line(), "child");
    assert_eq!(inside(&msb, "lead-child-0001", "sandbox-ctl spawn --name grand").line(), "grand");
    assert_eq!(inside(&msb, "lead-child-0001-child-0001", look).line(), "0");
    // It is no child of hers.
    assert_eq!(inside(&msb, "lead", "sandbox-ctl exec grand -- true").code, 1);
    // Nor is there anything of it in what is kept.
    msb.words("stop -f lead").ok();
    msb.words("snapshot create kept --from lead").ok();
    let gave = msb.run(["run", "-q", "snapshot:kept", "--", "sandbox-ctl", "ping"]);
    assert_ne!(gave.code, 0, "{gave:#?}");
}

#[test]
fn a_client_that_disconnects_inside_ends_its_command() {
    let msb = Msb::new();
    parent(&msb, POLICY);
    inside(&msb, "lead", "sandbox-ctl spawn --name k").ok();
    let runs = || msb.words("ps --execs lead-child-0001").stdout.contains("sleep 4321");
    msb.words("exec -d lead -- sandbox-ctl exec k --timeout 600 -- sleep 4321").ok();
    eventually("it runs", runs);
    inside(&msb, "lead", "kill -9 $(cat /proc/[0-9]*/stat | grep '(sandbox-ctl)' | cut -d' ' -f1)");
    eventually("it has ended", || !runs());
    // A child made for one command goes with it.
    msb.words("exec -d lead -- sandbox-ctl run --timeout 600 -- sleep 4321").ok();
    eventually("there is one more", || msb.words("children -q lead").line().lines().count() == 2);
    inside(&msb, "lead", "kill -9 $(cat /proc/[0-9]*/stat | grep '(sandbox-ctl)' | cut -d' ' -f1)");
    eventually("it is gone", || msb.words("children -q lead").line() == "lead-child-0001");
}

/// Names of the host are nothing that is learnt or taken from inside.
#[test]
fn a_name_that_is_chosen_inside_is_the_parents_own() {
    for msb in Msb::each() {
        parent(&msb, POLICY);
        msb.words("create -q -n taken host").ok();
        for name in ["taken", "free"] {
            let gave = inside(&msb, "lead", &format!("sandbox-ctl spawn --name {name}"));
            assert_eq!(
                (gave.code, gave.stdout, gave.stderr),
                (0, format!("{name}\n"), String::new())
            );
            let gave = inside(&msb, "lead", &format!("sandbox-ctl spawn --name {name}"));
            let said = format!("sandbox-ctl: INVALID_REQUEST: Sandbox '{name}' already exists\n");
            assert_eq!((gave.code, gave.stderr), (1, said));
        }
        assert_eq!(msb.words("children -q lead").line(), "lead-child-0001\nlead-child-0002");
        msb.words("create -q -n free host").ok();
        let said = inside(&msb, "lead", "sandbox-ctl exec taken -- echo child").line();
        assert_eq!(said, "child");
        inside(&msb, "lead", "sandbox-ctl destroy taken && sandbox-ctl destroy free").ok();
        for name in ["taken", "free"] {
            assert_eq!(msb.run(["exec", name, "--", "echo", "here"]).line(), "here");
        }
        msb.words("rm -f lead taken free").ok();
    }
}

/// A sandbox does not see its namespace, and does not get out of it.
#[test]
fn names_are_those_of_the_namespace() {
    let msb = Msb::new();
    msb.run(["create", "-q", "-n", "team--lead", "--no-net", "--spawn", POLICY, "host"]).ok();
    let script = "sandbox-ctl ping; sandbox-ctl spawn --name k; sandbox-ctl spawn; \
                  sandbox-ctl exec k -- hostname; sandbox-ctl destroy k";
    let said = inside(&msb, "team--lead", script).ok().stdout;
    assert!(
        said.starts_with("ok (parent: lead)\nk\nlead-child-0002\n") && said.ends_with("\nk\n"),
        "{said}"
    );
    assert_eq!(msb.words("children -q team--lead").line(), "team--lead-child-0002");
    inside(&msb, "team--lead", "sandbox-ctl spawn --name other--k").ok();
    let names = msb.words("children -q team--lead").line();
    assert_eq!(names, "team--lead-child-0002\nteam--lead-child-0003");
}

/// The process outside that answers a sandbox.
fn answering(msb: &Msb) -> Vec<u32> {
    let home = msb.home().display().to_string();
    let is_ours = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.starts_with("msb __ctl") && line.contains(&home)
    };
    let pids = fs::read_dir("/proc").expect("it is there").flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_ours).collect()
}

#[test]
fn a_killed_ctl_server_comes_back_with_the_next_start() {
    let msb = Msb::new();
    parent(&msb, POLICY);
    inside(&msb, "lead", "sandbox-ctl spawn --name k").ok();
    let pids = answering(&msb);
    assert_eq!(pids.len(), 1);
    signal_pid(pids[0], "KILL");
    eventually("it is dead", || answering(&msb).is_empty());
    assert_eq!(inside(&msb, "lead", "sandbox-ctl ping").code, 1);
    // What there is goes on, and is counted.
    assert_eq!(msb.words("exec lead-child-0001 -- echo on").line(), "on");
    msb.words("spawn -q -n l lead").ok();
    msb.words("stop -f lead").ok();
    msb.words("start -q lead").ok();
    let listed = inside(&msb, "lead", "sandbox-ctl list").ok().stdout;
    assert!(listed.contains("\nk ") && listed.contains("\nl "), "{listed}");
    msb.words("rm -f lead").ok();
    eventually("no ctl server is left", || answering(&msb).is_empty());
}

/// No other command is needed for it.
#[test]
fn a_parent_that_is_gone_takes_its_children_along() {
    for msb in Msb::each() {
        let script = "sandbox-ctl spawn --name k >/dev/null && echo made; read line";
        let words =
            ["run", "-q", "--rm", "-n", "lead", "--no-net", "--spawn", POLICY, "host", "--"];
        let mut command = msb.command(words.into_iter().chain(["sh", "-c", script]));
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut run = command.spawn().expect("msb can be executed");
        eventually("the child is there", || {
            msb.words("children -q lead").stdout == "lead-child-0001\n"
        });
        let processes = msb.processes("lead-child-0001");
        drop(run.stdin.take());
        run.wait().expect("it ends");
        eventually("it is gone", || !processes.iter().any(Process::is_alive));
        eventually("nothing is left", || !msb.home().join("sandboxes/lead-child-0001").exists());
        eventually("no ctl server is left", || answering(&msb).is_empty());
    }
}
