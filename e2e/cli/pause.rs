//! `msb pause`: no process runs or notices it, and a paused sandbox can be stopped and removed.

use msb_e2e::{Msb, Process, ends, eventually};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// Counts as fast as it can, and notes each SIGCONT.
const COUNTER: &str = "trap 'echo woken >> /root/woken' CONT
    n=0; while :; do n=$((n+1)); echo $n > /root/n; done";

/// Whether the sandbox is paused by its cgroup, and not by signals.
fn freezes(msb: &Msb) -> bool {
    let cgroup = &msb.json(["inspect", "box"])["plan"]["limits"]["cgroup"];
    cgroup["controllers"]["freezer"].is_string() || cgroup["freezes"] == true
}

fn counting(msb: &Msb) {
    msb.words("create -q -n box host").ok();
    msb.run(["exec", "-d", "box", "--", "sh", "-c", COUNTER]).ok();
    eventually("it counts", || {
        msb.run(["exec", "box", "--", "cat", "/root/n"]).stdout.trim().parse::<u64>().is_ok()
    });
}

#[test]
fn a_paused_sandbox_uses_no_processor_and_notices_nothing() {
    for msb in Msb::each() {
        counting(&msb);
        let sleeper = "sleep 0.2; echo slept > /root/slept";
        msb.run(["exec", "-d", "box", "--", "sh", "-c", sleeper]).ok();
        msb.words("pause box").ok();
        let count = || {
            // The guest is not paused with the others.
            msb.words("cp box:/root/n n").ok();
            fs::read_to_string(msb.scratch().join("n")).unwrap()
        };
        let used = || msb.json(["metrics", "box", "--json"])[0]["cpu_us"].as_u64().unwrap();
        let (counted, before) = (count(), used());
        std::thread::sleep(std::time::Duration::from_millis(500));
        let spent = used() - before;
        assert_eq!(count(), counted);
        // Reading a file in between is the guest's own work.
        assert!(spent < 250_000, "{spent} µs in half a second");
        msb.words("resume box").ok();
        eventually("it goes on", || {
            msb.run(["exec", "box", "--", "cat", "/root/n"]).stdout != counted
        });
        eventually("the sleeper wakes", || msb.words("exec box -- cat /root/slept").code == 0);
        if freezes(&msb) {
            assert_ne!(msb.words("exec box -- cat /root/woken").code, 0, "the pause was noticed");
        }
    }
}

#[test]
fn a_paused_sandbox_can_be_stopped_and_removed() {
    for msb in Msb::each() {
        for end in ["stop -t 5s box", "stop -f box", "rm -f box"] {
            counting(&msb);
            msb.words("pause box").ok();
            let before = msb.processes("box");
            msb.words(end).ok();
            eventually("all have ended", || !before.iter().any(Process::is_alive));
            assert_eq!(groups(&msb), Vec::<String>::new(), "{end}");
            msb.words("rm -f box");
        }
    }
}

#[test]
fn frozen_processes_of_a_killed_worker_are_cleaned_up() {
    for msb in Msb::each() {
        counting(&msb);
        msb.words("pause box").ok();
        let before = msb.processes("box");
        before[0].signal("KILL");
        eventually("the worker ends", || !before[0].is_alive());
        let gave = msb.words("ls");
        assert!(gave.stderr.contains("cleaned up after sandbox `box`"), "{gave:#?}");
        eventually("all have ended", || !before.iter().any(Process::is_alive));
        assert_eq!(groups(&msb), Vec::<String>::new());
        msb.words("start -q box").ok();
        msb.words("exec box -- true").ok();
    }
}

#[test]
fn a_health_check_interrupted_by_a_pause_is_ignored() {
    for msb in Msb::each() {
        let words = "create -q -n box --restart always --health-interval 50ms --health-timeout 4s \
                     --health-retries 1 host --health";
        let mut words: Vec<&str> = words.split_whitespace().collect();
        words.extend(["sleep 1; true", "--", "sleep", "1000"]);
        msb.run(words).ok();
        let health = || msb.json(["ls", "--json"])[0]["health"].clone();
        eventually("it is well", || health() == "healthy");
        // The next one is half done by then.
        std::thread::sleep(std::time::Duration::from_millis(300));
        msb.words("pause box").ok();
        std::thread::sleep(std::time::Duration::from_secs(5));
        msb.words("resume box").ok();
        std::thread::sleep(std::time::Duration::from_secs(2));
        assert_eq!(health(), "healthy");
        let said = msb.words("events box --json").ok().stdout;
        assert!(!said.contains("unhealthy") && !said.contains("restarted"), "{said}");
    }
}

#[test]
fn a_pause_outlives_a_copy_and_a_copy_outlives_a_resume() {
    for msb in Msb::each() {
        counting(&msb);
        let count = || {
            msb.words("cp box:/root/n n").ok();
            fs::read_to_string(msb.scratch().join("n")).unwrap()
        };
        let still = || {
            let counted = count();
            std::thread::sleep(std::time::Duration::from_millis(100));
            count() == counted
        };
        let paused = || msb.json(["inspect", "box"])["worker"]["paused"] == true;
        let (first, second) = (PauseHolder::of(&msb), PauseHolder::of(&msb));
        assert!(still() && paused());
        // With two copies the last one unfreezes it, and `msb resume` does not.
        drop(first);
        msb.words("resume box").ok();
        assert!(still());
        msb.words("pause box").ok();
        let gave = msb.words("exec box -- true");
        assert!(gave.stderr.contains("msb resume box"), "{gave:#?}");
        drop(second);
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(still() && paused());
        // One that was paused before may be resumed in the midst of a copy.
        let third = PauseHolder::of(&msb);
        msb.words("resume box").ok();
        assert!(still());
        let waits = msb.spawn(["exec", "box", "--", "true"]);
        drop(third);
        ends(waits).ok();
        eventually("it goes on", || !still());
        assert!(!paused());
        let said = msb.words("events box --json").ok().stdout;
        let told = |what: &str| said.matches(&format!("\"event\":\"{what}\"")).count();
        assert_eq!((told("paused"), told("resumed")), (1, 1), "{said}");
    }
}

/// A client that keeps the sandbox frozen for a copy, as a snapshot does.
struct PauseHolder {
    _socket: UnixStream,
}

impl PauseHolder {
    fn of(msb: &Msb) -> Self {
        let path = msb.home().join("sandboxes/box/worker.sock");
        let mut socket = UnixStream::connect(path).expect("a worker that listens");
        // The length of a hello, its kind, `msb_wire::VERSION`, and the place of `Hold` among requests.
        socket.write_all(&[2, 0, 0, 0, 1, 11, 17]).expect("a worker that hears");
        let mut answer = [0; 6];
        socket.read_exact(&mut answer).expect("an answer");
        assert_eq!(answer[..4], [1, 0, 0, 0], "a word without more, as is `Done`");
        Self { _socket: socket }
    }
}

/// The cgroups that this state directory has left.
fn groups(msb: &Msb) -> Vec<String> {
    let plan = msb.words("inspect box");
    let Ok(plan) = serde_json::from_str::<serde_json::Value>(&plan.stdout) else {
        return Vec::new();
    };
    let owner = plan["plan"]["limits"]["cgroup_owner"].as_str().unwrap_or("?").to_owned();
    let mut found = Vec::new();
    let mut places = vec![std::path::PathBuf::from("/sys/fs/cgroup")];
    while let Some(place) = places.pop() {
        let below = fs::read_dir(&place).into_iter().flatten().flatten();
        for entry in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            if entry.file_name().to_string_lossy().contains(&format!("msb-{owner}-box")) {
                found.push(entry.path().display().to_string());
            }
            places.push(entry.path());
        }
    }
    found
}
