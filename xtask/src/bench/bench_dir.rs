//! The directory that a benchmark lives in: programs that the ordinary user may run, a static
//! root filesystem of his, room for state. Removed on drop, with everything that still runs.

use std::cell::Cell;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, id};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result};

use super::runner::{Runner, User, View};
use super::stopwatch::Argv;
use crate::workspace;

/// Not /tmp, which is often memory: copies shall be measured on a disk.
const PARENT: &str = "/var/tmp";

/// Where directories of users are.
const OWN: &str = "own";

/// Trees that are removed at a time: that waits for the disk more than it works.
const REMOVALS: usize = 8;

/// What the works call inside.
const PROGRAMS: &[&str] = &["true", "sh", "sleep", "tar", "rm", "mkdir"];

pub(super) struct BenchDir {
    /// Torn down before the directory goes: `Drop` runs before the fields are dropped.
    teardowns: Vec<Teardown>,
    plain: Runner,
    no_hybrid: Runner,
    pub(super) user: User,
    /// For what is also to be measured as root, with a home of its own.
    pub(super) root: User,
    /// Runners and directories made so far.
    made: Cell<usize>,
    dir: Dir,
}

/// What ends something that was started here.
struct Teardown {
    view: View,
    argv: Argv,
}

impl BenchDir {
    pub(super) fn make(user: &'static str, msb: &Path) -> Result<Self> {
        let dir = Dir::make(Path::new(PARENT).join(format!("msb-bench-{}", id())))?;
        dir.program("msb", msb)?;
        dir.program("xtask", &workspace::own_program()?)?;
        rootfs(&dir.path("rootfs"))?;
        for name in ["home", "run", "log", "host", "root"] {
            fs::create_dir(dir.path(name))?;
        }
        for name in ["run", "root"] {
            fs::set_permissions(dir.path(name), Permissions::from_mode(0o700))?;
        }
        for name in ["rootfs", "home", "run", "log", "host"] {
            give(&dir.path(name), user)?;
        }
        let root = User { name: "root", variables: variables(&dir, "root", "root") };
        let user = User { name: user, variables: variables(&dir, "home", "run") };
        let runner =
            |view, log| Runner::start(&user, view, &dir.path("xtask"), &dir.path("log").join(log));
        Ok(BenchDir {
            teardowns: Vec::new(),
            plain: runner(View::Plain, "plain")?,
            no_hybrid: runner(View::NoHybrid, "no-hybrid")?,
            user,
            root,
            made: Cell::new(0),
            dir,
        })
    }

    /// A path below the directory, as programs take it.
    pub(super) fn path(&self, name: &str) -> String {
        self.dir.path(name).display().to_string()
    }

    pub(super) fn runner(&self, view: View) -> &Runner {
        match view {
            View::Plain => &self.plain,
            View::NoHybrid => &self.no_hybrid,
        }
    }

    /// One more, for another user or environment than those that are always there.
    pub(super) fn another(&self, user: &User, view: View) -> Result<Runner> {
        let log = self.dir.path("log").join(self.number());
        Runner::start(user, view, &self.dir.path("xtask"), &log)
    }

    /// A directory of a user's, with a short name: podman takes none of more than fifty letters.
    pub(super) fn directory(&self, user: &User) -> Result<String> {
        let path = self.dir.path(OWN).join(self.number());
        fs::create_dir_all(&path)?;
        give(&path, user.name)?;
        Ok(path.display().to_string())
    }

    fn number(&self) -> String {
        self.made.replace(self.made.get() + 1).to_string()
    }

    /// Copies a program to where the ordinary user may run it.
    pub(super) fn program(&self, name: &str, from: &Path) -> Result<String> {
        self.dir.program(name, from)?;
        Ok(self.path(name))
    }

    /// Starts something that lasts. What ends it is noted before, so that a start that fails
    /// halfway is cleaned up too.
    pub(super) fn start(&mut self, view: View, start: &Argv, end: Argv) -> Result<()> {
        self.teardowns.push(Teardown { view, argv: end });
        self.runner(view).run(start)?;
        Ok(())
    }

    /// Ends all that was started.
    pub(super) fn clear(&mut self) {
        for Teardown { view, argv } in std::mem::take(&mut self.teardowns) {
            if let Err(error) = self.runner(view).run(&argv) {
                eprintln!("warning: {}: {error:#}", argv.join(" "));
            }
        }
    }
}

impl Drop for BenchDir {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A directory that is removed on drop.
struct Dir(PathBuf);

impl Dir {
    fn make(path: PathBuf) -> Result<Self> {
        fs::create_dir(&path).with_context(|| format!("cannot create `{}`", path.display()))?;
        let dir = Dir(path);
        fs::set_permissions(&dir.0, Permissions::from_mode(0o755))?;
        Ok(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn program(&self, name: &str, from: &Path) -> Result<()> {
        let to = self.path(name);
        fs::copy(from, &to).with_context(|| format!("cannot copy `{}`", from.display()))?;
        fs::set_permissions(to, Permissions::from_mode(0o755))?;
        Ok(())
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        remove_trees(&self.path(OWN));
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("warning: cannot remove `{}`: {error}", self.0.display());
        }
    }
}

/// Removes what is in a directory. What stays is reported when the directory itself is removed.
fn remove_trees(dir: &Path) {
    let trees = Mutex::new(fs::read_dir(dir).into_iter().flatten());
    let next = || trees.lock().expect("no holder panics").next();
    thread::scope(|scope| {
        for _ in 0..REMOVALS {
            scope.spawn(|| {
                while let Some(tree) = next() {
                    let _ = tree.map(|tree| fs::remove_dir_all(tree.path()));
                }
            });
        }
    });
}

/// The whole environment of what is measured.
fn variables(dir: &Dir, home: &str, run: &str) -> Vec<(&'static str, String)> {
    let path = |name: &str| dir.path(name).display().to_string();
    vec![
        ("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin".to_owned()),
        ("HOME", path(home)),
        ("MSB_HOME", path(&format!("{home}/.msb"))),
        ("MSB_PATH", path("msb")),
        // As the others have none; what measures networks asks for one.
        ("MSB_NET", "none".to_owned()),
        ("XDG_RUNTIME_DIR", path(run)),
    ]
}

/// Gives a tree to a user.
pub(super) fn give(path: &Path, user: &str) -> Result<()> {
    workspace::run(Command::new("chown").args(["-R", "-h"]).arg(format!("{user}:")).arg(path))
}

fn rootfs(root: &Path) -> Result<()> {
    for name in ["bin", "dev", "etc", "proc", "root", "sys", "tmp"] {
        fs::create_dir_all(root.join(name))?;
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).context("cannot copy busybox")?;
    for name in PROGRAMS {
        symlink("busybox", root.join("bin").join(name))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    fs::write(root.join("etc/group"), "root:x:0:\n")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_directory_is_left() {
        let path = std::env::temp_dir().join(format!("msb-xtask-place-{}", id()));
        let dir = Dir::make(path.clone()).unwrap();
        for name in ["a", "own", "own/1", "own/2"] {
            fs::create_dir(dir.path(name)).unwrap();
            fs::write(dir.path(name).join("file"), "").unwrap();
        }

        drop(dir);

        assert!(!path.exists());
    }
}
