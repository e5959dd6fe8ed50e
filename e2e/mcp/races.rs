//! Attack 4, over MCP: paths that lead elsewhere between a look and a use.

use msb_e2e::Msb;
use msb_e2e::mcp::Client;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The content of a file that no client may read.
const SECRET: &str = "secret-of-the-host";
/// Each goes wrong within the first few where a path is looked at twice.
const ROUNDS: usize = 200;

/// A directory that may be named, in which a directory and a link to one outside change places all
/// the time, as a sandbox could do it that was given the directory.
struct SwappedDir {
    allowed: PathBuf,
    outside: PathBuf,
}

impl SwappedDir {
    fn set(msb: &Msb) -> Self {
        msb.file("allowed/tree/way/canary", "harmless");
        let canary = msb.file("outside/canary", SECRET);
        let outside = canary.parent().expect("it has one").to_owned();
        let allowed = msb.scratch().join("allowed");
        for path in [&allowed, &allowed.join("tree"), &allowed.join("tree/way")] {
            msb.chown(path);
        }
        symlink(&outside, allowed.join("other")).expect("a link");
        Self { allowed, outside }
    }

    fn way(&self) -> PathBuf {
        self.allowed.join("tree/way")
    }

    /// Does something again and again while they change places.
    fn spring(&self, mut each: impl FnMut(usize)) {
        let over = AtomicBool::new(false);
        let (way, other) = (self.way(), self.allowed.join("other"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // At changing paces: at full speed alone, a whole request seldom sees one state of it.
                for pace in (0..10).cycle() {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    renameat_with(CWD, &way, CWD, &other, RenameFlags::EXCHANGE).expect("both are");
                    if pace > 0 {
                        std::thread::sleep(Duration::from_micros(200 * pace));
                    }
                }
            });
            let _over = StopOnDrop(&over);
            (0..ROUNDS).for_each(&mut each);
        });
    }
}

/// Ends the other thread also where this one panics.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn client(msb: &Msb, trap: &SwappedDir, dialect: &str) -> Client {
    let allowed = trap.allowed.to_str().expect("text");
    Client::start(msb, &["--dialect", dialect, "--host-path", allowed])
}

fn inside(client: &mut Client, line: &str) -> String {
    let ran = client.call("sandbox_shell", json!({"name": "box", "command": line}));
    ran["content"][0]["text"].as_str().expect("text").to_owned()
}

#[test]
fn a_copy_in_reads_nothing_through_a_link_swapped_in() {
    for msb in Msb::each() {
        let trap = SwappedDir::set(&msb);
        let mut client = client(&msb, &trap, "microsandbox");
        client.call("sandbox_create", json!({"name": "box"}));
        let mut came = 0;
        for from in [trap.way().join("canary"), trap.way(), trap.allowed.clone()] {
            trap.spring(|_| {
                let copy = json!({"name": "box", "hostPath": from, "guestPath": "/root/got"});
                let copied = client.call("sandbox_fs_copy_from_host", copy);
                came += usize::from(copied["isError"] != true);
            });
            let found = inside(&mut client, "grep -r secret-of /root/got; true");
            assert!(!found.contains(SECRET), "{}: {found}", from.display());
            inside(&mut client, "rm -r /root/got");
        }
        assert_ne!(came, 0, "some of them went well");
        msb.words("rm -f box").ok();
    }
}

#[test]
fn a_copy_out_writes_nothing_through_a_link_swapped_in() {
    for msb in Msb::each() {
        let trap = SwappedDir::set(&msb);
        let mut client = client(&msb, &trap, "microsandbox");
        client.call("sandbox_create", json!({"name": "box"}));
        inside(&mut client, "mkdir /root/d; echo new | tee /root/d/a /root/d/b > /root/new");
        for (from, to) in [("/root/new", "new"), ("/root/d", "d"), ("/root/new", "canary")] {
            trap.spring(|_| {
                let to = trap.way().join(to);
                let copy = json!({"name": "box", "guestPath": from, "hostPath": to});
                client.call("sandbox_fs_copy_to_host", copy);
            });
            let names = fs::read_dir(&trap.outside).expect("it is there");
            let names: Vec<_> = names.map(|entry| entry.expect("one").file_name()).collect();
            assert_eq!(names, ["canary"], "{to}");
            let canary = fs::read_to_string(trap.outside.join("canary")).expect("it is there");
            assert_eq!(canary, SECRET);
        }
        msb.words("rm -f box").ok();
    }
}

#[test]
fn a_mount_shows_nothing_through_a_link_swapped_in() {
    for msb in Msb::each() {
        let trap = SwappedDir::set(&msb);
        let mut client = client(&msb, &trap, "core");
        let mut shown = 0;
        let mut look = |arguments: Value, path: &Path| {
            let made = client.call("sandbox_create", arguments);
            if made["isError"] == true {
                return;
            }
            let line = format!("cat {}", path.join("canary").display());
            let said = client.call("exec", json!({"sandbox": "box", "command": line})).to_string();
            assert!(!said.contains(SECRET), "{said}");
            shown += usize::from(said.contains("harmless"));
            client.call("sandbox_stop", json!({"sandbox": "box", "remove": true}));
        };
        trap.spring(|round| {
            // Each of these makes a sandbox, if it is let.
            if round % 2 == 0 {
                let mounts = json!([format!("{}:/m", trap.way().display())]);
                look(json!({"name": "box", "mounts": mounts}), Path::new("/m"));
            } else if msb.is_root() || round % 8 == 1 {
                let arguments = json!({"name": "box", "workspace": trap.way()});
                look(arguments, Path::new("/workspace"));
            }
        });
        assert_ne!(shown, 0, "some of them were made");
    }
}
