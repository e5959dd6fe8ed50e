//! Starting, stopping and killing a sync, and what is left of it.

use super::{SyncFixture, meet, says};
use msb_e2e::{CmdOutput, Msb, Process, ends, eventually, gives, signal_pid};
use serde_json::json;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn process(synced: &SyncFixture) -> Process {
    let pid = synced.listed()["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    Process::find(pid.expect("a pid")).expect("its process")
}

const NOTHING: [OsString; 0] = [];

/// What is kept of syncs.
fn kept(msb: &Msb) -> Vec<OsString> {
    let entries = fs::read_dir(msb.home().join("syncs")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).collect()
}

#[test]
fn a_sync_is_listed_until_it_is_stopped() {
    for synced in SyncFixture::each(&[]) {
        let listed = synced.listed();
        assert_eq!(listed["id"], json!(synced.id));
        assert_eq!(listed["source"], json!(synced.source.to_str().unwrap()));
        let fields = ["sandbox", "target", "state", "files", "bytes", "failures", "reason"];
        let expected = json!({"sandbox": "box", "target": "/app", "state": "watching", "files": 2,
                   "bytes": 7, "failures": 0, "reason": null});
        fields.iter().for_each(|field| assert_eq!(listed[field], expected[field], "{field}"));
        let table = synced.msb.words("sync ls").ok().stdout;
        assert!(table.contains("box:/app") && table.contains("watching"), "{table}");
        let process = process(&synced);
        synced.msb.run(["sync", "stop", &synced.id]).ok();
        assert!(!process.is_alive());
        assert_eq!(kept(&synced.msb), NOTHING);
        assert_eq!(synced.msb.json(["sync", "ls", "--json"]), json!([]));
        // What was sent stays, and nothing follows.
        synced.write("top", "changed");
        assert_eq!(synced.inside("cat /app/top"), "top");
        let gave = synced.msb.run(["sync", "stop", &synced.id]);
        let error =
            format!("error: no sync `{}`\nhint: `msb sync ls` lists those there are\n", synced.id);
        assert_eq!((gave.code, gave.stderr), (125, error));
    }
}

#[test]
fn a_sync_ends_with_its_sandbox_and_reports_it_once() {
    for synced in SyncFixture::each(&[]) {
        for stop in ["stop box", "restart box", "rm -f box"] {
            let process = process(&synced);
            synced.msb.words(stop).ok();
            eventually("its process ends", || !process.is_alive());
            let listed = synced.listed();
            assert_eq!(
                (&listed["state"], &listed["reason"]),
                (&json!("ended"), &json!("sandbox `box` stopped"))
            );
            assert_eq!(synced.msb.json(["sync", "ls", "--json"]), json!([]));
            assert_eq!(kept(&synced.msb), NOTHING);
            synced.msb.words("start box");
            synced.msb.words("sync start src box:/app");
        }
    }
}

#[test]
fn the_end_of_the_source_is_the_end_of_the_sync() {
    for synced in SyncFixture::each(&[]) {
        let process = process(&synced);
        fs::remove_dir_all(&synced.source).unwrap();
        eventually("its process ends", || !process.is_alive());
        assert_eq!(synced.listed()["reason"], "the source was moved or removed");
        assert_eq!(synced.msb.words("exec box -- test -d /app").code, 0);
        let again = synced.msb.words("sync start src box:/app");
        assert_eq!(again.code, 125);
        assert!(again.stderr.contains("no such file or directory"), "{again:?}");
    }
}

#[test]
fn a_killed_sync_is_cleaned_up_and_said_once() {
    for synced in SyncFixture::each(&[]) {
        // In the middle of something large, to see that nothing half is left.
        let big = synced.msb.scratch().join("big");
        fs::write(&big, vec![b'x'; 60 << 20]).unwrap();
        fs::rename(&big, synced.at("big")).unwrap();
        let process = process(&synced);
        process.signal("KILL");
        eventually("it is dead", || !process.is_alive());
        let note = format!(
            "note: cleaned up after sync `{}` of `{}` to `box:/app`, which was killed\n",
            synced.id,
            synced.source.display()
        );
        // The last of its threads may still be on its way out, and has the lock until then.
        let mut said = String::new();
        eventually("it is said", || {
            said = synced.msb.words("ls").ok().stderr;
            !said.is_empty()
        });
        assert_eq!((said, kept(&synced.msb)), (note, NOTHING.to_vec()));
        assert_eq!(synced.msb.words("sync ls").ok().stderr, "");
        let size = "stat -c %s /app/big 2>/dev/null || echo none";
        assert!(["none", "62914560"].contains(&synced.inside(size).as_str()));
        eventually("no draft is left", || {
            synced.inside("find /app -name '.msb-sync*' | wc -l") == "0"
        });
        synced.msb.words("sync start src box:/app").ok();
        synced.meet();
    }
}

#[test]
fn a_start_that_is_killed_leaves_no_sync() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let big = msb.file("src/big", "");
        fs::File::options().write(true).open(big).unwrap().set_len(2 << 30).unwrap();
        let mut child = msb.spawn(["sync", "start", "src", "box:/tmp/app"]);
        eventually("it copies", || {
            msb.json(["sync", "ls", "--json"])[0]["bytes"].as_u64().is_some_and(|sent| sent > 0)
        });
        let pid = msb.json(["sync", "ls", "--json"])[0]["pid"].as_u64().unwrap();
        let process = Process::find(u32::try_from(pid).unwrap()).expect("it copies");
        child.kill().unwrap();
        child.wait().unwrap();
        eventually("the sync ends", || !process.is_alive());
        assert_eq!(msb.words("sync ls").ok().stderr, "");
        assert_eq!(kept(&msb), NOTHING);
        eventually("nothing is left inside", || {
            msb.words("exec box -- find /tmp/app -type f").line().is_empty()
        });
    }
}

#[test]
fn several_syncs_into_one_sandbox_do_not_mind_each_other() {
    for synced in SyncFixture::each(&[]) {
        let msb = &synced.msb;
        msb.file("other/file", "other");
        let other = msb.words("sync start other box:/app/other").line();
        msb.words("sync start other box:/srv/other").ok();
        assert_eq!(msb.words("sync ls -q").line().lines().count(), 3);
        msb.file("other/new", "new");
        synced.write("new", "new");
        says(msb, "/app/other/new", "new");
        says(msb, "/srv/other/new", "new");
        says(msb, "/app/new", "new");
        msb.run(["sync", "stop", &other]).ok();
        msb.file("other/new", "newer");
        says(msb, "/srv/other/new", "newer");
        assert_eq!(synced.inside("cat /app/other/new"), "new");
        let gave = msb.words("sync stop 000000 nonsense");
        assert_eq!((gave.code, gave.stderr.matches("error: no sync").count()), (125, 2));
        msb.words("sync stop --all").ok();
        assert_eq!(msb.words("sync ls -q").ok().stdout, "");
    }
}

#[test]
fn a_target_is_made_or_followed_or_refused() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let source = msb.file("src/file", "file").parent().unwrap().to_owned();
        fs::set_permissions(&source, fs::Permissions::from_mode(0o700)).unwrap();
        let script = "mkdir -m 711 /real; ln -s /real /link; echo x > /afile; ln -s /none /broken";
        msb.run(["exec", "box", "--", "sh", "-c", script]).ok();
        for target in ["/link", "/made/for/it", "relative"] {
            msb.run(["sync", "start", "src", &format!("box:{target}")]).ok();
            let inside = format!("/{}", target.trim_start_matches('/'));
            meet(&msb, &source, &format!("{inside}/."));
        }
        let modes = msb.words("exec box -- stat -c %a /real /made/for/it").line();
        assert_eq!(modes, "711\n700", "one that was there keeps its own");
        assert_eq!(msb.words("exec box -- readlink /link").line(), "/real");
        for target in ["/afile", "/afile/below", "/broken"] {
            let gave = msb.run(["sync", "start", "src", &format!("box:{target}")]);
            assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{target}");
            assert!(gave.stderr.starts_with("error: in the sandbox, cannot make"), "{gave:?}");
        }
        assert_eq!(msb.words("sync ls -q").line().lines().count(), 3);
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_a_hint() {
    for msb in Msb::each() {
        let file = msb.file("file", "");
        msb.file("src/x", "");
        for (line, error) in [
            ("sync start src box:/app", "no sandbox `box`"),
            ("sync start src other", "the target is not in a sandbox"),
            ("sync start box:/app src", "a sync goes from the host into a sandbox"),
            ("sync start file box:/app", "not a directory: `file`"),
            ("sync stop", "no sync was named"),
        ] {
            let gave = msb.words(line);
            assert_eq!(gave.code, 125, "{line}");
            assert!(gave.stderr.starts_with(&format!("error: {error}\n")), "{line}: {gave:?}");
            assert!(gave.stderr.contains("hint: "), "{line}: {gave:?}");
        }
        msb.words("create -n box").ok();
        msb.words("stop box").ok();
        let gave = msb.words("sync start src box:/app");
        assert!(gave.stderr.contains("sandbox `box` is not running"), "{gave:?}");
        assert!(file.exists());
        assert_eq!(kept(&msb), NOTHING);
    }
}

#[test]
fn in_the_foreground_it_tells_what_it_does_until_it_is_interrupted() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let source = msb.file("src/old", "old").parent().unwrap().to_owned();
        let child = msb.spawn(["sync", "start", "--foreground", "src", "box:/app"]);
        eventually("it is ready", || msb.json(["sync", "ls", "--json"])[0]["state"] == "watching");
        let id = msb.words("sync ls -q").line();
        fs::write(source.join("esc\u{1b}"), "").unwrap();
        says(&msb, "/app/esc\u{1b}", "");
        fs::rename(source.join("old"), source.join("new")).unwrap();
        says(&msb, "/app/new", "old");
        fs::set_permissions(source.join("new"), fs::Permissions::from_mode(0o600)).unwrap();
        eventually("its mode follows", || {
            msb.words("exec box -- stat -c %a /app/new").line() == "600"
        });
        fs::remove_file(source.join("new")).unwrap();
        eventually("it is removed", || msb.words("exec box -- ls /app/new").code != 0);
        // With setpriv in between the pid is that of msb, too.
        signal_pid(child.id(), "INT");
        let CmdOutput { code, stdout, stderr } = ends(child);
        assert_eq!((code, stdout.as_str()), (0, ""));
        let told: Vec<&str> = stderr.lines().collect();
        let ready = format!("ready: sync {id} follows the source");
        let expected =
            [ready.as_str(), r"put esc\u{1b}", "renamed old to new", "mode new", "removed new"];
        assert_eq!(told, expected);
        assert_eq!(kept(&msb), NOTHING);
    }
}

#[test]
fn too_few_inotify_watches_are_reported_with_a_hint() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        for number in 0..10 {
            msb.file(&format!("src/{number}/x"), "");
        }
        // A user namespace has limits of its own, so that no other test is disturbed.
        let script = "echo $1 > /proc/sys/user/max_inotify_$2; exec $3 sync start src box:/app";
        let with = |limit: &str, what: &str| {
            let mut command = msb.user_command("unshare");
            command.args(["--user", "--map-root-user", "sh", "-c", script, "sh", limit, what]);
            gives(command.arg(msb.binary()))
        };
        let gave = with("5", "watches");
        assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{gave:?}");
        assert!(gave.stderr.starts_with("error: cannot watch directory `"), "{gave:?}");
        assert!(gave.stderr.contains("sysctl fs.inotify.max_user_watches="), "{gave:?}");
        let gave = with("0", "instances");
        assert!(gave.stderr.starts_with("error: cannot watch for changes\n"), "{gave:?}");
        assert!(gave.stderr.contains("sysctl fs.inotify.max_user_instances="), "{gave:?}");
        assert_eq!(kept(&msb), NOTHING);
    }
}

#[test]
fn a_user_with_one_id_can_sync_too() {
    let Some(msb) = Msb::with_one_id() else { return };
    let synced = SyncFixture::new(msb, &[]);
    synced.write("new/file", "new");
    synced.meet();
}
