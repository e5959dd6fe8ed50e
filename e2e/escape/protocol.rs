//! Attacks on the wire: hostile clients, hostile guests, and text that is not just text.

use crate::hostile_worker::{self, frame, number, text};
use msb_e2e::{Msb, ends, eventually};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

const HELLO: u8 = 1;

fn connect(msb: &Msb, name: &str) -> UnixStream {
    let stream = UnixStream::connect(msb.home().join("sandboxes").join(name).join("worker.sock"));
    let stream = stream.expect("a worker that listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    stream.set_write_timeout(Some(Duration::from_secs(20))).expect("a limit");
    stream
}

/// The sandbox that was attacked and the one beside it go on.
#[track_caller]
fn goes_on(msb: &Msb) {
    for name in ["web", "neighbour"] {
        let begun = Instant::now();
        assert_eq!(msb.run(["exec", name, "--", "echo", "here"]).line(), "here");
        assert!(begun.elapsed() < Duration::from_secs(20), "{name} took {:?}", begun.elapsed());
    }
}

/// Memory of a worker, in kilobytes.
fn memory(msb: &Msb, name: &str) -> u64 {
    let pid = msb.processes(name)[0].pid;
    let status =
        std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a worker that runs");
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("memory of a process");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Attack 27.
#[test]
fn frames_that_make_no_sense_end_only_their_own_connection() {
    for msb in Msb::each() {
        msb.lasting::<&str>("web", []);
        msb.lasting::<&str>("neighbour", []);
        let before = memory(&msb, "web");
        let hello = |request: &[u8]| frame(HELLO, &[number(1), request.to_vec()].concat());
        let exec = |argv: &[u8]| [number(0), argv.to_vec()].concat();
        let mut attacks: Vec<Vec<u8>> = vec![
            vec![0xff; 64],
            vec![0; 64],
            vec![0xff, 0xff, 0xff, 0xff, HELLO],
            vec![0xff, 0xff, 0xff, 0x7f, HELLO, 1],
            vec![0, 0, 0x40, 0, HELLO, 1, 2, 3],
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            frame(HELLO, &[]),
            frame(HELLO, &[0xff; 4096]),
            frame(HELLO, &number(u64::MAX)),
            frame(HELLO, &[number(999), number(5)].concat()),
            hello(&number(200)),
            // A list that claims to be endless, and a text that does.
            hello(&exec(&number(u64::MAX >> 1))),
            hello(&exec(&[number(1), number(u64::MAX >> 1)].concat())),
            hello(&exec(&[number(1), text(b"\xff\xfe")].concat())),
            hello(&[number(1), number(u64::MAX)].concat()),
            hello(&[number(2), number(1), number(u64::from(u32::MAX))].concat()),
            [hello(&number(5)), hello(&number(5)), hello(&number(5))].concat(),
        ];
        // Every kind of frame as the first, and again after a proper greeting.
        for kind in 0..=255 {
            attacks.push(frame(kind, b"nonsense"));
            attacks.push([hello(&number(9)), frame(kind, b"nonsense")].concat());
        }
        for attack in &attacks {
            let mut stream = connect(&msb, "web");
            let _ = stream.write_all(attack);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let read = stream.take(1 << 20).read_to_end(&mut answer);
            // Waiting for the sandbox's end is a proper request: that one may be kept.
            let waits = attack.starts_with(&hello(&number(9)));
            let hangs = read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
            assert!(waits || !hangs, "no answer and no end: {attack:?}");
        }
        goes_on(&msb);
        let after = memory(&msb, "web");
        assert!(after < before + (32 << 10), "{before} kB before, {after} kB after");
    }
}

/// Attack 27.
#[test]
fn a_client_that_sends_a_byte_at_a_time_delays_no_other_client() {
    for msb in Msb::each() {
        msb.lasting::<&str>("web", []);
        msb.lasting::<&str>("neighbour", []);
        let whole = frame(HELLO, &[number(1), number(5)].concat());
        let slow: Vec<UnixStream> = (0..50).map(|_| connect(&msb, "web")).collect();
        for byte in &whole[..whole.len() - 1] {
            for mut stream in &slow {
                stream.write_all(&[*byte]).unwrap();
            }
            goes_on(&msb);
        }
    }
}

/// Attack 27: silence is not a right to a place in the queue.
#[test]
fn many_silent_connections_do_not_lock_others_out() {
    for msb in Msb::each() {
        msb.lasting::<&str>("web", []);
        msb.lasting::<&str>("neighbour", []);
        let path = msb.home().join("sandboxes/web/worker.sock");
        let crowd = compiled_crowd(&msb, path.to_str().unwrap());
        goes_on(&msb);
        drop(crowd);
        goes_on(&msb);
    }
}

/// Thousands of connections from processes of their own, so that our descriptors do not run out.
fn compiled_crowd(msb: &Msb, path: &str) -> Vec<KillOnDrop> {
    let program = msb_e2e::compiled("crowd", include_str!("programs/crowd.c"));
    let start = || {
        let mut child = msb
            .user_command(&program)
            .arg(path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it was just compiled");
        let mut ready = [0; 1];
        child
            .stdout
            .take()
            .expect("a pipe")
            .read_exact(&mut ready)
            .expect("it tells when it is ready");
        KillOnDrop(child)
    };
    (0..10).map(|_| start()).collect()
}

struct KillOnDrop(std::process::Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Attack 27: unread output stops its command, not its worker.
#[test]
fn a_client_that_does_not_read_delays_no_other_client() {
    for msb in Msb::each() {
        msb.lasting::<&str>("web", []);
        msb.lasting::<&str>("neighbour", []);
        let before = memory(&msb, "web");
        // The pipe of this one is not read.
        let mut deaf = msb.spawn(["exec", "web", "--", "yes"]);
        std::thread::sleep(Duration::from_secs(2));
        goes_on(&msb);
        let after = memory(&msb, "web");
        assert!(after < before + (32 << 10), "{before} kB before, {after} kB after");
        deaf.kill().unwrap();
        deaf.wait().unwrap();
        goes_on(&msb);
    }
}

/// Attack 27: a command that never ends its line fills no memory of ours and no disk of the host.
#[test]
fn output_without_end_is_bounded_on_the_host() {
    for msb in Msb::each() {
        msb.lasting::<&str>("web", []);
        let flood = "dd if=/dev/zero bs=1M count=200 2>/dev/null | tr '\\0' x";
        let before = memory(&msb, "web");
        let mut command = msb.command(["exec", "web", "--", "sh", "-c", flood]);
        assert!(command.stdout(Stdio::null()).status().unwrap().success());
        let after = memory(&msb, "web");
        assert!(after < before + (32 << 10), "{before} kB before, {after} kB after");
        let kept: u64 = std::fs::read_dir(msb.home().join("sandboxes/web"))
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap())
            .filter(std::fs::Metadata::is_file)
            .map(|meta| meta.len())
            .sum();
        assert!(kept < 64 << 20, "{kept} bytes of logs");
    }
}

/// Attack 28.
#[test]
fn a_commands_words_reach_listings_escaped() {
    let evil = "\x1b]0;owned\x07\x1b[2J\u{9b}31m\r\n\u{202e}forged";
    for msb in Msb::each() {
        msb.lasting("web", ["-e", &format!("EVIL={evil}"), "-l", "team=x"]);
        let argv = ["exec", "-d", "web", "--", "sh", "-c", "sleep 60", evil];
        msb.run(argv).ok();
        msb.run(["exec", "web", "--", "sh", "-c", "true", evil]).ok();
        for listing in [
            &["ps", "web"][..],
            &["ps", "--execs", "web"],
            &["ps", "--execs", "-a", "web"],
            &["ps", "--execs", "-a", "--json", "web"],
            &["ls"],
            &["ls", "--json"],
            &["inspect", "web"],
            &["metrics", "web"],
            &["logs", "web"],
            &["logs", "web", "--source", "system"],
            &["logs", "web", "--json"],
        ] {
            let gave = msb.run(listing).ok();
            is_plain(&format!("{listing:?}"), &gave.stdout);
            is_plain(&format!("{listing:?}"), &gave.stderr);
        }
    }
}

/// Attack 28.
#[test]
fn a_guests_words_reach_errors_escaped() {
    let evil = "/tmp/\x1b]0;owned\x07\x1b[2J\u{9b}31m\r\u{202e}forged";
    for msb in Msb::each() {
        let out = msb.scratch().join("out");
        std::fs::create_dir_all(out.join("tree").join(&evil[5..])).unwrap();
        std::fs::create_dir_all(out.join("tree").join(&evil[5..]).join("x")).unwrap();
        for path in [&out, &out.join("tree")] {
            msb.chown(path);
        }
        let rootfs = msb.rootfs();
        symlink("/nowhere", rootfs.join("dangling")).unwrap();
        msb.lasting::<&str>("web", []);
        msb.run([
            "exec",
            "web",
            "--",
            "sh",
            "-c",
            "mkdir /tree; touch \"/tree/$1\"",
            "sh",
            &evil[5..],
        ])
        .ok();
        let to = out.to_str().unwrap();
        let rootfs = rootfs.to_str().unwrap();
        let file = msb.file("file", "");
        let file = file.to_str().unwrap();
        for args in [
            &["cp", "web:/tree", to][..],
            &["cp", &format!("web:{evil}"), to],
            &["cp", &format!("web:{evil}/below"), to],
            &["cp", file, &format!("web:/dev/null/{evil}")],
            &["exec", "web", "--", evil],
            &["exec", "web", "--", &evil[5..]],
            &["exec", "-w", evil, "web", "--", "true"],
            &["exec", evil, "--", "true"],
            &["run", "-w", &format!("/dev/null{evil}"), rootfs, "--", "true"],
            &["run", "--copy", &format!("{evil}:/x"), rootfs, "--", "true"],
            &["run", "--text", &format!("/dev/null/{evil}=x"), rootfs, "--", "true"],
            &["run", "-v", &format!("{evil}:/x"), rootfs, "--", "true"],
            &["run", evil, "--", "true"],
            &["inspect", evil],
            &["rm", evil],
        ] {
            let gave = msb.run(args);
            assert_ne!(gave.code, 0, "{args:?}: {gave:#?}");
            assert_ne!(gave.stderr, "", "{args:?}");
            is_plain(&format!("{args:?}"), &gave.stderr);
            is_plain(&format!("{args:?}"), &gave.stdout);
        }
    }
}

/// Attack 28: a sandbox names files on the host, too.
#[test]
fn names_made_in_a_volume_reach_errors_escaped() {
    let evil = "\x1b]0;owned\x07\x1b[2J\u{9b}31m\r\u{202e}x";
    for msb in Msb::each() {
        let volume = msb.file("volume/file", "").parent().unwrap().to_owned();
        msb.lasting("web", ["-v", &format!("{}:/volume", volume.display())]);
        let make = "mkdir \"/volume/$1\" && chmod 000 \"/volume/$1\"";
        msb.run(["exec", "web", "--", "sh", "-c", make, "sh", evil]).ok();
        let gave = msb.run(["cp", volume.to_str().unwrap(), "web:/copy"]);
        // Root may read files of mode 0, so there is no error.
        assert_eq!(gave.code == 0, msb.is_root(), "{gave:#?}");
        is_plain("cp", &gave.stderr);
        let target = volume.join(evil).join("below");
        let gave = msb.run(["cp", "web:/etc/passwd", &format!("{}/x", target.display())]);
        assert_eq!(gave.code, 125, "{gave:#?}");
        is_plain("cp", &gave.stderr);
    }
}

/// Attack 28: what a guest that was taken over says about a failure.
#[test]
fn a_hostile_guests_failure_reaches_errors_escaped() {
    for msb in Msb::each() {
        msb.lasting::<&str>("web", []);
        let words =
            format!("read \x1b]0;owned\x07\x1b[2J\u{9b}31m\r\n\u{202e}{}", "x".repeat(9000));
        hostile_worker::answer(&msb, &hostile_worker::failure(&words));
        let out = msb.scratch().join("out");
        let gave = msb.run(["cp", "web:/x", out.to_str().unwrap()]);
        hostile_worker::restore(&msb);
        assert_eq!(gave.code, 125, "{gave:#?}");
        is_plain("cp", &gave.stderr);
        assert!(gave.stderr.len() < 2000, "{} bytes of error", gave.stderr.len());
    }
}

/// Attack 28: a log line names its source, and a command cannot forge a line of `msb`.
#[test]
fn a_command_cannot_forge_the_log() {
    for msb in Msb::each() {
        msb.lasting::<&str>("web", []);
        let forged = "printf '{\"source\":\"system\",\"time\":1,\"text\":\"forged\"}\\n\
                      \\0\\0\\0\\0system forged\\n\\r2020-01-01T00:00:00Z system forged\\n'";
        msb.shell_in("web", forged).ok();
        eventually("the output is logged", || msb.run(["logs", "web"]).stdout.contains("forged"));
        let system = msb.run(["logs", "web", "--source", "system"]).ok();
        assert!(!system.stdout.contains("forged"), "{system:#?}");
        let json = msb.run(["logs", "web", "--json"]).ok();
        for line in json.stdout.lines().filter(|line| line.contains("forged")) {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(line["source"], "stdout", "{line}");
        }
    }
}

/// No control characters, and none that turn the reading order around.
#[track_caller]
fn is_plain(what: &str, text: &str) {
    let raw = |c: &char| {
        c.is_control() && *c != '\n'
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let found: Vec<char> = text.chars().filter(raw).collect();
    assert_eq!(found, [], "{what}: {text:?}");
    assert!(!text.lines().any(|line| line.starts_with("forged")), "{what}: {text:?}");
}

/// A command's own output is its own: exactly the bytes that it wrote.
#[test]
fn a_commands_output_is_not_touched() {
    for msb in Msb::each() {
        let rootfs = msb.rootfs();
        let say = "printf '\\033[31m\\000\\377\\r\\n'";
        let mut command = msb.command(["run", rootfs.to_str().unwrap(), "--", "sh", "-c", say]);
        let output = command.stdout(Stdio::piped()).output().unwrap();
        assert_eq!(output.stdout, b"\x1b[31m\0\xff\r\n");
        let _ = ends(msb.spawn(["ls"]));
    }
}
