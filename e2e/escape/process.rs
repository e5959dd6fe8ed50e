//! Attacks on the `process` tier: what a command can reach of the processes around it.

mod init;
mod kernel;
mod missing_features;
mod mounts;

use msb_e2e::{Msb, Process, as_unprivileged_user, compiled, ends, eventually, skip};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Child, Stdio};

/// Attack 13.
#[test]
fn only_three_descriptors_are_open_in_a_command() {
    for msb in Msb::each() {
        let rootfs = msb.rootfs();
        let script = "cd /proc/self/fd && echo *";
        let gave = msb.run(["run", rootfs.to_str().unwrap(), "--", "sh", "-c", script]);
        // The shell itself opens one more to read the directory.
        assert_eq!(gave.line(), "0 1 2 3");
        msb.lasting::<&str>("web", []);
        assert_eq!(msb.shell_in("web", script).line(), "0 1 2 3");
    }
}

/// Attack 13: descriptors that the caller forgot to close are not handed on either.
#[test]
fn a_descriptor_that_the_caller_left_open_is_not_inherited() {
    for msb in Msb::each() {
        let secret = msb.file("secret", "descriptor-secret");
        let rootfs = msb.rootfs();
        let script = format!("exec 7<{} 9>>{}; exec \"$@\"", secret.display(), secret.display());
        let mut outer = msb.user_command("sh");
        outer.args(["-c", &script, "sh"]).arg(msb.binary()).args(["run"]).arg(&rootfs);
        outer.args(["--", "sh", "-c"]);
        outer.arg("cd /proc/self/fd; echo *; cat <&7; echo x >&9; cat /proc/1/fd/*");
        let gave = ends(outer.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        assert!(gave.stdout.starts_with("0 1 2 3\n"), "{gave:#?}");
        assert!(!gave.stdout.contains("descriptor-secret"), "{gave:#?}");
        assert_eq!(fs::read_to_string(&secret).unwrap(), "descriptor-secret");
    }
}

/// Attack 13.
#[test]
fn the_callers_output_file_cannot_be_truncated_or_read() {
    for msb in Msb::each() {
        let log = msb.file("caller.log", "earlier line\n");
        let attack = "for fd in 1 2; do true > /proc/$$/fd/$fd; true <> /proc/$$/fd/$fd; \
                      (cat /proc/$$/fd/$fd & sleep 0.2; kill $!) 2>/dev/null; \
                      dd if=/dev/zero of=/proc/$$/fd/$fd bs=1 count=4 2>/dev/null; done; \
                      echo end";
        let open = || File::options().append(true).open(&log).unwrap();
        let rootfs = msb.rootfs();
        let mut command = msb.command(["run", rootfs.to_str().unwrap(), "--", "sh", "-c", attack]);
        let status = command.stdout(open()).stderr(open()).status().unwrap();
        assert!(status.success(), "{status}");
        let after = fs::read_to_string(&log).unwrap();
        assert!(after.starts_with("earlier line\n"), "{after:?}");
        assert!(after.contains("end\n"), "{after:?}");
        assert_eq!(after.matches("earlier").count(), 1, "the file was read: {after:?}");
    }
}

/// Attack 13.
#[test]
fn the_directory_of_the_callers_files_cannot_be_reached() {
    for msb in Msb::each() {
        msb.file("caller/canary", "directory-secret");
        let log = msb.file("caller/log", "");
        let rootfs = msb.rootfs();
        let attack = "for dir in /proc/*/cwd /proc/*/root /proc/*/fd/*; do \
                      cat $dir/canary $dir/../canary $dir/caller/canary; done 2>/dev/null; echo end";
        let mut command = msb.command(["run", rootfs.to_str().unwrap(), "--", "sh", "-c", attack]);
        command.current_dir(msb.scratch().join("caller"));
        command.stdin(File::open(msb.scratch().join("caller/canary")).unwrap());
        let status = command.stdout(File::create(&log).unwrap()).status().unwrap();
        assert!(status.success(), "{status}");
        assert_eq!(fs::read_to_string(&log).unwrap(), "end\n");
    }
}

/// Attack 12.
#[test]
fn our_binary_cannot_be_overwritten_through_proc() {
    for msb in Msb::each() {
        let before = fs::read(msb.binary()).unwrap();
        msb.lasting::<&str>("web", []);
        let attack = "for exe in /proc/1/exe /proc/self/exe /proc/*/exe; do \
                      echo broken > $exe; dd if=/dev/zero of=$exe bs=16 count=1 conv=notrunc; \
                      chmod 777 $exe; mv $exe /tmp/stolen; rm -f $exe; done; true";
        msb.shell_in("web", attack).ok();
        // The one that is waited for is the shell itself: its file is the sandbox's own.
        let while_nothing_runs = "(sleep 0.2; echo broken > /proc/1/exe) & true";
        msb.shell_in("web", while_nothing_runs).ok();
        std::thread::sleep(std::time::Duration::from_millis(400));
        assert!(fs::read(msb.binary()).unwrap() == before, "the binary changed");
        assert_eq!(msb.run(["exec", "web", "--", "echo", "still"]).line(), "still");
        msb.run(["restart", "web"]).ok();
        assert_eq!(msb.run(["exec", "web", "--", "echo", "again"]).line(), "again");
    }
}

/// Attack 14.
#[test]
fn the_callers_keyrings_are_not_shared() {
    let keyring = compiled("keyring", include_str!("programs/keyring.c"));
    for msb in Msb::each() {
        msb.program("keyring", include_str!("programs/keyring.c"));
        let mut host = msb.user_command(&keyring);
        host.arg("plant").arg(msb.binary()).arg("run").arg(msb.rootfs());
        host.args(["--", "keyring", "steal"]);
        let gave = ends(host.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        if gave.code == 77 {
            return skip("this kernel has no keyrings");
        }
        assert_eq!(gave.line(), "tried");
        let keys = fs::read_to_string("/proc/keys").unwrap_or_default();
        assert!(!keys.contains("msb-intruder"), "{keys}");
    }
}

/// Attack 17.
#[test]
fn memory_of_processes_outside_cannot_be_touched() {
    for msb in Msb::each() {
        msb.program("memory", include_str!("programs/memory.c"));
        let bystander = Bystander::start(&msb);
        msb.lasting::<&str>("web", []);
        let mut pids: Vec<u32> = msb.processes("web").iter().map(|process| process.pid).collect();
        pids.extend([bystander.0.id(), std::process::id()]);
        let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
        for flags in [&[][..], &["--allow-userns"]] {
            let gave = msb.shell_with(flags, &format!("memory {}", pids.join(" "))).ok();
            assert!(!gave.stdout.contains("done"), "{gave:#?}");
            assert_eq!(gave.stdout.lines().count(), 8 * pids.len());
        }
        assert!(Process::find(bystander.0.id()).is_some());
    }
}

/// Attack 17: PID 1 holds the link to the worker, so its memory and descriptors are closed too.
#[test]
fn the_guest_cannot_be_traced_from_inside() {
    for msb in Msb::each() {
        msb.program("memory", include_str!("programs/memory.c"));
        let gave = msb.shell("memory 1").ok();
        assert!(!gave.stdout.contains("done"), "{gave:#?}");
    }
}

/// Attack 17: another process of the same user, perhaps in another sandbox's clothes.
#[test]
fn the_worker_is_not_dumpable() {
    let Some(msb) = Msb::as_user() else {
        return skip("needs root and MSB_TEST_USER");
    };
    let memory = compiled("memory", include_str!("programs/memory.c"));
    msb.lasting::<&str>("web", []);
    let mut run = msb.spawn(["run", msb.rootfs().to_str().unwrap(), "--", "sleep", "30"]);
    eventually("a second sandbox runs", || msb.run(["ls", "-q"]).stdout.lines().count() == 2);
    let names = msb.run(["ls", "-q"]).stdout;
    for name in names.lines() {
        let worker = msb.processes(name)[0].pid;
        let gave = msb.user_command(&memory).arg(worker.to_string()).output().unwrap();
        let said = String::from_utf8_lossy(&gave.stdout).into_owned();
        assert!(!said.contains("done"), "{name}: {said}");
        assert_eq!(said.lines().count(), 8, "{name}: {said}");
    }
    run.kill().unwrap();
    run.wait().unwrap();
}

/// Attack 19.
#[test]
fn sockets_of_the_host_cannot_be_reached() {
    for msb in Msb::each() {
        msb.program("sockets", include_str!("programs/sockets.c"));
        let name = format!("msb-canary-{}-{}", std::process::id(), msb.uid());
        let hidden = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let by_path = msb.scratch().join("agent.sock");
        let in_run = std::path::PathBuf::from(format!("/run/{name}.sock"));
        let mut listeners =
            vec![UnixListener::bind_addr(&hidden).unwrap(), UnixListener::bind(&by_path).unwrap()];
        if let Ok(listener) = UnixListener::bind(&in_run) {
            fs::set_permissions(&in_run, fs::Permissions::from_mode(0o777)).unwrap();
            listeners.push(listener);
        }
        fs::set_permissions(&by_path, fs::Permissions::from_mode(0o777)).unwrap();
        msb.lasting::<&str>("web", []);
        let own = msb.home().join("sandboxes/web/worker.sock");
        let program = msb.rootfs().join("bin/sockets");
        let attack = format!(
            "sockets @{name} {} {} {} /run/docker.sock /run/dbus/system_bus_socket",
            by_path.display(),
            in_run.display(),
            own.display()
        );
        let copied = format!("{}:/opt/sockets", program.display());
        let on_host = ["run", "--copy", &copied, "host", "--", "sh", "-c"];
        let host = msb.run([&on_host[..], &[&format!("cd /opt && ./{attack}")]].concat());
        let tries = [msb.shell(&attack), msb.shell_with(["--allow-userns"], &attack), host];
        let _ = fs::remove_file(&in_run);
        for gave in tries {
            assert_eq!(gave.line(), "tried");
        }
        for listener in &listeners {
            listener.set_nonblocking(true).unwrap();
            let error = listener.accept().expect_err("a process connected").kind();
            assert_eq!(error, ErrorKind::WouldBlock);
        }
    }
}

/// Attack 20.
#[test]
fn signals_do_not_leave_the_sandbox() {
    for msb in Msb::each() {
        let bystander = Bystander::start(&msb);
        msb.lasting::<&str>("neighbour", []);
        let neighbour = msb.processes("neighbour");
        let mut pids = vec![bystander.0.id(), std::process::id()];
        pids.extend(neighbour.iter().map(|process| process.pid));
        let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
        let attack = format!(
            "for pid in {0}; do kill -9 $pid; kill -9 -$pid; done 2>/dev/null; kill -9 -1; echo on",
            pids.join(" ")
        );
        for flags in [&[][..], &["--allow-userns"], &["-u", "33"]] {
            msb.shell_with(flags, &attack);
        }
        assert!(Process::find(bystander.0.id()).is_some(), "a process of the host was killed");
        assert!(neighbour.iter().all(Process::is_alive), "{neighbour:?}");
        assert_eq!(msb.run(["exec", "neighbour", "--", "echo", "here"]).line(), "here");
    }
}

/// Attack 20: PID 1 is the kernel's to protect, and ours to leave nothing behind.
#[test]
fn a_command_that_kills_pid_1_ends_at_most_its_own_sandbox() {
    for msb in Msb::each() {
        msb.lasting::<&str>("web", []);
        msb.lasting::<&str>("neighbour", []);
        let all = "for signal in 1 2 3 6 9 11 15 17 19 20 31 64; do kill -$signal 1; done; true";
        msb.shell_in("web", all);
        assert_eq!(msb.run(["exec", "neighbour", "--", "echo", "here"]).line(), "here");
        assert_eq!(msb.run(["exec", "web", "--", "echo", "here"]).line(), "here");
    }
}

/// Attack 22.
#[test]
fn processes_of_the_host_are_not_visible() {
    for msb in Msb::each() {
        let bystander = Bystander::start(&msb);
        let look = "cat /proc/*/cmdline /proc/*/comm /proc/*/task/*/cmdline 2>/dev/null | tr '\\0' ' '; \
                    ls /proc; ps";
        let marker = bystander.marker();
        let in_rootfs = msb.shell(look);
        let on_host = msb.run(["run", "host", "--", "sh", "-c", look]);
        for gave in [in_rootfs, on_host] {
            assert!(!gave.stdout.contains(&marker), "{gave:#?}");
            let pids: Vec<u32> =
                gave.stdout.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            assert!(!pids.contains(&bystander.0.id()), "{gave:#?}");
        }
    }
}

/// Attack 22.
#[test]
fn files_of_the_host_are_not_visible() {
    let places = ["/var/lib", "/var/tmp", "/run", "/root", "/home", "/srv", "/mnt", "/etc", "/tmp"];
    for msb in Msb::each() {
        let mut canaries = vec![Canary(msb.file("mine", "file-secret"))];
        for place in places {
            let path = std::path::Path::new(place).join(format!("msb-canary-{}", msb.uid()));
            if File::create(&path).and_then(|mut file| file.write_all(b"file-secret")).is_ok() {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
                canaries.push(Canary(path));
            }
        }
        let paths: Vec<String> =
            canaries.iter().map(|canary| canary.0.display().to_string()).collect();
        let look = format!("cat {} 2>/dev/null; true", paths.join(" "));
        assert_eq!(msb.shell(&look).line(), "");
        assert_eq!(msb.run(["run", "host", "--", "sh", "-c", &look]).line(), "");
    }
}

/// Attack 40.
#[test]
fn only_declared_variables_are_visible() {
    for msb in Msb::each() {
        let rootfs = msb.rootfs();
        let look = "env; cat /proc/*/environ /proc/*/task/*/environ 2>/dev/null | tr '\\0' '\\n'";
        let mut command = msb.command([
            "run",
            "-e",
            "DECLARED=yes",
            "-e",
            "CARRIED",
            rootfs.to_str().unwrap(),
            "--",
            "sh",
            "-c",
            look,
        ]);
        command.env("API_TOKEN", "variable-secret").env("CARRIED", "over");
        let gave = ends(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        let gave = gave.ok();
        assert!(!gave.stdout.contains("variable-secret"), "{gave:#?}");
        let mut names: Vec<&str> =
            gave.stdout.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
        names.sort_unstable();
        names.dedup();
        let own = ["CARRIED", "DECLARED", "HOME", "LANG", "MSB_SANDBOX", "PATH", "PWD", "SHLVL"];
        assert_eq!(names, own);
    }
}

/// Attack 40: nor in what we keep about the sandbox, nor in our own processes for others to read.
#[test]
fn the_callers_variables_are_not_kept() {
    for msb in Msb::each() {
        let rootfs = msb.rootfs();
        let mut command = msb.command(["create", "-q", "-n", "web", rootfs.to_str().unwrap()]);
        command.env("API_TOKEN", "variable-secret");
        ends(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()).ok();
        let found = std::process::Command::new("grep")
            .args(["-rl", "variable-secret"])
            .arg(msb.home())
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout), "");
        let worker = msb.processes("web")[0].pid;
        if let Some(mut stranger) = as_unprivileged_user("cat") {
            let read = stranger.arg(format!("/proc/{worker}/environ")).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&read.stdout), "");
        }
    }
}

/// A process of the host with the same user as the sandbox's.
struct Bystander(Child, u32);

impl Bystander {
    fn start(msb: &Msb) -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let child =
            msb.user_command("sleep").arg(format!("600.{}{number}", std::process::id())).spawn();
        Self(child.expect("sleep"), number)
    }

    fn marker(&self) -> String {
        format!("600.{}{}", std::process::id(), self.1)
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file of the host that is gone when the test is over.
struct Canary(std::path::PathBuf);

impl Drop for Canary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
