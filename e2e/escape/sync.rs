//! Attacks on a directory that is kept in step: from the source, and from inside.

use crate::hostile_worker::{self, REPLY, frame, number, text};
use msb_e2e::{Msb, compiled, eventually};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::thread;
use std::time::Duration;

/// Attacks 2 and 4.
#[test]
fn a_sync_reads_nothing_outside_its_source() {
    for msb in Msb::each() {
        msb.file("outside/file", "sync-secret");
        let (source, outside) = (msb.scratch().join("src"), msb.scratch().join("outside"));
        msb.file("src/real/file", "harmless");
        symlink(&outside, source.join("link")).unwrap();
        symlink("../../outside/file", source.join("real/up")).unwrap();
        let special = compiled("special", include_str!("programs/special.c"));
        assert!(msb.user_command(special).arg(&source).status().unwrap().success());
        msb.lasting::<&str>("web", []);
        msb.run(["sync", "start", "src", "web:/app"]).ok();
        // A directory that is a link at every second look.
        for round in 0..300 {
            fs::rename(source.join("real"), source.join("aside")).unwrap();
            symlink(&outside, source.join("real")).unwrap();
            thread::sleep(Duration::from_micros(round % 7 * 300));
            fs::remove_file(source.join("real")).unwrap();
            fs::rename(source.join("aside"), source.join("real")).unwrap();
            fs::write(source.join("real/file"), format!("harmless {round}")).unwrap();
        }
        fs::write(source.join("last"), "").unwrap();
        eventually("it has come to rest", || {
            let look = "cat /app/real/file; ls /app/last; find /app -name aside";
            msb.shell_in("web", look).stdout == "harmless 299/app/last\n"
        });
        let gave = msb.shell_in("web", "grep -r sync-secret /app; find /app ! -type d | sort");
        let expected = "/app/last\n/app/link\n/app/real/file\n/app/real/up";
        assert_eq!(gave.line(), expected);
    }
}

/// Attacks 1 and 2.
#[test]
fn a_sync_follows_no_link_inside_to_the_host() {
    for msb in Msb::each() {
        let canary = msb.file("canary/file", "untouched");
        let source = msb.file("src/a/file", "intruder").parent().unwrap().to_owned();
        msb.lasting::<&str>("web", []);
        msb.run(["sync", "start", "src", "web:/app"]).ok();
        let script = format!(
            "rm -r /app/a; ln -s {0} /app/a; ln -s /proc/1/root/../..{0} /app/b; \
             ln -s /proc/self/cwd/../../..{0}/file /app/file",
            canary.parent().unwrap().display()
        );
        msb.shell_in("web", &script).ok();
        for (number, name) in ["a/file", "b/file", "file", "a/last"].into_iter().enumerate() {
            let path = source.parent().unwrap().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("intruder {number}")).unwrap();
        }
        eventually("all of it is inside", || {
            msb.shell_in("web", "cat /app/a/last /app/file /app/b/file").code == 0
        });
        assert_eq!(fs::read_to_string(&canary).unwrap(), "untouched");
        assert_eq!(fs::read_dir(canary.parent().unwrap()).unwrap().count(), 1);
    }
}

/// Attacks 4 and 6. A worker that was taken over answers what it likes.
#[test]
fn a_hostile_answer_to_a_sync_is_a_clean_error() {
    for msb in Msb::each() {
        msb.lasting::<&str>("web", []);
        msb.file("src/file", "content");
        // That change number so-and-so failed, in these words, with this errno.
        let failed = |change: u64, words: &str| {
            let failure = [number(change), text(words.as_bytes()), number(4)].concat();
            frame(REPLY, &[number(4), number(1), failure].concat())
        };
        let answers: Vec<Vec<u8>> = vec![
            Vec::new(),
            vec![0xff, 0xff, 0xff, 0xff, REPLY],
            frame(REPLY, &[9, 9, 9]),
            frame(REPLY, &[number(4), number(u64::from(u32::MAX))].concat()),
            frame(hostile_worker::BYTES, b"unasked"),
            failed(99_999, "\u{1b}[2Jfar too many"),
            failed(0, "\u{1b}[2J\u{9b}31mthe first\n\nerror: of them"),
            hostile_worker::failure("\u{1b}]0;owned\u{7}"),
        ];
        for answer in answers {
            take_over(&msb, &answer);
            let gave = msb.words("sync start src web:/app");
            assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{answer:?}: {gave:#?}");
            assert!(gave.stderr.starts_with("error: "), "{answer:?}: {gave:#?}");
            let clean = |c: char| !matches!(c, '\u{1b}' | '\u{9b}' | '\u{7}');
            assert!(gave.stderr.chars().all(clean), "{answer:?}: {gave:#?}");
            assert_eq!(
                gave.stderr.matches("error: ").count(),
                1 + gave.stderr.matches("\\nerror: ").count()
            );
            assert_eq!(msb.words("sync ls -q").ok().stdout, "");
        }
        hostile_worker::restore(&msb);
    }
}

/// Is the worker of `web`: the first client gets no answer, all others get this one.
fn take_over(msb: &Msb, answer: &[u8]) {
    let path = msb.home().join("sandboxes/web/worker.sock");
    let aside = path.with_extension("aside");
    if !aside.exists() {
        fs::rename(&path, &aside).expect("the socket of a sandbox that runs");
    }
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).expect("a socket");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("its permissions");
    let answer = answer.to_vec();
    thread::spawn(move || {
        let Ok((_waits, _)) = listener.accept() else { return };
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
            while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {}
            let _ = stream.write_all(&answer);
        }
    });
}
