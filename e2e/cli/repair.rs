//! Killed processes: whatever is killed, at any moment, the next command cleans up after it.

use msb_e2e::{CmdOutput, Msb, Process, ends, eventually, gives, signal_pid, skip};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// From before the worker exists until well after the command runs.
const MOMENTS: [u64; 8] = [0, 1, 2, 4, 8, 15, 30, 80];

/// What the host still holds of a sandbox: processes with its unusual name on the command line,
/// mounts, loop devices and cgroups.
fn leftovers(msb: &Msb, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("proc").flatten() {
        let cmdline = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let cmdline = String::from_utf8_lossy(&cmdline).replace('\0', " ");
        if cmdline.contains(name) {
            found.push(format!("process {}: {cmdline}", entry.file_name().display()));
        }
    }
    let scratch = &msb.scratch().display().to_string();
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("proc");
    found.extend(mounts.lines().filter(|line| line.contains(scratch)).map(str::to_owned));
    for device in fs::read_dir("/sys/block").expect("sys").flatten() {
        let file = fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        found.extend(file.contains(scratch).then_some(file));
    }
    let mut groups = vec![Path::new("/sys/fs/cgroup").to_owned()];
    while let Some(group) = groups.pop() {
        if group.file_name().is_some_and(|own| own.to_string_lossy().contains(name)) {
            found.push(group.display().to_string());
        }
        let below = fs::read_dir(group).into_iter().flatten().flatten();
        groups.extend(below.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
    }
    found
}

fn unusual(word: &str) -> String {
    format!("{word}-{}", std::process::id())
}

#[test]
fn a_killed_worker_takes_everything_with_it_and_the_next_command_says_so() {
    for msb in Msb::each() {
        let name = unusual("worker-killed");
        msb.run(["create", "-n", &name, "--memory", "256M"]).ok();
        msb.run(["exec", &name, "--", "sh", "-c", "echo said; echo kept > /kept; sync"]).ok();
        let script = "setsid sleep 1000 & sleep 1000";
        msb.run(["exec", "-d", &name, "--", "sh", "-c", script]).ok();
        let attended = msb.spawn(["exec", &name, "--", "sleep", "1000"]);
        eventually("all run", || {
            msb.processes(&name).iter().filter(|one| one.name == "sleep").count() == 3
        });
        let before = msb.processes(&name);
        before[0].signal("KILL");
        assert_eq!(ends(attended).code, 125);
        eventually("no process is left", || !before.iter().any(Process::is_alive));

        let gave = msb.words("ls").ok();
        let note = format!("note: cleaned up after sandbox `{name}`: its worker was killed\n");
        assert_eq!(gave.stderr, note);
        assert_eq!(leftovers(&msb, &name), [""; 0]);
        assert_eq!(msb.words("ls").ok().stderr, "", "once is enough");
        let inspected = msb.json(["inspect", &name]);
        assert_eq!(
            (&inspected["status"], &inspected["stopped"]["ending"]),
            (&json!("crashed"), &json!("crashed"))
        );
        assert_eq!(msb.run(["logs", &name]).stdout, "said\n");
        msb.run(["start", &name]).ok();
        assert_eq!(msb.run(["exec", &name, "--", "cat", "/kept"]).line(), "kept");
    }
}

#[test]
fn a_killed_worker_with_a_disk_of_its_own_leaves_no_device() {
    let msb = Msb::new();
    if !msb.is_root() {
        return skip("a limited disk that lasts needs root");
    }
    let name = unusual("disk-killed");
    msb.run(["create", "-n", &name, "--disk", "16M"]).ok();
    msb.run(["exec", &name, "--", "sh", "-c", "echo kept > /kept; sync"]).ok();
    let before = msb.processes(&name);
    before[0].signal("KILL");
    eventually("no process is left", || !before.iter().any(Process::is_alive));
    msb.words("ls").ok();
    eventually("nothing is left", || leftovers(&msb, &name).is_empty());
    msb.run(["start", &name]).ok();
    assert_eq!(msb.run(["exec", &name, "--", "cat", "/kept"]).line(), "kept");
}

#[test]
fn every_verb_repairs_first() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        msb.words("create -n other").ok();
        for verb in ["ls", "ps", "inspect box", "start box", "logs box", "exec other -- true"] {
            msb.words("start -q box").ok();
            let before = msb.processes("box");
            before[0].signal("KILL");
            eventually("it is dead", || !before.iter().any(Process::is_alive));
            let gave = msb.words(verb).ok();
            let told = gave.stderr + &msb.words("ls").ok().stderr;
            assert_eq!(told.matches("its worker was killed").count(), 1, "{verb}: {told}");
        }
    }
}

#[test]
fn a_killed_run_leaves_nothing_whatever_the_moment() {
    for msb in Msb::each() {
        let name = unusual("run-killed");
        for moment in MOMENTS {
            let script = format!("exec -a {name} sleep 1000 & exec -a {name} sleep 1000");
            let mut child = msb.spawn(["run", "--memory", "256M", "--", "bash", "-c", &script]);
            std::thread::sleep(Duration::from_millis(moment));
            let before = Process::tree(child.id());
            child.kill().unwrap();
            child.wait().unwrap();
            eventually("no process is left", || {
                !before.iter().any(Process::is_alive) && leftovers(&msb, &name).is_empty()
            });
            msb.words("ls").ok();
            let left = || fs::read_dir(msb.home().join("sandboxes")).into_iter().flatten().next();
            eventually("no directory is left", || left().is_none());
        }
    }
}

#[test]
fn a_killed_create_is_whole_or_absent_whatever_the_moment() {
    for msb in Msb::each() {
        let name = unusual("create-killed");
        for moment in MOMENTS {
            let mut child = msb.spawn(["create", "-n", &name, "--text", "/patched=yes"]);
            std::thread::sleep(Duration::from_millis(moment));
            child.kill().unwrap();
            child.wait().unwrap();
            // On a busy machine it may still be on its way to its end.
            std::thread::sleep(Duration::from_millis(500));
            let listed = msb.words("ls -q").ok().stdout;
            if listed.is_empty() {
                msb.run(["create", "-n", &name, "--text", "/patched=yes"]).ok();
            } else {
                assert_eq!(listed, format!("{name}\n"));
                msb.run(["start", "-q", &name]).ok();
            }
            let gave = msb.run(["exec", &name, "--", "cat", "/patched"]);
            assert_eq!(gave.line(), "yes", "after {moment} ms");
            let before = msb.processes(&name);
            msb.run(["rm", "-f", &name]).ok();
            eventually("nothing is left", || {
                !before.iter().any(Process::is_alive) && leftovers(&msb, &name).is_empty()
            });
        }
    }
}

#[test]
fn a_killed_rm_or_stop_can_be_done_again() {
    for msb in Msb::each() {
        let name = unusual("rm-killed");
        for moment in MOMENTS {
            msb.run(["create", "-n", &name, "--replace"]).ok();
            let before = msb.processes(&name);
            let verb = if moment % 2 == 0 { ["stop", "-f", &name] } else { ["rm", "-f", &name] };
            let mut child = msb.spawn(verb);
            std::thread::sleep(Duration::from_millis(moment));
            child.kill().unwrap();
            child.wait().unwrap();
            msb.run(["rm", "-f", &name]);
            assert_eq!(msb.words("ls -q").ok().stdout, "", "after {moment} ms");
            eventually("nothing is left", || {
                !before.iter().any(Process::is_alive) && leftovers(&msb, &name).is_empty()
            });
        }
    }
}

#[test]
fn a_killed_exec_ends_its_command_and_only_that() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        for moment in MOMENTS {
            let mut child = msb.spawn(["exec", "box", "--", "sh", "-c", "sleep 1000 & sleep 1000"]);
            std::thread::sleep(Duration::from_millis(moment));
            child.kill().unwrap();
            child.wait().unwrap();
            let runs = |one: &Process| matches!(one.name.as_str(), "sleep" | "sh");
            eventually("its processes end", || {
                msb.json(["ps", "box", "--execs", "--json"]) == json!([])
                    && !msb.processes("box").iter().any(runs)
            });
        }
        assert_eq!(msb.words("exec box -- echo works").line(), "works");
    }
}

#[test]
fn a_killed_child_of_the_guest_is_that_commands_end_only() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let other = msb.words("exec -d box -- sleep 2000").line();
        let child = msb.spawn(["exec", "box", "--", "sleep", "1000"]);
        let is_ours = |process: &Process| {
            let cmdline = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
            cmdline == b"sleep\x001000\0"
        };
        eventually("it runs", || msb.processes("box").iter().any(is_ours));
        msb.processes("box").into_iter().find(is_ours).unwrap().signal("KILL");
        assert_eq!(ends(child).code, 137);
        assert_eq!(msb.json(["ps", "box", "--execs", "--json"])[0]["id"].to_string(), other);
    }
}

#[test]
fn a_killed_guest_ends_the_sandbox_and_is_reported() {
    for msb in Msb::each() {
        let name = unusual("guest-killed");
        msb.run(["create", "-n", &name]).ok();
        let attended = msb.spawn(["exec", &name, "--", "sleep", "1000"]);
        eventually("it runs", || msb.processes(&name).iter().any(|one| one.name == "sleep"));
        let before = msb.processes(&name);
        before[1].signal("KILL");
        assert_ne!(ends(attended).code, 0);
        eventually("no process is left", || !before.iter().any(Process::is_alive));
        assert_eq!(msb.json(["inspect", &name])["stopped"]["ending"], "crashed");
        assert_eq!(leftovers(&msb, &name), [""; 0]);
        msb.run(["start", &name]).ok();
        assert_eq!(msb.run(["exec", &name, "--", "echo", "works"]).line(), "works");
    }
}

#[test]
fn a_worker_that_is_asked_to_end_stops_the_sandbox() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let before = msb.processes("box");
        before[0].signal("TERM");
        eventually("no process is left", || !before.iter().any(Process::is_alive));
        assert_eq!(msb.json(["inspect", "box"])["stopped"]["ending"], "stopped");
    }
}

#[test]
fn a_created_sandbox_outlives_the_terminal_it_was_made_at() {
    for msb in Msb::each() {
        let mut shell = msb.user_command("sh");
        let script = "\"$0\" create -n box && kill -HUP 0; sleep 1000";
        shell.args(["-c", script]).arg(msb.binary());
        std::os::unix::process::CommandExt::process_group(&mut shell, 0);
        ends(shell.stdout(Stdio::piped()).spawn().unwrap());
        assert_eq!(msb.words("exec box -- echo works").line(), "works");
    }
}

#[test]
fn a_broken_plan_in_the_state_directory_harms_no_other_sandbox() {
    for msb in Msb::each() {
        msb.words("create -n good").ok();
        msb.words("create -n bad").ok();
        msb.words("stop bad").ok();
        for content in ["", "{", "\0\0\0", "null"] {
            fs::write(msb.home().join("sandboxes/bad/plan.json"), content).unwrap();
            assert_eq!(msb.words("exec good -- echo works").line(), "works");
            assert!(msb.words("ls -q").ok().stdout.lines().any(|name| name == "good"));
            let gave = msb.words("start bad");
            assert_eq!((gave.code, gave.stderr.starts_with("error: ")), (125, true), "{gave:?}");
        }
        msb.words("rm -f bad").ok();
        assert_eq!(msb.words("ls -q").line(), "good");
    }
}

/// A small file system of memory, for as long as this lives.
struct SmallTmpfs<'a>(&'a Path);

impl<'a> SmallTmpfs<'a> {
    fn mount(at: &'a Path, options: &str) -> Self {
        fs::create_dir(at).expect("a directory");
        let status = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(at)
            .status();
        assert!(status.is_ok_and(|status| status.success()), "mount");
        Self(at)
    }

    /// Runs msb with its home there.
    fn run(&self, msb: &Msb, args: &[&str]) -> CmdOutput {
        let mut command = msb.command(args);
        command.env("MSB_HOME", self.0.join("home"));
        gives(&mut command)
    }
}

impl Drop for SmallTmpfs<'_> {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_is_reported_clearly_and_loses_nothing() {
    let msb = Msb::new();
    if !msb.is_root() {
        return skip("only root can mount a small file system");
    }
    let (image, small) = (msb.rootfs(), msb.scratch().join("small"));
    let mounted = SmallTmpfs::mount(&small, "size=1M,mode=700");
    let run = |args: &[&str]| mounted.run(&msb, args);
    let image = image.to_str().unwrap();
    run(&["create", "-n", "box", image]).ok();
    run(&["exec", "box", "--", "sh", "-c", "echo kept > /kept"]).ok();
    fs::write(small.join("filler"), vec![b'x'; 2 << 20]).unwrap_err();
    let gave = run(&["create", "-n", "other", image]);
    assert_eq!((gave.code, gave.stdout.as_str()), (125, ""));
    assert!(gave.stderr.contains("o space left on device"), "{gave:?}");
    assert_eq!(run(&["exec", "box", "--", "cat", "/kept"]).line(), "kept");
    let inside = run(&["exec", "box", "--", "sh", "-c", "dd if=/dev/zero of=/big bs=1k count=2k"]);
    assert!(inside.stderr.contains("No space left on device"), "{inside:?}");
    assert_eq!(run(&["stop", "box"]).code, 0);
    assert_eq!(run(&["ls", "-q"]).line(), "box");

    fs::remove_file(small.join("filler")).unwrap();
    run(&["start", "box"]).ok();
    assert_eq!(run(&["exec", "box", "--", "cat", "/kept"]).line(), "kept");
    run(&["rm", "-f", "box"]).ok();
}

#[test]
fn events_wait_for_room_on_a_full_disk() {
    let msb = Msb::new();
    if !msb.is_root() {
        return skip("only root can mount a small file system");
    }
    let (image, small) = (msb.rootfs(), msb.scratch().join("small"));
    let mounted = SmallTmpfs::mount(&small, "size=1M,mode=700");
    let run = |args: &[&str]| mounted.run(&msb, args);
    run(&["create", "-n", "box", image.to_str().unwrap()]).ok();
    // A line that begins in the last page of the file goes on in one that is not there.
    let long = "x".repeat(3000);
    fs::write(small.join("filler"), vec![b'x'; 2 << 20]).unwrap_err();
    for _ in 0..3 {
        run(&["exec", "box", "--", "true", &long]).ok();
    }
    let written = fs::read(small.join("home/sandboxes/box/events.log")).unwrap();
    assert_eq!(written.last(), Some(&b'\n'), "a part of a line");
    fs::remove_file(small.join("filler")).unwrap();
    run(&["exec", "box", "--", "true"]).ok();
    run(&["events", "verify"]).ok();
    let told = run(&["events", "box", "--json"]).ok().stdout;
    assert_eq!(told.matches("\"exec_started\"").count(), 4, "{told}");
    run(&["rm", "-f", "box"]).ok();
}

#[test]
fn a_read_only_home_is_reported_clearly_and_still_lists() {
    let msb = Msb::new();
    if !msb.is_root() {
        return skip("only root can make a file system read-only");
    }
    let small = msb.scratch().join("small");
    let mounted = SmallTmpfs::mount(&small, "size=16M,mode=700");
    let image = msb.rootfs();
    let run = |args: &[&str]| mounted.run(&msb, args);
    run(&["create", "-n", "box", image.to_str().unwrap()]).ok();
    run(&["stop", "box"]).ok();
    let remount = || {
        let mut mount = std::process::Command::new("mount");
        mount.args(["-o", "remount,ro"]).arg(&small).status().unwrap().success()
    };
    // The kernel takes down the sandbox's own mounts in its own time, and until then it is busy.
    assert!((0..100).any(|_| {
        let done = remount();
        std::thread::sleep(std::time::Duration::from_millis(if done { 0 } else { 50 }));
        done
    }));
    for args in [
        &["run", image.to_str().unwrap(), "--", "true"][..],
        &["create", "-n", "other", image.to_str().unwrap()],
        &["start", "box"],
        &["rm", "box"],
    ] {
        let gave = run(args);
        assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{args:?}");
        assert!(gave.stderr.contains("ead-only file system"), "{args:?}: {gave:?}");
    }
    assert_eq!(run(&["ls", "-q"]).line(), "box");
    assert_eq!(run(&["inspect", "box"]).code, 0);
}

#[test]
fn a_home_that_others_can_enter_is_refused() {
    for msb in Msb::each() {
        use std::os::unix::fs::PermissionsExt;
        let open = msb.scratch().join("open");
        fs::create_dir(&open).unwrap();
        msb.chown(&open);
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let mut command = msb.command(["ls"]);
        let gave = msb_e2e::CmdOutput::from(command.env("MSB_HOME", &open).output().unwrap());
        assert_eq!(gave.code, 125);
        assert!(gave.stderr.contains("hint:"), "{gave:?}");
    }
}

#[test]
fn a_signal_to_a_run_is_for_its_command() {
    for msb in Msb::each() {
        let script = "trap 'echo int; exit 5' INT; echo up; while :; do sleep 0.05; done";
        let child = msb.spawn(["run", "-n", "job", "--", "sh", "-c", script]);
        eventually("it is up", || msb.run(["logs", "job"]).stdout == "up\n");
        signal_pid(child.id(), "INT");
        let gave = ends(child);
        assert_eq!((gave.code, gave.stdout.as_str()), (5, "up\nint\n"));
    }
}

#[test]
fn a_running_sandbox_with_a_damaged_plan_can_be_removed() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let before = msb.processes("box");
        fs::write(msb.home().join("sandboxes/box/plan.json"), "junk").unwrap();
        msb.words("rm -f box").ok();
        eventually("nothing is left", || !before.iter().any(Process::is_alive));
        assert!(!msb.home().join("sandboxes/box").exists());
    }
}

#[test]
fn the_doctor_repairs_what_the_next_command_would() {
    for msb in Msb::each() {
        let nothing = "nothing had to be put in order";
        assert_eq!(msb.words("doctor --repair").line(), nothing);
        for name in ["one", "two"] {
            msb.run(["create", "-q", "-n", name]).ok();
        }
        let worker = |name: &str| {
            let pid = msb.json(["inspect", name])["worker"]["pid"].as_u64().expect("a worker");
            u32::try_from(pid).expect("a pid")
        };
        let workers = ["one", "two"].map(worker);
        workers.iter().for_each(|pid| signal_pid(*pid, "KILL"));
        let is_there = |pid: &u32| Path::new(&format!("/proc/{pid}/fd/0")).exists();
        eventually("both have let go", || !workers.iter().any(is_there));
        let said = msb.words("doctor --repair").line();
        for name in ["one", "two"] {
            assert!(said.contains(&format!("cleaned up after sandbox `{name}`")), "{said}");
        }
        assert_eq!(msb.words("ls").ok().stderr, "");
        assert_eq!(msb.words("doctor --repair").line(), nothing);
        assert_eq!(msb.json(["doctor", "--repair", "--json"]), json!([]));
        msb.words("start -q one").ok();
    }
}
