//! Every kind of file change, many at once, and odd ones.

use super::{SyncFixture, meet, says};
use msb_e2e::{Msb, eventually, signal_pid};
use serde_json::json;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Stdio;

fn mode(mode: u32) -> Permissions {
    Permissions::from_mode(mode)
}

#[test]
fn whatever_changes_outside_changes_inside() {
    for synced in SyncFixture::each(&[]) {
        synced.meet();
        synced.write("new", "new");
        synced.write("x/y/z/new", "deeper");
        synced.meet();
        synced.write("top", "changed");
        fs::set_permissions(synced.at("a/deep/file"), mode(0o755)).unwrap();
        fs::set_permissions(synced.at("x/y"), mode(0o750)).unwrap();
        symlink("a/deep/file", synced.at("link")).unwrap();
        symlink("/no/such/thing", synced.at("x/dangling")).unwrap();
        symlink("..", synced.at("x/up")).unwrap();
        synced.meet();
        fs::remove_file(synced.at("new")).unwrap();
        fs::remove_dir_all(synced.at("x/y")).unwrap();
        fs::remove_file(synced.at("link")).unwrap();
        synced.meet();
        fs::rename(synced.at("top"), synced.at("a/bottom")).unwrap();
        fs::rename(synced.at("a"), synced.at("x/b")).unwrap();
        synced.write("x/b/deep/after", "written where it is now");
        synced.meet();
        // Out of the tree and into it, and one kind in the place of another.
        fs::rename(synced.at("x/b/deep"), synced.msb.scratch().join("outside")).unwrap();
        synced.meet();
        fs::rename(synced.msb.scratch().join("outside"), synced.at("back")).unwrap();
        fs::write(synced.at("back/file"), "it is watched again").unwrap();
        fs::remove_dir_all(synced.at("x")).unwrap();
        fs::write(synced.at("x"), "a file now").unwrap();
        synced.meet();
        fs::remove_file(synced.at("x")).unwrap();
        fs::create_dir(synced.at("x")).unwrap();
        symlink("x", synced.at("y")).unwrap();
        synced.meet();
        fs::remove_file(synced.at("y")).unwrap();
        fs::create_dir(synced.at("y")).unwrap();
        synced.write("y/z", "below what was a link");
        synced.meet();
        let status = synced.listed();
        assert_eq!((&status["failures"], &status["last_error"]), (&json!(0), &json!(null)));
    }
}

#[test]
fn what_is_renamed_outside_is_renamed_inside() {
    for synced in SyncFixture::each(&[]) {
        let inode = |path: &str| synced.inside(&format!("stat -c %i /app/{path}"));
        let (file, directory) = (inode("top"), inode("a"));
        synced.inside("echo own > /app/a/own");
        fs::rename(synced.at("top"), synced.at("other")).unwrap();
        fs::rename(synced.at("a"), synced.at("b")).unwrap();
        let is_there = |path: &str| synced.msb.run(["exec", "box", "--", "ls", path]).code == 0;
        eventually("the directory is renamed", || is_there("/app/b") && is_there("/app/other"));
        eventually("the old names are gone", || !is_there("/app/a") && !is_there("/app/top"));
        assert_eq!((inode("other"), inode("b")), (file, directory));
        assert_eq!(synced.inside("cat /app/b/own /app/b/deep/file"), "own\ndeep");
        synced.inside("rm /app/b/own");
        // Names that change places, so that no renaming alone is right.
        fs::rename(synced.at("b"), synced.at("tmp")).unwrap();
        fs::rename(synced.at("other"), synced.at("b")).unwrap();
        fs::rename(synced.at("tmp"), synced.at("other")).unwrap();
        says(&synced.msb, "/app/b", "top");
        says(&synced.msb, "/app/other/deep/file", "deep");
    }
}

#[test]
fn what_the_sandbox_made_stays() {
    for synced in SyncFixture::each(&[]) {
        synced.inside("mkdir -p /app/a/deep/own; echo own > /app/a/deep/own/file; echo o > /app/o");
        fs::remove_dir_all(synced.at("a")).unwrap();
        synced.write("done", "");
        says(&synced.msb, "/app/done", "");
        eventually("what was sent is gone", || {
            synced.names() == ["a", "a/deep", "a/deep/own", "a/deep/own/file", "done", "o", "top"]
        });
        // What it broke is mended when it changes outside.
        synced.inside("rm /app/top; mkdir -p /app/top/in-the-way");
        synced.write("top", "again");
        eventually("it is told", || synced.listed()["failures"] == 1);
        let error = synced.listed()["last_error"].to_string();
        assert!(error.contains("/app/top") && error.contains("directory"), "{error}");
        synced.inside("rm -r /app/top");
        says(&synced.msb, "/app/top", "again");
        eventually("nothing fails any more", || synced.listed()["failures"] == 0);
    }
}

/// Whatever the number of changes between two looks at what has happened: the last are not kept for the next.
#[test]
fn a_directory_of_any_size_arrives_by_itself() {
    let synced = SyncFixture::new(msb_e2e::Msb::new(), &[]);
    for count in [62, 63, 64, 127] {
        let aside = synced.msb.scratch().join("aside");
        fs::create_dir(&aside).unwrap();
        for number in 0..count {
            fs::write(aside.join(number.to_string()), "new").unwrap();
        }
        fs::rename(aside, synced.at(&format!("of-{count}"))).unwrap();
        synced.meet();
    }
}

#[test]
fn ten_thousand_files_at_once_all_arrive() {
    for synced in SyncFixture::each(&[]) {
        // As a checkout does it: written under another name, then renamed; some again, some away.
        for number in 0..10_000 {
            let directory = synced.at(&format!("tree/{}/{}", number % 10, number / 10 % 20));
            fs::create_dir_all(&directory).unwrap();
            let draft = directory.join("draft");
            fs::write(&draft, format!("file {number}")).unwrap();
            fs::rename(&draft, directory.join(format!("f{number}"))).unwrap();
        }
        for number in (0..10_000).step_by(7) {
            let path = format!("tree/{}/{}/f{number}", number % 10, number / 10 % 20);
            fs::remove_file(synced.at(&path)).unwrap();
        }
        fs::rename(synced.at("tree/3"), synced.at("tree/three")).unwrap();
        fs::remove_dir_all(synced.at("tree/4")).unwrap();
        for number in 0..20 {
            synced.write(&format!("tree/three/{number}/last"), "last");
        }
        synced.meet();
        fs::rename(synced.at("tree"), synced.at("moved")).unwrap();
        synced.meet();
        fs::remove_dir_all(synced.at("moved")).unwrap();
        synced.meet();
        let status = synced.listed();
        assert_eq!((&status["failures"], &status["files"]), (&json!(0), &json!(2)));
    }
}

/// xorshift64: the same numbers every time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    /// One of few paths, so that they meet each other often.
    fn path(&mut self) -> String {
        let names = ["a", "b", "c", "a-b", "a0"];
        let depth = 1 + self.below(3);
        let path: Vec<&str> = (0..depth).map(|_| names[self.below(names.len())]).collect();
        path.join("/")
    }
}

#[test]
fn whatever_is_done_both_sides_meet() {
    for (synced, seed) in SyncFixture::each(&[]).into_iter().zip([0x9e37_79b9, 0x7f4a_7c15]) {
        let mut numbers = Numbers(seed);
        for round in 0..12 {
            for step in 0..150 {
                let (path, other) = (synced.at(&numbers.path()), synced.at(&numbers.path()));
                // Much of it fails, because something else is there or nothing is.
                let _ = match numbers.below(9) {
                    0 | 1 => fs::write(&path, format!("{round} {step}")),
                    2 => fs::create_dir_all(&path),
                    3 => fs::remove_file(&path),
                    4 => fs::remove_dir_all(&path),
                    5 | 6 => fs::rename(&path, &other),
                    7 => symlink(format!("{step}"), &path),
                    _ if path.is_symlink() => Ok(()),
                    _ => fs::set_permissions(&path, mode([0o755, 0o775][numbers.below(2)])),
                };
                if numbers.below(40) == 0 {
                    // So that some of it is seen half way.
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
            }
            synced.meet();
        }
        assert_eq!(synced.listed()["failures"], 0);
    }
}

#[test]
fn more_events_than_the_kernel_keeps_lose_nothing() {
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    for synced in SyncFixture::each(&[]) {
        synced.write("there/before", "before");
        synced.write("there/same-size", "one");
        says(&synced.msb, "/app/there/before", "before");
        let pid = u32::try_from(synced.listed()["pid"].as_u64().unwrap()).unwrap();
        signal_pid(pid, "STOP");
        // Each is an event of its own, because no two in a row are the same.
        for _ in 0..limit / 2 + 1 {
            fs::set_permissions(synced.at("top"), mode(0o600)).unwrap();
            fs::set_permissions(synced.at("a"), mode(0o700)).unwrap();
        }
        fs::write(synced.at("there/same-size"), "two").unwrap();
        fs::remove_file(synced.at("there/before")).unwrap();
        fs::rename(synced.at("there"), synced.at("elsewhere")).unwrap();
        synced.write("new/deep/file", "new");
        fs::set_permissions(synced.at("a"), mode(0o755)).unwrap();
        signal_pid(pid, "CONT");
        synced.meet();
        synced.write("elsewhere/later", "it is still watched");
        synced.meet();
    }
}

#[test]
fn a_file_that_changes_while_it_is_read_is_whole_in_the_end() {
    for synced in SyncFixture::each(&[]) {
        let mut file = File::create(synced.at("log")).unwrap();
        for round in 0..200 {
            file.write_all(&vec![b'a' + round % 26; 40_000]).unwrap();
            if round % 50 == 49 {
                // Truncated while it is read.
                file.set_len(u64::from(round) * 1000).unwrap();
            }
            let place = synced.at("replaced");
            fs::write(synced.at("draft"), vec![b'A' + round % 26; 300_000]).unwrap();
            fs::rename(synced.at("draft"), place).unwrap();
        }
        synced.meet();
        assert_eq!(synced.listed()["failures"], 0);
    }
}

#[test]
fn no_draft_is_ever_seen_where_the_file_is() {
    for synced in SyncFixture::each(&[]) {
        let whole = "x".repeat(2_000_000);
        synced.write("big", &whole);
        says(&synced.msb, "/app/big", &whole);
        let script = "while [ ! -e /app/stop ]; do stat -c %s /app/big; done | sort -u";
        let mut watching = synced.msb.command(["exec", "box", "--", "sh", "-c", script]);
        let watching = watching.stdout(Stdio::piped()).spawn().unwrap();
        for letter in ["a", "b", "c", "d"] {
            // Renamed into place: a file that is written there is empty at first, and may be copied so.
            let next = synced.msb.scratch().join("next");
            fs::write(&next, letter.repeat(2_000_000)).unwrap();
            fs::rename(&next, synced.at("big")).unwrap();
            says(&synced.msb, "/app/big", &letter.repeat(2_000_000));
        }
        synced.write("stop", "");
        assert_eq!(msb_e2e::ends(watching).line(), "2000000");
        synced.meet();
    }
}

#[test]
fn odd_names_arrive_and_disturb_no_terminal() {
    let odd: [&[u8]; 7] =
        [b"two\nlines", b"\xff\xfe invalid", b"-rf", b"a:b", b" ", b"esc\x1b[31mred", &[b'n'; 255]];
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let source = msb.scratch().join(OsStr::from_bytes(b"odd\xff\x1b[31m"));
        fs::create_dir(&source).unwrap();
        msb.chown(&source);
        let mut command = msb.command(["sync", "start", "--quiet"]);
        command.arg(&source).arg("box:/odd\u{1b}[32m");
        msb_e2e::gives(&mut command).ok();
        for name in odd {
            let directory = source.join(OsStr::from_bytes(name));
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join(OsStr::from_bytes(name)), name).unwrap();
        }
        // As root inside this cannot be replaced by a file, so it is in the list of errors.
        meet(&msb, &source, "/odd\u{1b}[32m");
        msb.run(["exec", "box", "--", "sh", "-c", "mkdir -p /odd*/esc*/new*/x"]).ok();
        fs::write(source.join(OsStr::from_bytes(b"esc\x1b[31mred/new\x1b[31m")), "").unwrap();
        for flags in [&["sync", "ls"][..], &["sync", "ls", "--json"]] {
            let gave = msb.run(flags).ok();
            assert!(!gave.stdout.contains('\x1b') && gave.stdout.contains("odd"), "{gave:?}");
        }
    }
}

#[test]
fn read_only_directories_are_filled_all_the_same() {
    for msb in Msb::each() {
        msb.words("create -n box --security restricted").ok();
        msb.file("src/closed/file", "one");
        let (source, closed) = (msb.scratch().join("src"), msb.scratch().join("src/closed"));
        fs::set_permissions(&closed, mode(0o555)).unwrap();
        msb.words("sync start src box:/tmp/app").ok();
        meet(&msb, &source, "/tmp/app");
        fs::set_permissions(&closed, mode(0o755)).unwrap();
        fs::write(closed.join("file"), "two").unwrap();
        fs::write(closed.join("more"), "more").unwrap();
        fs::set_permissions(&closed, mode(0o555)).unwrap();
        meet(&msb, &source, "/tmp/app");
        fs::set_permissions(&closed, mode(0o755)).unwrap();
    }
}

#[test]
fn unreadable_files_are_reported_and_stop_nothing() {
    for msb in Msb::each() {
        if msb.is_root() {
            // Root can read everything.
            continue;
        }
        msb.words("create -n box").ok();
        msb.file("src/good", "good");
        let secret = msb.file("src/secret", "secret");
        let closed = msb.file("src/closed/in", "in").parent().unwrap().to_owned();
        fs::set_permissions(&secret, mode(0o000)).unwrap();
        fs::set_permissions(&closed, mode(0o000)).unwrap();
        let gave = msb.words("sync start src box:/app").ok();
        assert!(gave.stderr.contains("cannot read `secret`: permission denied"), "{gave:?}");
        assert_eq!(msb.words("exec box -- cat /app/good").line(), "good");
        let status = &msb.json(["sync", "ls", "--json"])[0];
        assert_eq!((&status["failures"], &status["state"]), (&json!(2), &json!("watching")));
        let listed = msb.words("sync ls").ok().stdout;
        assert!(
            listed.contains("cannot read `closed`: permission denied (and 1 more)"),
            "{listed}"
        );
        fs::set_permissions(&secret, mode(0o644)).unwrap();
        fs::set_permissions(&closed, mode(0o755)).unwrap();
        meet(&msb, &msb.scratch().join("src"), "/app");
        eventually("nothing fails any more", || {
            msb.json(["sync", "ls", "--json"])[0]["failures"] == 0
        });
    }
}

#[test]
fn devices_and_pipes_are_left_out() {
    for synced in SyncFixture::each(&[]) {
        let pipe = synced.at("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let _socket = std::os::unix::net::UnixListener::bind(synced.at("socket")).unwrap();
        synced.write("after", "after");
        says(&synced.msb, "/app/after", "after");
        assert_eq!(synced.names(), ["a", "a/deep", "a/deep/file", "after", "top"]);
    }
}

#[test]
fn files_removed_while_no_sync_ran_are_removed_by_the_next_sync() {
    for synced in SyncFixture::each(&[]) {
        synced.write("a/deep/other", "x");
        synced.write("gone/with/all", "x");
        synced.write("mixed/sent", "x");
        synced.write("later ignored", "x");
        synced.meet();
        synced.inside("echo own > /app/mixed/own; echo own > /app/own; mkdir /app/a/own");
        let again = |stop: &str| {
            synced.msb.words(stop).ok();
            fs::remove_dir_all(synced.at("gone")).unwrap();
            fs::remove_dir_all(synced.at("mixed")).unwrap();
            fs::remove_file(synced.at("a/deep/other")).unwrap();
            synced.write(".gitignore", "later*\n");
            synced.write("new", "x");
            synced.msb.words("sync start -q src box:/app").ok();
            let own = ["a/own", "later ignored", "mixed", "mixed/own", "own"];
            let all = ["a", "a/deep", "a/deep/file", "new", "top", ".gitignore"];
            let mut all: Vec<&str> = own.into_iter().chain(all).collect();
            all.sort_unstable();
            assert_eq!(synced.names(), all);
        };
        again(&format!("sync stop {}", synced.id));
        // A killed sync has recorded it as well.
        synced.write("gone/again", "x");
        synced.write("mixed/again", "x");
        synced.write("a/deep/other", "x");
        let inside = || synced.names().contains(&"gone/again".to_owned());
        eventually("all of it is inside", || inside() && synced.listed()["state"] == "watching");
        let pid = synced.listed()["pid"].as_u64().unwrap();
        signal_pid(u32::try_from(pid).unwrap(), "KILL");
        eventually("it is over", || synced.msb.json(["sync", "ls", "--json"]) == json!([]));
        again("ls");
        // Another target is another sync, and what was put back was not sent by anybody.
        synced.msb.words("sync stop --all").ok();
        synced.msb.words("stop -f box").ok();
        synced.msb.words("reset box").ok();
        synced.msb.words("start -q box").ok();
        synced.inside("mkdir /app; echo own > /app/new");
        fs::remove_file(synced.at("new")).unwrap();
        synced.msb.words("sync start -q src box:/app").ok();
        assert!(synced.names().contains(&"new".to_owned()));
    }
}
