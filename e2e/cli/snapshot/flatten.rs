//! Flattening: too many overlay layers are merged into fewer with the same content.

use super::frozen;
use msb_e2e::{Msb, eventually};
use rustix::fs::{FlockOperation, fcntl_lock};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::PathBuf;

/// As many lie on each other at most.
const MANY: usize = 400;

/// Changes a tree as only overlayfs would: each round is a layer.
const CHANGE: &str = r#"
import os, random, shutil, sys
os.makedirs("/root/t", exist_ok=True)
os.chdir("/root/t")
chance = random.Random(int(sys.argv[1]))
def some(kinds):
    found = [os.path.join(at, name) for at, directories, files in os.walk(".") for name in sorted(directories * kinds[0] + files * kinds[1])]
    return chance.choice(sorted(found)) if found else None
for step in range(60):
    what, name = chance.randrange(8), "n%d" % chance.randrange(12)
    at = os.path.join(some((1, 0)) or ".", name)
    old = some((1, 1))
    try:
        if what == 0: os.mkdir(at)
        elif what == 1: open(at, "w").write("%s %d\n" % (sys.argv[1], step))
        elif what == 2 and old: os.remove(old) if not os.path.isdir(old) or os.path.islink(old) else shutil.rmtree(old)
        elif what == 3 and old: os.link(some((0, 1)), at)
        elif what == 4 and old: os.rename(old, at)
        elif what == 5: os.symlink("n1", at)
        elif what == 6 and old: os.chmod(old, 0o700 + chance.randrange(64))
        elif what == 7 and old and not (at + "/").startswith(old + "/"): shutil.copytree(old, at, symlinks=True) if os.path.isdir(old) else shutil.copy2(old, at)
        if old and os.path.exists(old): os.setxattr(old, "user.x%d" % step, b"y")
        os.chown(at, 33, 44, follow_symlinks=False)
    except OSError:
        pass
for path in ["/usr/share/doc", "/usr/local", "/etc/default"]:
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    if names:
        victim = os.path.join(path, chance.choice(names))
        # Files with an unmapped owner cannot be removed.
        try:
            shutil.rmtree(victim) if os.path.isdir(victim) and not os.path.islink(victim) else os.remove(victim)
            if chance.randrange(2): os.mkdir(victim)
        except OSError:
            pass
"#;

const TELL: &str = r#"
import os, stat
for top in ["/root", "/usr/share/doc", "/usr/local", "/etc/default"]:
    links = {}
    for at, directories, files in os.walk(top):
        directories.sort()
        for path in [at] + [os.path.join(at, n) for n in sorted(files + [d for d in directories if os.path.islink(os.path.join(at, d))])]:
            s = os.lstat(path)
            said = [oct(s.st_mode), s.st_uid, s.st_gid, s.st_mtime_ns]
            if stat.S_ISREG(s.st_mode): said += [open(path, "rb").read()[:64], links.setdefault(s.st_ino, path) if top == "/root" else ""]
            if stat.S_ISLNK(s.st_mode): said += [os.readlink(path)]
            else: said += [sorted(os.listxattr(path))]
            print(path, said)
"#;

#[test]
fn no_number_of_layers_is_too_many() {
    for msb in Msb::each() {
        let python = |name: &str, script: &str, word: &str| {
            msb.run(["exec", name, "--", "/usr/bin/python3", "-c", script, word]).ok().stdout
        };
        msb.words("create -q -n base host").ok();
        for round in ["1", "2"] {
            python("base", CHANGE, round);
            msb.words("stop -f base").ok();
            msb.words("snapshot create s --from base").ok();
            msb.words("snapshot rm s").ok();
            msb.words("start -q base").ok();
        }
        msb.words("stop -f base").ok();
        msb.words("snapshot create base --from base").ok();
        // What it was made from has layers with other ids, if it is root's.
        msb.words("restore base --name box --start").ok();
        let restored = python("box", TELL, "");
        for round in ["3", "4", "5", "6"] {
            python("box", CHANGE, round);
            msb.words("stop -f box").ok();
            msb.words("clone --stopped box one").ok();
            msb.words("rm one").ok();
            msb.words("start -q box").ok();
        }
        msb.words("stop -f box").ok();
        pad(&msb, "box", LayerOwner::Sandbox);
        msb.words("start -q box").ok();
        python("box", CHANGE, "7");
        // overlayfs tells which names are of one file only after it was mounted anew.
        msb.words("stop -f box").ok();
        msb.words("start -q box").ok();
        let before = python("box", TELL, "");
        assert!(depth(&msb, "box") >= MANY);
        // A copy of one that runs, and one that has stopped.
        msb.words("clone --start box hot").ok();
        same(&before, &python("hot", TELL, ""));
        assert!(depth(&msb, "hot") < 20, "{}", depth(&msb, "hot"));
        assert!(depth(&msb, "box") >= MANY);
        msb.words("stop -f box").ok();
        msb.words("snapshot create deep --from box").ok();
        assert!(depth(&msb, "box") < 20, "{}", depth(&msb, "box"));
        msb.words("snapshot verify deep").ok();
        msb.words("start -q box").ok();
        same(&before, &python("box", TELL, ""));
        msb.words("restore deep --name two --start").ok();
        same(&before, &python("two", TELL, ""));
        // It still knows what it was made from.
        msb.words("stop -f box").ok();
        msb.words("reset box").ok();
        msb.words("start -q box").ok();
        same(&restored, &python("box", TELL, ""));
        msb.words("rm -f box hot two base").ok();
        msb.words("snapshot rm -f deep").ok();
        msb.words("snapshot rm -f base").ok();
        eventually("no layer is left", || frozen(&msb).is_empty());
    }
}

#[test]
fn no_number_of_base_layers_is_too_many() {
    for msb in Msb::each() {
        let python = |name: &str, script: &str, word: &str| {
            msb.run(["exec", name, "--", "/usr/bin/python3", "-c", script, word]).ok().stdout
        };
        msb.words("create -q -n box host").ok();
        for round in ["1", "2", "3"] {
            python("box", CHANGE, round);
            msb.words("stop -f box").ok();
            msb.words("clone --stopped box one").ok();
            msb.words("rm one").ok();
            msb.words("start -q box").ok();
        }
        msb.words("stop -f box").ok();
        pad(&msb, "box", LayerOwner::Base);
        msb.words("start -q box").ok();
        python("box", "open('/root/pad/more', 'w')", "");
        let before = python("box", TELL, "");
        msb.words("stop -f box").ok();
        msb.words("clone --start box two").ok();
        assert!(depth(&msb, "box") < 20 && depth(&msb, "two") < 20, "{}", depth(&msb, "box"));
        same(&before, &python("two", TELL, ""));
        msb.words("stop -f two").ok();
        msb.words("reset two").ok();
        msb.words("start -q two").ok();
        let look = ["exec", "two", "--", "sh", "-c", "ls /root; ls /root/pad | wc -l"];
        assert!(msb.run(look).line().starts_with("pad\n3"));
    }
}

/// Compares two long texts and shows only where they differ.
#[track_caller]
fn same(before: &str, after: &str) {
    let missing = |one: &str, other: &str| -> Vec<String> {
        let known: HashSet<&str> = other.lines().collect();
        one.lines().filter(|line| !known.contains(line)).map(str::to_owned).collect()
    };
    let (gone, new) = (missing(before, after), missing(after, before));
    assert!(before == after, "gone: {gone:#?}\nnew: {new:#?}");
}

fn plan_file(msb: &Msb, name: &str) -> PathBuf {
    msb.home().join(format!("sandboxes/{name}/plan.json"))
}

fn plan(msb: &Msb, name: &str) -> Value {
    let text = fs::read(plan_file(msb, name)).expect("a plan");
    serde_json::from_slice(&text).expect("json")
}

fn depth(msb: &Msb, name: &str) -> usize {
    plan(msb, name)["rootfs"]["overlays"][0]["lowers"].as_array().map_or(0, Vec::len)
}

/// Which part of a sandbox has too many layers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LayerOwner {
    /// The sandbox's own.
    Sandbox,
    /// Of what it was made from.
    Base,
}

/// Puts more layers below a sandbox, each with one file, as if it had been saved that often.
fn pad(msb: &Msb, name: &str, owner: LayerOwner) {
    // As every writer of layers does: layers that no Plan names yet would be collected.
    let lock = File::options().read(true).open(msb.home().join("frozen/lock")).expect("a lock");
    fcntl_lock(&lock, FlockOperation::LockShared).expect("a lock that is taken for moments");
    let mut plan = plan(msb, name);
    let own = plan["rootfs"]["own"].as_u64().unwrap_or(0);
    let below = if owner == LayerOwner::Sandbox { 0 } else { usize::try_from(own).expect("few") };
    let count = MANY - depth(msb, name);
    let overlays = plan["rootfs"]["overlays"].as_array().expect("overlays").len();
    for number in 0..count {
        let place = msb.home().join(format!("frozen/{number:032x}"));
        fs::create_dir(&place).expect("a place");
        msb.chown(&place);
        for at in 0..overlays {
            let lowers = plan["rootfs"]["overlays"][at]["lowers"].as_array_mut().expect("layers");
            let like = lowers[0].clone();
            let meta = fs::metadata(like["path"].as_str().expect("a path")).expect("a layer");
            let upper = place.join(format!("upper{at}"));
            let mut made = vec![upper.clone()];
            if at == 0 {
                made.extend([upper.join("root"), upper.join("root/pad")]);
            }
            for path in &made {
                fs::create_dir(path).expect("a directory");
            }
            if at == 0 {
                fs::write(upper.join(format!("root/pad/{number}")), "x").expect("a file");
                made.push(upper.join(format!("root/pad/{number}")));
            }
            for path in &made {
                chown(path, Some(meta.uid()), Some(meta.gid())).expect("an owner");
            }
            let path = upper.display().to_string();
            lowers.insert(
                below,
                json!({ "path": path, "owned": true, "written_as": like["written_as"] }),
            );
        }
    }
    if owner == LayerOwner::Sandbox {
        plan["rootfs"]["own"] = (own + count as u64).into();
    }
    fs::write(plan_file(msb, name), plan.to_string()).expect("a plan");
}
