//! Attacks on shared resources: processes, memory, disk, time; and sudden death.

use msb_e2e::{Msb, Process, eventually, skip};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

/// Attack 43.
#[test]
fn a_fork_bomb_stops_at_the_limit() {
    for msb in Msb::each() {
        msb.program("bomb", include_str!("programs/bomb.c"));
        msb.lasting("web", ["--pids", "64"]);
        msb.lasting::<&str>("neighbour", []);
        let id = msb.run(["exec", "-d", "web", "--", "bomb", "forks"]).line();
        eventually("the bomb has gone off", || {
            !msb.run(["logs", "web", "--exec", &id]).stdout.is_empty()
        });
        let processes = msb.processes("web");
        assert!(processes.len() <= 64 + 2, "{} processes", processes.len());
        assert_eq!(msb.run(["exec", "neighbour", "--", "echo", "here"]).line(), "here");
        // No process more can be made inside, and yet it ends.
        msb.run(["rm", "-q", "-f", "web"]).ok();
        eventually("all of it is dead", || !processes.iter().any(Process::is_alive));
    }
}

/// Attack 43: as the first command, where there is no other process to stop it.
#[test]
fn a_fork_bomb_ends_with_its_sandbox() {
    for msb in Msb::each() {
        msb.program("bomb", include_str!("programs/bomb.c"));
        let gave = msb.shell_with(["--pids", "64", "--timeout", "2s"], "bomb forks; sleep 30");
        assert_eq!(gave.code, 124, "{gave:#?}");
        let count: u32 = gave.stdout.trim().parse().unwrap();
        assert!(count < 64, "{count}");
    }
}

/// Attack 43.
#[test]
fn a_memory_bomb_is_killed_and_reported() {
    for msb in Msb::each() {
        msb.program("bomb", include_str!("programs/bomb.c"));
        msb.lasting::<&str>("neighbour", []);
        let rootfs = msb.rootfs();
        let bomb = ["--", "bomb", "memory", "-", "400"];
        let args = [&["run", "-m", "64M", rootfs.to_str().unwrap()], &bomb[..]].concat();
        let gave = msb.run(args);
        assert_ne!(gave.code, 0, "{gave:#?}");
        assert_eq!(gave.stdout, "", "it came to its end");
        assert!(gave.stderr.contains("memory"), "{gave:#?}");
        assert_eq!(msb.run(["exec", "neighbour", "--", "echo", "here"]).line(), "here");
    }
}

/// Attack 43: files in memory are memory.
#[test]
fn memory_cannot_be_taken_as_files() {
    for msb in Msb::each() {
        msb.program("bomb", include_str!("programs/bomb.c"));
        for place in ["/dev/shm/file", "/tmp/file", "/cache/file", "/dev/file"] {
            let attack = format!("bomb memory {place} 300; sleep 1; stat -c 'held %s' {place}");
            let flags = ["-m", "64M", "--tmpfs", "/cache", "--timeout", "30s"];
            let gave = msb.shell_with(flags, &attack);
            let held = gave.stdout.lines().find_map(|line| line.strip_prefix("held "));
            let held: u64 = held.map_or(0, |bytes| bytes.parse().unwrap());
            assert!(held <= 96 << 20, "{place} holds {held} bytes: {gave:#?}");
        }
    }
}

/// Attack 43: nor as what no process and no file shows.
#[test]
fn memory_cannot_be_taken_as_segments_or_empty_files() {
    for msb in Msb::each().into_iter().chain(Msb::with_one_id()) {
        msb.program("bomb", include_str!("programs/bomb.c"));
        let gave = msb.shell_with(["-m", "64M", "--timeout", "60s"], "bomb segments");
        let held: u64 = gave.stdout.trim().parse().unwrap_or(0);
        assert!(held <= 64, "{held} MiB in segments: {gave:#?}");
        // So many empty files take 150 MiB of the kernel's memory at least.
        let gave = msb.shell_with(["-m", "64M", "--timeout", "60s"], "bomb inodes /dev/shm");
        assert_eq!(gave.stdout, "", "it came to its end: {gave:#?}");
    }
}

/// Attack 43.
#[test]
fn a_full_disk_is_the_sandboxs_own() {
    for msb in Msb::each() {
        msb.program("bomb", include_str!("programs/bomb.c"));
        let attack = "bomb memory /file 100; echo more > /other; stat -c 'held %s' /file";
        let gave = msb.shell_with(["--disk", "16M"], attack);
        let held = gave.stdout.lines().find_map(|line| line.strip_prefix("held "));
        let held: u64 = held.unwrap().parse().unwrap();
        assert!(held <= 16 << 20, "{held}");
        let small = "bomb memory /cache/file 100; stat -c 'held %s' /cache/file";
        let gave = msb.shell_with(["--tmpfs", "/cache:4M"], small);
        let held = gave.stdout.lines().find_map(|line| line.strip_prefix("held "));
        assert!(held.unwrap().parse::<u64>().unwrap() <= 4 << 20, "{gave:#?}");
        if msb.is_root() {
            msb.lasting("web", ["--disk", "16M"]);
            let gave = msb.shell_in("web", attack);
            let held = gave.stdout.lines().find_map(|line| line.strip_prefix("held "));
            assert!(held.unwrap().parse::<u64>().unwrap() <= 16 << 20, "{gave:#?}");
            let disk = used(&msb.home());
            assert!(disk <= 24 << 20, "{disk} bytes on the host");
            // Full, and yet it can be used and removed.
            assert_eq!(msb.run(["exec", "web", "--", "echo", "here"]).line(), "here");
        }
    }
}

/// Attack 43.
#[test]
fn descriptors_run_out_only_for_the_process_that_takes_them() {
    for msb in Msb::each() {
        msb.program("bomb", include_str!("programs/bomb.c"));
        msb.lasting::<&str>("web", []);
        msb.lasting::<&str>("neighbour", []);
        let few = ["exec", "--rlimit", "nofile=64:64", "web", "--", "bomb", "files"];
        assert_eq!(msb.run(few).line(), "61");
        let many: u32 = msb.run(["exec", "web", "--", "bomb", "files"]).line().parse().unwrap();
        // No more than the host's kernel gives to one process by default at most.
        assert!(many <= 1 << 20, "{many}");
        for name in ["web", "neighbour"] {
            assert_eq!(msb.run(["exec", name, "--", "echo", "here"]).line(), "here");
        }
    }
}

/// Attack 43: what the kernel counts for each user, taken by every id that there is inside.
#[test]
fn what_is_counted_for_users_is_left_to_others() {
    for msb in Msb::each().into_iter().chain(Msb::with_one_id()) {
        msb.program("counters", include_str!("programs/counters.c"));
        let on_host = msb.rootfs().join("bin/counters");
        msb.lasting::<&str>("neighbour", []);
        for what in ["inotify", "timers", "descriptors"] {
            let name = format!("greedy-{what}");
            msb.lasting::<&str>(&name, []);
            let id = msb.run(["exec", "-d", &name, "--", "counters", "take", what]).line();
            eventually("it has taken all it gets", || {
                !msb.run(["logs", &name, "--exec", &id]).stdout.is_empty()
            });
            let taken = msb.run(["logs", &name, "--exec", &id]).line();
            assert_ne!(taken, "0", "{what}: nothing was taken");
            let counts = ["exec", "neighbour", "--", "counters", "count", what];
            if what == "descriptors" {
                // A process with the greedy one's limit may fail; a worker has a higher one.
                assert_eq!(msb.run(["exec", "neighbour", "--", "echo", "here"]).line(), "here");
            } else {
                let gave = msb_e2e::gives(msb.user_command(&on_host).args(["count", what]));
                assert_eq!(gave.line(), "16", "{what} of the host's user, after {taken}");
                assert_eq!(msb.run(counts).line(), "16", "{what} of another, after {taken}");
            }
            msb.run(["rm", "-q", "-f", &name]).ok();
        }
    }
}

/// Attack 43: where no more than this was asked for.
#[test]
fn default_limits_hold() {
    for msb in Msb::each() {
        msb.lasting::<&str>("web", []);
        let hard = |name: &str, what: &str| -> u64 {
            let limits = msb.shell_in(name, "cat /proc/self/limits").ok().stdout;
            let line = limits.lines().find(|line| line.starts_with(what)).unwrap();
            line[what.len()..].split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        assert!(hard("web", "Max open files") <= 16 << 10);
        assert!(hard("web", "Max pending signals") <= 4096);
        msb.lasting("asked", ["--rlimit", "sigpending=5000:5000"]);
        assert_eq!(hard("asked", "Max pending signals"), 5000);
        let planned = &msb.json(["inspect", "web"])["plan"]["limits"];
        if planned["cgroup"]["controllers"]["memory"].is_string() {
            assert_eq!(planned["memory"]["by"], "cgroup", "{planned}");
        }
    }
}

/// Attack 44: the kernel kills a command, and not PID 1 with everything else.
#[test]
fn out_of_memory_ends_a_command_and_not_the_sandbox() {
    for msb in Msb::each() {
        msb.program("bomb", include_str!("programs/bomb.c"));
        msb.lasting("web", ["-m", "64M"]);
        let guest = msb.processes("web")[1].clone();
        // Nothing of it is in the memory of any process, so that all look alike small.
        let gave = msb.run(["exec", "web", "--", "bomb", "memory", "/dev/shm/file", "300"]);
        assert_ne!(gave.code, 0, "{gave:#?}");
        assert!(gave.stderr.contains("memory"), "{gave:#?}");
        assert!(guest.is_alive(), "the guest was killed: {gave:#?}");
        assert!(msb.run(["ls"]).stdout.contains("running"));
        msb.run(["rm", "-q", "-f", "web"]).ok();
    }
}

/// Attack 44: something inside stops whatever serves or starts something for the outside.
#[test]
fn no_caller_outside_waits_for_a_process_stopped_inside() {
    for msb in Msb::each() {
        msb.program("stopper", include_str!("programs/stopper.c"));
        msb.lasting::<&str>("web", []);
        msb.shell_in("web", "head -c 50000000 /dev/zero > /large").ok();
        let id = msb.run(["exec", "-d", "web", "--", "stopper"]).line();
        let stopped = || msb.run(["logs", "web", "--exec", &id]).stdout.lines().count();
        let copy = msb.scratch().join("copy");
        // A command that was stopped once it ran is its own, and has a time for that.
        let exec = ["exec", "--timeout", "5s", "web", "--", "true"];
        // Each of these ends, in whatever way: one that never does fails the test.
        eventually("something was stopped", || {
            msb.run(["cp", "web:/large", copy.to_str().unwrap()]);
            msb.run(exec);
            stopped() > 0
        });
        for _ in 0..3 {
            msb.run(["cp", "/etc/hostname", "web:/other"]);
            msb.run(exec);
        }
        msb.run(["stop", "-q", "-f", "web"]).ok();
    }
}

/// Attack 43.
#[test]
fn a_busy_loop_gets_its_share_and_no_more() {
    for msb in Msb::each() {
        msb.lasting("web", ["--cpus", "1"]);
        msb.lasting::<&str>("neighbour", []);
        let spin = "for i in 1 2 3 4; do while :; do :; done & done; wait";
        msb.run(["exec", "-d", "web", "--", "sh", "-c", spin]).ok();
        eventually("it spins", || msb.processes("web").len() >= 6);
        let (before, begun) = (ticks(&msb, "web"), Instant::now());
        std::thread::sleep(Duration::from_secs(2));
        let used = (ticks(&msb, "web") - before) as f64 / 100.0;
        let share = used / begun.elapsed().as_secs_f64();
        assert!(share < 1.2, "{share} processors");
        assert_eq!(msb.run(["exec", "neighbour", "--", "echo", "here"]).line(), "here");
    }
}

/// Processor time of a sandbox in hundredths of a second.
fn ticks(msb: &Msb, name: &str) -> u64 {
    let of = |process: &Process| -> Option<u64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid)).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some(fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?)
    };
    msb.processes(name).iter().filter_map(of).sum()
}

/// Attack 44.
#[test]
fn killing_the_caller_ends_an_ephemeral_sandbox() {
    for msb in Msb::each() {
        let mut run = msb.spawn(["run", msb.rootfs().to_str().unwrap(), "--", "sleep", "600"]);
        eventually("it runs", || msb.run(["ps", "--execs"]).stdout.contains("sleep"));
        let name = msb.run(["ls", "-q"]).line();
        let processes = msb.processes(&name);
        run.kill().unwrap();
        run.wait().unwrap();
        eventually("all of it is dead", || !processes.iter().any(Process::is_alive));
        nothing_is_left(&msb, &name);
        assert_eq!(msb.run(["ls", "-q"]).line(), "");
    }
}

/// Attack 44.
#[test]
fn killing_the_worker_ends_everything_and_the_next_command_says_so() {
    for msb in Msb::each() {
        let disk: &[&str] = if msb.is_root() { &["--disk", "16M"] } else { &[] };
        let name = format!("kill-{}-{}", std::process::id(), msb.uid());
        msb.lasting(&name, [&["-m", "64M", "--pids", "100"], disk].concat());
        msb.run(["exec", "-d", &name, "--", "sleep", "600"]).ok();
        msb.shell_in(&name, "echo kept > /kept; sync").ok();
        let processes = msb.processes(&name);
        assert!(processes.len() >= 3, "{processes:?}");
        processes[0].signal("KILL");
        eventually("all of it is dead", || !processes.iter().any(Process::is_alive));
        let listed = msb.run(["ls"]).ok();
        assert!(listed.stdout.contains("crashed"), "{listed:#?}");
        assert!(listed.stderr.contains(&name), "it does not say so: {listed:#?}");
        nothing_is_left(&msb, &name);
        msb.run(["start", "-q", &name]).ok();
        assert_eq!(msb.shell_in(&name, "cat /kept").line(), "kept");
    }
}

/// Attack 44.
#[test]
fn killing_the_guest_ends_everything() {
    for msb in Msb::each() {
        let name = format!("guest-{}-{}", std::process::id(), msb.uid());
        msb.lasting(&name, ["-m", "64M"]);
        msb.run(["exec", "-d", &name, "--", "sleep", "600"]).ok();
        let processes = msb.processes(&name);
        processes[1].signal("KILL");
        eventually("all of it is dead", || !processes.iter().any(Process::is_alive));
        assert_eq!(msb.run(["exec", &name, "--", "true"]).code, 125);
        nothing_is_left(&msb, &name);
    }
}

/// Attack 44: at every moment of a start, not only when it is over.
#[test]
fn a_start_that_is_killed_leaves_nothing() {
    for msb in Msb::each() {
        let rootfs = msb.rootfs();
        let volume = msb.file("volume/file", "");
        let volume = format!("{}:/volume", volume.parent().unwrap().display());
        for step in 0..24 {
            let name = format!("moment-{}-{}-{step}", std::process::id(), msb.uid());
            let verb: &[&str] =
                if step % 2 == 0 { &["create", "-q"] } else { &["run", "-d", "-q"] };
            let rest = ["-n", &name, "-m", "64M", "-v", &volume, rootfs.to_str().unwrap()];
            let mut command = msb.spawn([verb, &rest[..]].concat());
            std::thread::sleep(Duration::from_micros(1500 * step));
            let below = Process::tree(command.id());
            command.kill().unwrap();
            for process in below.iter().skip(1).filter(|process| process.is_alive()) {
                // By itself it may end first.
                let _ = Command::new("kill").args(["-9", &process.pid.to_string()]).output();
            }
            command.wait().unwrap();
            // Whatever came of it, it is listed as what it is and can be removed.
            eventually("the next command works", || msb.run(["ls"]).code == 0);
            if msb.run(["ls", "-q"]).stdout.lines().any(|line| line == name) {
                msb.run(["rm", "-q", "-f", &name]).ok();
            }
            nothing_is_left(&msb, &name);
        }
        assert_eq!(msb.run(["ls", "-q"]).line(), "");
        let left = fs::read_dir(msb.home().join("sandboxes")).unwrap().count();
        assert_eq!(left, 0, "directories without a sandbox");
    }
}

/// Attack 44: a copy that is killed half way.
#[test]
fn a_copy_that_is_killed_leaves_a_sandbox_that_works() {
    for msb in Msb::each() {
        msb.lasting::<&str>("web", []);
        let large = msb.file("large", vec![7; 64 << 20]);
        for step in 1..6 {
            let mut copy = msb.spawn(["cp", large.to_str().unwrap(), "web:/large"]);
            std::thread::sleep(Duration::from_millis(5 * step));
            let _ = copy.kill();
            copy.wait().unwrap();
            let before = msb.processes("web").len();
            assert!(before <= 3, "{before} processes");
            assert_eq!(msb.run(["exec", "web", "--", "echo", "here"]).line(), "here");
        }
    }
}

/// Neither process nor mount, cgroup or loop device speaks of a sandbox that was killed.
#[track_caller]
fn nothing_is_left(msb: &Msb, name: &str) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("proc");
    assert!(!mounts.contains(name), "{mounts}");
    eventually("its processes are gone", || {
        let all = fs::read_dir("/proc").expect("proc").filter_map(|entry| entry.ok());
        let mut lines = all.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
        !lines.any(|line| String::from_utf8_lossy(&line).contains(name))
    });
    eventually("no guest is left without its worker", || orphans().is_empty());
    msb.run(["ls", "-q"]).ok();
    let groups = Command::new("find")
        .args(["/sys/fs/cgroup", "-type", "d", "-name"])
        .arg(format!("*{name}*"))
        .output()
        .expect("find runs");
    assert_eq!(String::from_utf8_lossy(&groups.stdout), "");
    match Command::new("losetup").arg("-a").output() {
        Ok(output) => {
            let devices = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(!devices.contains(name), "{devices}");
        }
        Err(_) => skip("no losetup to look for loop devices with"),
    }
}

/// Guests with a parent that is not one of ours.
fn orphans() -> Vec<u32> {
    let all = fs::read_dir("/proc").expect("proc").filter_map(|entry| entry.ok());
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let guests = pids.filter_map(Process::find).filter(|process| process.name == "msb-guest");
    guests
        .filter(|guest| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", guest.pid)).unwrap_or_default();
            let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split(' ').nth(2));
            parent == Some("1")
        })
        .map(|guest| guest.pid)
        .collect()
}

/// Bytes that a directory takes on the disk.
fn used(directory: &std::path::Path) -> u64 {
    let output = Command::new("du").args(["-s", "-B1"]).arg(directory).output().expect("du runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().next().and_then(|bytes| bytes.parse().ok()).unwrap_or(u64::MAX)
}
