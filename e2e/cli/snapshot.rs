//! Snapshots, clones and resets: their content, and the space that they take.

mod flatten;
mod start_stop;

use msb_e2e::{Msb, ends, eventually, gives};
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Writes everything that a file system can hold, as far as the sandbox may.
const MANY: &str = r#"
import os
os.makedirs("/root/t/deep/er", exist_ok=True)
os.chdir("/root/t")
open("plain", "w").write("plain\n")
open("empty", "w").close()
open("binary", "wb").write(bytes(range(256)) * 300)
os.link("plain", "deep/linked")
os.link("plain", "deep/er/linked too")
os.symlink("../../../etc", "up")
os.symlink("no\nwhere", "odd\nname")
os.mkfifo("fifo", 0o640)
with open("sparse", "wb") as sparse:
    sparse.seek(50 << 20)
    sparse.write(b"end")
os.setxattr("plain", "user.note", b"of mine\0\xff")
os.setxattr("deep", "user.dir", b"d")
# Users 33 and groups 44 as far as there are such, and what is made in a directory has the same.
import struct
def listed(user, group):
    entries = [(1, 7, -1), (2, 6, user), (4, 5, -1), (8, 4, group), (16, 7, -1), (32, 0, -1)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
os.mkdir("listed")
for ids in [(33, 44), (0, 0)]:
    try:
        os.setxattr("listed", "system.posix_acl_default", listed(*ids))
        break
    except OSError:
        pass
open("listed/file", "w").close()
os.setxattr("listed/file", "user.beside", b"x")
assert len(os.getxattr("listed/file", "system.posix_acl_access")) == 52
os.chmod("binary", 0o600)
os.chmod("deep/er", 0o1770)
os.chmod("empty", 0)
os.utime("plain", ns=(1, 1234567890123456789))
try:
    os.chown("binary", 33, 44)
    os.lchown("up", 33, 44)
except OSError:
    pass
os.makedirs("/usr/local/made/by", exist_ok=True)
open("/usr/local/made/by/us", "w").write("in usr\n")
os.rmdir("/usr/local/games") if os.path.isdir("/usr/local/games") else None
"#;

/// Tells everything about what [`MANY`] wrote.
const TELL: &str = r#"
import hashlib, os, stat
def tell(path):
    s = os.lstat(path)
    said = [oct(s.st_mode), s.st_uid, s.st_gid, s.st_size, s.st_nlink, s.st_mtime_ns]
    if stat.S_ISDIR(s.st_mode):
        said[3] = said[4] = 0
    if stat.S_ISREG(s.st_mode):
        said.append(hashlib.sha256(open(path, "rb").read()).hexdigest())
        said.append(s.st_blocks < 2000)
    if stat.S_ISLNK(s.st_mode):
        said.append(os.readlink(path))
    else:
        said.append(sorted((n, os.getxattr(path, n)) for n in os.listxattr(path, follow_symlinks=False) if n.startswith(("user.", "system.posix_acl"))) if not stat.S_ISFIFO(s.st_mode) else [])
    print(repr(path), said)
for top in ["/root/t", "/usr/local/made"]:
    for at, directories, files in sorted(os.walk(top)):
        tell(at)
        for name in sorted(files + [d for d in directories if os.path.islink(os.path.join(at, d))]):
            tell(os.path.join(at, name))
print(os.path.exists("/usr/local/games"))
"#;

fn filled(msb: &Msb, name: &str) -> String {
    msb.words(&format!("create -q -n {name} host")).ok();
    fill(msb, name)
}

fn fill(msb: &Msb, name: &str) -> String {
    msb.run(["exec", name, "--", "/usr/bin/python3", "-c", MANY]).ok();
    tells(msb, name)
}

#[track_caller]
fn tells(msb: &Msb, name: &str) -> String {
    msb.run(["exec", name, "--", "/usr/bin/python3", "-c", TELL]).ok().stdout
}

#[test]
fn any_number_of_sandboxes_start_from_a_snapshot() {
    for msb in Msb::each() {
        let before = filled(&msb, "box");
        msb.words("stop -f box").ok();
        let taken =
            msb.json(["snapshot", "create", "base", "--from", "box", "--note", "ready", "--json"]);
        assert_eq!((&taken["names"][0], &taken["note"]), (&"base".into(), &"ready".into()));
        assert!(taken["paused_us"].is_null() && taken["parent"].is_null(), "{taken}");
        // It goes on where it was, and neither notices the other.
        msb.words("start -q box").ok();
        assert_eq!(tells(&msb, "box"), before);
        msb.run(["exec", "box", "--", "rm", "-r", "/root/t", "/usr/local/made"]).ok();
        let gave = msb.run(["run", "-q", "snapshot:base", "--", "/usr/bin/python3", "-c", TELL]);
        assert_eq!(gave.ok().stdout, before);
        assert_eq!(msb.words("restore base --name two --start").line(), "two");
        assert_eq!(tells(&msb, "two"), before);
        assert_eq!(msb.json(["ls", "--json"])[1]["image"], "snapshot:base");
        assert_eq!(msb.run(["exec", "two", "--", "hostname"]).line(), "two");
        // A snapshot of what came from a snapshot.
        msb.run(["exec", "two", "--", "sh", "-c", "echo more >> /root/t/plain"]).ok();
        let changed = tells(&msb, "two");
        msb.words("stop -f two").ok();
        msb.words("snapshot create next --from two").ok();
        let next = msb.json(["snapshot", "inspect", "next"]);
        assert_eq!(next["parent"], taken["id"]);
        msb.words("restore next --name three --start").ok();
        assert_eq!(tells(&msb, "three"), changed);
    }
}

#[test]
fn a_sandbox_goes_back_to_a_snapshot_and_to_its_image() {
    for msb in Msb::each() {
        let before = filled(&msb, "box");
        msb.words("stop -f box").ok();
        msb.words("snapshot create base --from box").ok();
        let change = "rm -rf /root/t/deep; echo x > /root/t/plain; touch /root/new /opt/new";
        for _ in 0..2 {
            msb.words("start -q box").ok();
            msb.run(["exec", "box", "--", "sh", "-c", change]).ok();
            let gave = msb.words("rollback box base");
            assert!(gave.stderr.contains("is running"), "{gave:#?}");
            msb.words("stop -f box").ok();
            assert_eq!(msb.words("rollback box base").line(), "box");
        }
        msb.words("start -q box").ok();
        assert_eq!(tells(&msb, "box"), before);
        let look = ["exec", "box", "--", "sh", "-c", "ls -A /root /opt/new 2>/dev/null; true"];
        assert!(!msb.run(look).ok().stdout.contains("new"));
        msb.words("stop -f box").ok();
        assert_eq!(msb.words("reset box").line(), "box");
        msb.words("start -q box").ok();
        assert!(!msb.run(["exec", "box", "--", "ls", "-A", "/root"]).ok().stdout.contains('t'));
        // The snapshot is still there, and so is the way to it.
        msb.words("stop -f box").ok();
        msb.words("rollback box base").ok();
        msb.words("start -q box").ok();
        assert_eq!(tells(&msb, "box"), before);
    }
}

#[test]
fn a_clone_and_what_it_was_made_of_go_their_own_ways() {
    for msb in Msb::each() {
        msb.words("create -q -n box -e COLOR=blue --label team=x host").ok();
        msb.run(["exec", "box", "--", "/usr/bin/python3", "-c", MANY]).ok();
        let before = tells(&msb, "box");
        // While it runs, and when it does not.
        for name in ["hot", "cold"] {
            assert_eq!(msb.words(&format!("clone --start box {name}")).line(), name);
            assert_eq!(tells(&msb, name), before);
            let look = ["exec", name, "--", "sh", "-c", "echo $COLOR; hostname; rm -r /root/t"];
            assert_eq!(msb.run(look).line(), format!("blue\n{name}"));
            msb.words("stop -f box").ok();
        }
        msb.words("start -q box").ok();
        assert_eq!(tells(&msb, "box"), before);
        assert_eq!(msb.json(["inspect", "hot"])["plan"]["labels"]["team"], "x");
        let gave = msb.words("clone box hot");
        assert!(gave.code != 0 && gave.stderr.contains("already exists"), "{gave:#?}");
        msb.words("stop -f box").ok();
        msb.words("clone --stopped box last").ok();
        msb.words("rm -f box hot cold").ok();
        msb.words("start -q last").ok();
        assert_eq!(tells(&msb, "last"), before);
        msb.words("rm -f last").ok();
        eventually("no layer is left", || frozen(&msb).is_empty());
    }
}

/// Frozen layers that are kept.
fn frozen(msb: &Msb) -> Vec<PathBuf> {
    let entries = fs::read_dir(msb.home().join("frozen")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

#[test]
fn a_running_sandbox_is_saved_and_the_pause_is_reported() {
    for msb in Msb::each() {
        msb.words("create -q -n box host").ok();
        // Two files that are equal whenever no writer is between the two.
        let writer = "import os\nn = 0\nfor name in 'abcdefgh': open('/root/' + name * 9, 'w').write('x' * 100000)\n\
                      while True:\n n += 1\n for name in ['one', 'two']:\n  \
                      open('/root/.new', 'w').write(str(n) + '\\n'); os.rename('/root/.new', '/root/' + name)";
        msb.run(["exec", "-d", "box", "--", "/usr/bin/python3", "-c", writer]).ok();
        let count = || msb.run(["exec", "box", "--", "cat", "/root/two"]);
        eventually("it writes", || count().code == 0);
        for name in ["first", "second"] {
            let taken = msb.json(["snapshot", "create", name, "--from", "box", "--json"]);
            assert!(taken["paused_us"].as_u64().is_some(), "{taken}");
            let script = "cat /root/one /root/two; cat /root/*aaa /root/*hhh | wc -c";
            let gave =
                msb.run(["run", "-q", &format!("snapshot:{name}"), "--", "sh", "-c", script]);
            let said: Vec<u64> =
                gave.ok().stdout.lines().map(|line| line.parse().unwrap()).collect();
            assert!(said[0] - said[1] <= 1 && said[2] == 200_000, "{said:?}");
            // It went on by itself.
            let then = count().line();
            eventually("it goes on", || count().line() != then);
        }
        let gave = msb.words("snapshot create third --from box").ok();
        assert!(gave.stderr.contains("was paused for"), "{gave:#?}");
        assert_eq!(msb.json(["ls", "--json"])[0]["status"], "running");
    }
}

#[test]
fn commands_begun_while_a_snapshot_is_taken_wait_for_it() {
    for msb in Msb::each() {
        msb.words("create -q -n box host").ok();
        let fill = "mkdir /root/t; for i in $(seq 500); do echo $i > /root/t/$i; done";
        msb.run(["exec", "box", "--", "sh", "-c", fill]).ok();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..4 {
                    msb.words(&format!("snapshot create s{i} --from box")).ok();
                    // At once: it goes on before the snapshot is told of.
                    msb.words("exec box -- true").ok();
                }
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        msb.words("exec box -- true").ok();
                    }
                });
            }
        });
        msb.words("rm -f box").ok();
    }
}

#[test]
fn everything_inside_can_be_paused() {
    for msb in Msb::each() {
        msb.words("create -q -n box host").ok();
        let writer = "while :; do date +%N > /root/a; done";
        msb.run(["exec", "-d", "box", "--", "sh", "-c", writer]).ok();
        let stopped = "kill -STOP $$; echo woken > /root/woken";
        msb.run(["exec", "-d", "box", "--", "sh", "-c", stopped]).ok();
        assert_eq!(msb.words("pause box").line(), "box");
        assert_eq!(msb.json(["ls", "--json"])[0]["status"], "paused");
        let state = |pid: u32| {
            let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            text.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
        };
        let inside = msb.processes("box").into_iter().skip(2);
        let states: Vec<_> = inside.filter_map(|one| state(one.pid)).collect();
        // One that waits in the kernel for a child that stands still does not run either.
        let stands = |state: &char| matches!(state, 'T' | 'D');
        assert!(states.len() >= 2 && states.iter().all(stands), "{states:?}");
        let gave = msb.words("exec box -- true");
        assert!(gave.stderr.contains("msb resume box"), "{gave:#?}");
        // Its files can be looked at meanwhile.
        msb.words("cp box:/root/a copied").ok();
        msb.words("resume box").ok();
        let read = || msb.run(["exec", "box", "--", "cat", "/root/a"]).ok().stdout;
        let before = read();
        eventually("it goes on", || read() != before);
        // What was stopped before stays so.
        assert_eq!(msb.run(["exec", "box", "--", "ls", "/root"]).line(), "a");
        msb.words("pause box").ok();
        msb.words("stop -t 5s box").ok();
    }
}

#[test]
fn a_single_changed_bit_is_found_and_named() {
    for msb in Msb::each() {
        filled(&msb, "box");
        msb.words("stop -f box").ok();
        msb.words("snapshot create base --from box").ok();
        let known = || msb.json(["snapshot", "inspect", "base"])["digest"].is_string();
        eventually("it is written down what it holds", known);
        let layer = frozen(&msb).remove(0);
        finds_a_bit(&msb, "base", &layer.join("upper0/root/t/binary"));
    }
}

/// Changes one bit of `/root/t/binary`, which is this file, looks for it, and changes it back.
#[track_caller]
fn finds_a_bit(msb: &Msb, snapshot: &str, path: &Path) {
    let verify = || msb.run(["snapshot", "verify", snapshot]);
    let gave = verify().ok();
    assert!(gave.stdout.contains("intact"), "{gave:#?}");
    let file = fs::File::options().read(true).write(true).open(path).expect("a file");
    let modified = file.metadata().and_then(|meta| meta.modified()).expect("a time");
    let mut byte = [0];
    file.read_at(&mut byte, 5000).expect("a file of ours");
    file.write_at(&[byte[0] ^ 4], 5000).expect("a file of ours");
    file.set_modified(modified).expect("a file of ours");
    let gave = verify();
    assert_eq!(gave.code, 1, "{gave:#?}");
    assert!(gave.stdout.contains("/root/t/binary has changed"), "{gave:#?}");
    assert_eq!(gave.stdout.lines().count(), 2, "{gave:#?}");
    file.write_at(&byte, 5000).expect("a file of ours");
    file.set_modified(modified).expect("a file of ours");
    assert_eq!(verify().code, 0);
}

/// Where a file of this name is among unpacked layers.
fn unpacked(msb: &Msb, name: &str) -> PathBuf {
    let below = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let layers = below(&msb.home().join("layers")).flat_map(|owner| below(&owner.path()));
    let mut files = layers.map(|layer| layer.path().join("fs").join(name));
    files.find(|file| file.exists()).expect("a layer that has it")
}

#[test]
fn snapshots_travel_as_files_that_others_can_read() {
    for msb in Msb::each_with_own_layers() {
        let before = filled(&msb, "box");
        msb.words("stop -f box").ok();
        msb.words("snapshot create base --from box --note travels").ok();
        msb.words("snapshot save base -o base.tar").ok();
        let archive = format!("oci-archive:{}", msb.scratch().join("base.tar").display());
        let gave = gives(Command::new("skopeo").args(["inspect", &archive])).ok();
        assert!(gave.stdout.contains("dev.msb.snapshot"), "{gave:#?}");
        let gave = msb.words("snapshot save base --with-image -o x.tar");
        assert!(gave.code != 0 && gave.stderr.contains("hint: "), "{gave:#?}");
        assert!(!msb.scratch().join("x.tar").exists());
        let gave = msb.words("snapshot load -q base.tar");
        assert!(gave.stderr.contains("already exists"), "{gave:#?}");
        msb.words("rm box").ok();
        msb.words("snapshot rm base").ok();
        msb.words("prune").ok();
        assert_eq!(msb.words("snapshot load -q -n again base.tar").line(), "again");
        assert_eq!(msb.json(["snapshot", "inspect", "again"])["note"], "travels");
        msb.words("prune").ok();
        let known = || msb.json(["snapshot", "inspect", "again"])["digest"].is_string();
        eventually("it is written down what it holds", known);
        finds_a_bit(&msb, "again", &unpacked(&msb, "root/t/binary"));
        msb.words("restore again --name box --start").ok();
        // A layer knows no parts of seconds, no holes and no access control lists.
        let told = |text: &str| -> Vec<String> {
            let lost =
                |line: &str| ["sparse", "/plain", "listed"].iter().any(|it| line.contains(it));
            let lines = text.lines().filter(|line| !lost(line));
            lines.map(|line| line.split(", 1").next().unwrap_or(line).to_owned()).collect()
        };
        assert_eq!(told(&tells(&msb, "box")), told(&before));
        // And again from there.
        msb.words("stop -f box").ok();
        msb.words("snapshot create more --from box").ok();
        msb.words("snapshot save more -o more.tar").ok();
        msb.words("rm box").ok();
        msb.words("snapshot load -q -n last more.tar").ok();
        msb.words("restore last --name box --start").ok();
        assert_eq!(told(&tells(&msb, "box")), told(&before));
    }
}

#[test]
fn a_snapshot_of_nothing_travels_too() {
    for msb in Msb::each() {
        msb.words("create -q -n box host").ok();
        msb.words("snapshot create none --from box").ok();
        let file = msb.scratch().join("none.tar");
        msb.run(["snapshot", "save", "none", "-o", file.to_str().unwrap()]).ok();
        msb.words("snapshot rm none").ok();
        msb.run(["snapshot", "load", file.to_str().unwrap()]).ok();
        assert_eq!(msb.words("run -q snapshot:none -- echo there").line(), "there");
        msb.words("snapshot rm none").ok();
        msb.words("rm -f box").ok();
    }
}

#[test]
fn names_of_snapshots_are_given_and_taken() {
    for msb in Msb::each() {
        msb.words("create -q -n box host").ok();
        msb.words("stop -f box").ok();
        msb.words("snapshot create base --from box").ok();
        msb.words("snapshot tag base stable").ok();
        assert_eq!(msb.words("snapshot ls -q").line(), "base\nstable");
        for (line, said) in [
            ("snapshot create base --from box", "`base` already exists"),
            ("snapshot tag base stable", "`stable` already exists"),
            ("snapshot create x --from nobody", "no sandbox `nobody`"),
            ("snapshot inspect stabel", "did you mean `stable`?"),
            ("run snapshot:nothing", "no snapshot `nothing`"),
            ("run snapshot:../x", "not the name of a snapshot"),
            ("snapshot create ../x --from box", "hint: "),
            ("rollback box nothing", "no snapshot `nothing`"),
            ("restore base --name box", "already exists"),
        ] {
            let gave = msb.words(line);
            assert!(gave.code != 0 && gave.stderr.contains(said), "{line}: {gave:#?}");
        }
        msb.words("restore --stopped base --name two").ok();
        msb.words("snapshot create child --from two").ok();
        msb.words("snapshot rm base").ok();
        let gave = msb.words("snapshot rm stable");
        assert!(gave.stderr.contains("snapshots are based on `stable`: child"), "{gave:#?}");
        msb.words("snapshot rm -f stable").ok();
        assert_eq!(msb.run(["run", "-q", "snapshot:child", "--", "echo", "fine"]).line(), "fine");
        // Unreferenced layers are removed, also while other sandboxes run.
        msb.run(["create", "-q", "-n", "guest", "snapshot:child"]).ok();
        let needed = frozen(&msb).len();
        msb.words("create -q -n solo host").ok();
        msb.words("snapshot create lonely --from solo").ok();
        msb.words("rm -f solo").ok();
        assert_eq!(frozen(&msb).len(), needed + 1);
        msb.words("snapshot rm lonely").ok();
        assert_eq!(frozen(&msb).len(), needed);
        msb.words("rm -f guest").ok();
        msb.words("snapshot rm child").ok();
        msb.words("rm box two").ok();
        eventually("no layer is left", || frozen(&msb).is_empty());
    }
}

/// Whatever is killed, and when: everything is as before or as after, and nothing is left over.
#[test]
fn a_killed_snapshot_clone_or_reset_has_done_all_or_nothing() {
    for msb in Msb::each() {
        fs::create_dir(msb.scratch().join("project")).unwrap();
        msb.chown(&msb.scratch().join("project"));
        let project = msb.scratch().join("project").display().to_string();
        msb.run(["create", "-q", "-n", "box", "--workspace", &project, "host"]).ok();
        let write = "for i in $(seq 50); do echo $i > $i; chown 33:44 $i 2>/dev/null; done; true";
        msb.run(["exec", "box", "--", "sh", "-c", write]).ok();
        let before = fill(&msb, "box");
        msb.words("stop -f box").ok();
        let changed = |name: &str| msb.json(["diff", name, "--json"])["changes"].to_string();
        let changes = changed("box");
        msb.words("snapshot create base --from box").ok();
        let mut done = [0; 5];
        for round in 0..24u64 {
            let steps = [
                "snapshot create s --from box",
                "rollback box base",
                "clone --stopped box c",
                "reset c",
                "rm c",
            ];
            for (step, line) in steps.iter().enumerate() {
                let mut child = msb.spawn(line.split_whitespace());
                if round % 8 != 7 {
                    thread::sleep(Duration::from_micros(round * 400));
                    let _ = child.kill();
                }
                done[step] += u32::from(child.wait().unwrap().success());
            }
            let names = msb.words("snapshot ls -q").ok().stdout;
            if names.lines().any(|name| name == "s") {
                let gave =
                    msb.run(["run", "-q", "snapshot:s", "--", "/usr/bin/python3", "-c", TELL]);
                assert_eq!(gave.ok().stdout, before, "round {round}");
                msb.words("snapshot rm s").ok();
            }
            msb.words("start -q box").ok();
            assert_eq!(tells(&msb, "box"), before, "round {round}");
            msb.words("stop -f box").ok();
            if msb.words("ls -q").ok().stdout.lines().any(|name| name == "c") {
                let seen = changed("c");
                msb.words("start -q c").ok();
                let told = tells(&msb, "c");
                let reset = seen == "[]" && told.ends_with("True\n");
                assert!(reset || (told == before && seen == changes), "round {round}: {told}");
                msb.words("rm -f c").ok();
            }
        }
        assert!(done.iter().all(|done| (3..24).contains(done)), "some were killed: {done:?}");
        msb.words("rm box").ok();
        msb.words("snapshot rm base").ok();
        let locks = ["lock", "tidy", "tidy-next"];
        let left = |name: &str| {
            let names = fs::read_dir(msb.home().join(name)).unwrap().flatten();
            names.filter(|entry| !locks.iter().any(|lock| entry.file_name() == *lock)).count()
        };
        eventually("nothing is left but locks", || {
            msb.words("ls").ok();
            left("frozen") == 0 && left("sandboxes") == 0
        });
    }
}

#[test]
fn many_clones_at_once_are_all_whole() {
    for msb in Msb::each() {
        let before = filled(&msb, "box");
        msb.words("stop -f box").ok();
        let children: Vec<_> =
            (0..16).map(|at| msb.spawn(["clone", "box", &format!("c{at}")])).collect();
        for child in children {
            ends(child).ok();
        }
        for at in [0, 7, 15] {
            msb.words(&format!("start -q c{at}")).ok();
            assert_eq!(tells(&msb, &format!("c{at}")), before);
        }
    }
}

#[test]
fn damaged_records_are_reported_and_harm_no_other_sandbox() {
    for msb in Msb::each() {
        msb.words("create -q -n box host").ok();
        msb.words("stop -f box").ok();
        msb.words("snapshot create good --from box").ok();
        let id = msb.json(["snapshot", "inspect", "good"])["id"].as_str().unwrap().to_owned();
        let record = msb.home().join(format!("snapshots/{id}.json"));
        let text = fs::read(&record).unwrap();
        for bad in [&b"{"[..], b"", b"{\"version\":99}", &text[..text.len() / 2]] {
            let mut file = fs::File::create(&record).unwrap();
            file.write_all(bad).unwrap();
            let gave = msb.words("run snapshot:good");
            assert!(gave.code != 0 && gave.stderr.contains("cannot be read"), "{gave:#?}");
            // What is needed cannot be known, so nothing is removed.
            msb.words("ls").ok();
            assert_eq!(frozen(&msb).len(), 1);
        }
        fs::write(&record, &text).unwrap();
        msb.run(["run", "-q", "snapshot:good", "--", "true"]).ok();
        // A sandbox that says it has more layers than it has, and one with garbled changes.
        let plan = msb.home().join("sandboxes/box/plan.json");
        let good = fs::read_to_string(&plan).unwrap();
        fs::write(&plan, good.replace("\"own\":1", "\"own\":99")).unwrap();
        for line in ["reset box", "rollback box good"] {
            let gave = msb.words(line);
            assert!(gave.code == 125 && gave.stderr.contains("more layers"), "{gave:#?}");
        }
        fs::write(&plan, good).unwrap();
        fs::rename(plan.with_file_name("layer"), plan.with_file_name("layer.old")).unwrap();
        fs::write(plan.with_file_name("plan.next"), "{").unwrap();
        assert_ne!(msb.words("start box").code, 0);
        msb.words("rm -f box").ok();
    }
}

/// A state directory on a file system of its own, made by root; unmounted at the end.
struct OwnDisk {
    msb: Msb,
}

impl OwnDisk {
    fn new(mkfs: &[&str], mebibytes: u64) -> Option<Self> {
        let msb = Msb::with_own_layers();
        if !msb.is_root() {
            msb_e2e::skip("only root mounts file systems");
            return None;
        }
        let image = msb.scratch().join("disk");
        fs::File::create(&image).and_then(|file| file.set_len(mebibytes << 20)).expect("a file");
        gives(Command::new(mkfs[0]).args(&mkfs[1..]).arg(&image)).ok();
        let mounted =
            Command::new("mount").args(["-o", "loop"]).arg(&image).arg(msb.home()).status();
        assert!(mounted.is_ok_and(|status| status.success()), "a loop device");
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(msb.home(), private).expect("its mode");
        Some(Self { msb })
    }

    /// Bytes that are used.
    fn used(&self) -> u64 {
        gives(Command::new("sync").arg("-f").arg(self.msb.home())).ok();
        used_of(&self.msb.home())
    }
}

/// Kilobytes that `df` says are used, as bytes.
fn used_of(path: &Path) -> u64 {
    let gave = gives(Command::new("df").args(["--output=used", "-k"]).arg(path)).ok();
    let line = gave.stdout.lines().nth(1).unwrap_or_default().trim().to_owned();
    line.parse::<u64>().expect("a number") << 10
}

impl Drop for OwnDisk {
    fn drop(&mut self) {
        for name in self.msb.words("ls -q").stdout.lines() {
            self.msb.run(["rm", "-f", name]);
        }
        let unmounted = || {
            let mut command = Command::new("umount");
            command.arg(self.msb.home()).stderr(std::process::Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        // A process may be left that writes down what snapshots hold.
        eventually("the disk is not in use", unmounted);
    }
}

#[test]
fn where_blocks_can_be_shared_a_running_sandbox_is_not_copied() {
    let Some(disk) = OwnDisk::new(&["mkfs.xfs", "-q", "-m", "reflink=1"], 512) else { return };
    let msb = &disk.msb;
    msb.words("create -q -n box host").ok();
    let fill = "dd if=/dev/urandom of=/root/big bs=1M count=100 2>/dev/null; sync";
    msb.run(["exec", "box", "--", "sh", "-c", fill]).ok();
    let before = disk.used();
    for name in ["one", "two"] {
        msb.run(["snapshot", "create", name, "--from", "box"]).ok();
    }
    msb.run(["clone", "box", "copy"]).ok();
    let grown = disk.used().saturating_sub(before);
    assert!(grown < 30 << 20, "three copies of 100 MiB took {} MiB", grown >> 20);
    let sum = |args: &[&str]| msb.run(args.iter().chain(&["--", "sha256sum", "/root/big"])).line();
    assert_eq!(sum(&["run", "-q", "snapshot:two"]), sum(&["exec", "box"]));
}

#[test]
fn a_full_disk_is_reported_and_its_space_is_freed() {
    let Some(disk) = OwnDisk::new(&["mkfs.ext4", "-q", "-m", "0"], 160) else { return };
    let msb = &disk.msb;
    msb.words("create -q -n box host").ok();
    let fill =
        "for i in 1 2 3; do dd if=/dev/urandom of=/root/$i bs=1M count=20 2>/dev/null; done; sync";
    msb.run(["exec", "box", "--", "sh", "-c", fill]).ok();
    let room =
        "dd if=/dev/zero of=/root/filler bs=1M 2>/dev/null; truncate -s -30M /root/filler; sync";
    msb.run(["exec", "box", "--", "sh", "-c", room]).ok();
    let before = disk.used();
    for line in ["snapshot create s --from box", "clone box c"] {
        let gave = msb.words(line);
        assert!(gave.code != 0 && gave.stderr.contains("no space left"), "{gave:#?}");
        eventually("the space is back", || disk.used() <= before + (1 << 20));
    }
    eventually("no layer is left", || frozen(msb).is_empty());
    assert_eq!(msb.words("snapshot ls -q").line(), "");
    assert_eq!(msb.words("ls -q").line(), "box");
    // It goes on, and what needs no room works.
    msb.run(["exec", "box", "--", "rm", "/root/filler"]).ok();
    msb.words("stop -f box").ok();
    msb.words("snapshot create s --from box").ok();
}

#[test]
fn a_reset_drops_workspace_changes_unless_a_flag_keeps_them() {
    for msb in Msb::each() {
        let project = msb.file("project/a", "host\n");
        let project = project.parent().unwrap().display().to_string();
        msb.run(["create", "-q", "-n", "box", "--workspace", &project, "host"]).ok();
        let change =
            ["exec", "box", "--", "sh", "-c", "echo mine > a; echo new > b; touch /root/x"];
        let look = ["exec", "box", "--", "sh", "-c", "cat a; ls; ls /root"];
        for (line, seen) in [("reset --keep-workspace box", "mine\na\nb"), ("reset box", "host\na")]
        {
            msb.run(change).ok();
            msb.words("stop -f box").ok();
            msb.words(line).ok();
            msb.words("start -q box").ok();
            assert_eq!(msb.run(look).line(), seen, "{line}");
        }
        let changes = msb.json(["diff", "box", "--json"]);
        assert_eq!(changes["changes"].as_array().map(Vec::len), Some(0), "{changes}");
    }
}

#[test]
fn a_clone_has_what_was_changed_in_the_workspace() {
    for msb in Msb::each() {
        for path in ["kept", "gone", "dir/in", "bin"] {
            msb.file(&format!("project/{path}"), "host\n");
        }
        let project = msb.scratch().join("project").display().to_string();
        msb.run(["create", "-q", "-n", "box", "--workspace", &project, "host"]).ok();
        msb.run(["exec", "box", "--", "sh", "-c", "echo brought > brought; echo b > both"]).ok();
        msb.words("apply box").ok();
        // What we brought there ourselves is changed by the host: that is no change of the sandbox.
        msb.file("project/brought", "host's own\n");
        let change = "echo mine >> kept; rm gone; mv dir moved; mkdir new; ln kept new/hard; \
                      ln -s kept new/soft; chmod 755 bin; echo later > both; touch new/closed; \
                      chmod 0 new/closed; chown 33:44 new/soft new 2>/dev/null; true";
        msb.run(["exec", "box", "--", "sh", "-c", change]).ok();
        let list = "import os, struct\n\
                    entries = [(1, 6, -1), (2, 6, 0), (4, 4, -1), (16, 6, -1), (32, 4, -1)]\n\
                    list = b''.join(struct.pack('<HHi', *entry) for entry in entries)\n\
                    os.setxattr('kept', 'system.posix_acl_access', struct.pack('<I', 2) + list)";
        msb.run(["exec", "box", "--", "/usr/bin/python3", "-c", list]).ok();
        let told = |name: &str| {
            let mut told = msb.json(["diff", name, "--json"]);
            told["sandbox"].take();
            told
        };
        let before = told("box");
        assert!(before["changes"].as_array().is_some_and(|all| all.len() >= 8), "{before}");
        let look = "ls -lnA . moved new; cat kept both; /usr/bin/python3 -c \"import os; \
                    print(os.getxattr('kept', 'system.posix_acl_access'))\"";
        let list = ["--", "sh", "-c", look];
        let seen = |name: &str| {
            let run: Vec<&str> = ["exec", name].into_iter().chain(list).collect();
            msb.run(run).ok().stdout
        };
        let inside = seen("box");
        msb.words("clone --stopped box hot").ok();
        msb.words("stop -f box").ok();
        msb.words("clone --stopped box cold").ok();
        for name in ["hot", "cold"] {
            assert_eq!(told(name), before, "{name}");
            msb.words(&format!("start -q {name}")).ok();
            assert_eq!(seen(name), inside, "{name}");
            // They go their own ways.
            let script = format!("echo {name} > kept; rm -r moved new; mkdir new");
            msb.run(["exec", name, "--", "sh", "-c", &script]).ok();
            assert!(msb.run(["diff", name, "--patch"]).ok().stdout.contains(&format!("+{name}")));
        }
        assert_eq!(told("box"), before);
        msb.words("rm -f box hot cold").ok();
        eventually("no layer is left", || frozen(&msb).is_empty());
    }
}

#[test]
fn snapshots_have_no_part_of_the_workspace() {
    for msb in Msb::each() {
        let project = msb.file("project/a", "host\n");
        let project = project.parent().unwrap().display().to_string();
        msb.run(["create", "-q", "-n", "box", "--workspace", &project, "host"]).ok();
        msb.run(["exec", "box", "--", "sh", "-c", "echo mine > a; touch /root/x"]).ok();
        msb.words("stop -f box").ok();
        msb.words("snapshot create base --from box").ok();
        msb.words("restore base --name two --start").ok();
        assert_eq!(msb.run(["exec", "two", "--", "sh", "-c", "cat a; ls /root"]).line(), "host\nx");
        // A way back leaves them as they are.
        msb.words("start -q box").ok();
        msb.run(["exec", "box", "--", "sh", "-c", "echo later > a; rm /root/x"]).ok();
        msb.words("stop -f box").ok();
        msb.words("rollback box base").ok();
        assert!(msb.words("diff box --patch").ok().stdout.contains("+later"));
        msb.words("start -q box").ok();
        assert_eq!(
            msb.run(["exec", "box", "--", "sh", "-c", "cat a; ls /root"]).line(),
            "later\nx"
        );
    }
}
