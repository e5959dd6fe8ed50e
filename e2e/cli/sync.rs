//! `msb sync`: changes of a host directory are copied into a sandbox, and nothing else is.

mod changes;
mod excludes;
mod start_stop;

use crate::files::described;
use msb_e2e::{Msb, eventually};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// A source with some files, a sandbox, and both kept in step.
struct SyncFixture {
    msb: Msb,
    source: PathBuf,
    id: String,
}

impl SyncFixture {
    /// For each user, with `flags` of `sync start`.
    fn each(flags: &[&str]) -> Vec<Self> {
        Msb::each().into_iter().map(|msb| Self::new(msb, flags)).collect()
    }

    fn new(msb: Msb, flags: &[&str]) -> Self {
        msb.words("create -n box").ok();
        msb.file("src/a/deep/file", "deep");
        msb.file("src/top", "top");
        let source = msb.scratch().join("src");
        let id = msb.run([&["sync", "start", "src", "box:/app"], flags].concat()).line();
        Self { msb, source, id }
    }

    /// A path in the source.
    fn at(&self, path: &str) -> PathBuf {
        self.source.join(path)
    }

    /// Writes a file of the source, with the directories above it.
    fn write(&self, path: &str, content: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("below the source")).expect("a directory");
        fs::write(path, content).expect("a file");
    }

    /// What a script inside says.
    fn inside(&self, script: &str) -> String {
        self.msb.run(["exec", "box", "--", "sh", "-c", script]).line()
    }

    /// Everything below the target, sorted.
    fn names(&self) -> Vec<String> {
        let found = self.inside("cd /app; find . -mindepth 1 | sort");
        found.lines().map(|name| name.trim_start_matches("./").to_owned()).collect()
    }

    /// The only sync in the list.
    #[track_caller]
    fn listed(&self) -> Value {
        let listed = self.msb.json(["sync", "ls", "--json"]);
        assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed:#}");
        listed[0].clone()
    }

    /// Both sides are equal in the end: names, kinds, permissions and content.
    #[track_caller]
    fn meet(&self) {
        meet(&self.msb, &self.source, "/app");
    }
}

#[track_caller]
fn meet(msb: &Msb, source: &Path, target: &str) {
    let mut wanted = described(source);
    wanted.retain(|line| !line.starts_with("/ "));
    let mut found = Vec::new();
    let back = msb.scratch().join("back");
    let begun = std::time::Instant::now();
    // Not `eventually`: what differs has to be shown.
    while begun.elapsed() < msb_e2e::HANG {
        let _ = fs::remove_dir_all(&back);
        // While something is being replaced it may be gone for a copy.
        if msb.run(["cp", &format!("box:{target}"), "back"]).code == 0 {
            found = described(&back);
            found.retain(|line| !line.starts_with("/ "));
            if found == wanted {
                return;
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    found.retain(|line| !wanted.contains(line));
    wanted.retain(|line| !described(&back).contains(line));
    let listed = msb.words("sync ls").stdout;
    panic!("only outside: {wanted:#?}\nonly inside: {found:#?}\n{listed}");
}

/// Waits until a file inside says this.
#[track_caller]
fn says(msb: &Msb, path: &str, content: &str) {
    eventually(&format!("{path} says {content:?}"), || {
        let gave = msb.run(["exec", "box", "--", "cat", path]);
        gave.code == 0 && gave.stdout == content
    });
}
