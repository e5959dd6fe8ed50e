//! The directory that a benchmark lives in: programs that the ordinary user may run, a static
//! root filesystem of his, room for state. Removed on drop, with everything that still runs.

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, id};

use anyhow::{Context, Result};

use super::runner::{Runner, User, View};
use super::stopwatch::Argv;
use crate::workspace;

/// Not /tmp, which is often memory: copies shall be measured on a disk.
const PARENT: &str = "/var/tmp";

/// What the works call inside.
const PROGRAMS: &[&str] = &["true", "sh", "sleep", "tar", "rm", "mkdir"];

pub(super) struct Place {
    /// Torn down before the directory goes: `Drop` runs before the fields are dropped.
    teardowns: Vec<Teardown>,
    plain: Runner,
    no_hybrid: Runner,
    pub(super) user: User,
    dir: Dir,
}

/// What ends something that was started here.
struct Teardown {
    view: View,
    argv: Argv,
}

impl Place {
    pub(super) fn make(user: &'static str, msb: &Path) -> Result<Self> {
        let dir = Dir::make(Path::new(PARENT).join(format!("msb-bench-{}", id())))?;
        dir.program("msb", msb)?;
        dir.program("xtask", &env::current_exe().context("cannot find this program")?)?;
        rootfs(&dir.path("rootfs"))?;
        for name in ["home", "run", "log", "host"] {
            fs::create_dir(dir.path(name))?;
        }
        fs::set_permissions(dir.path("run"), Permissions::from_mode(0o700))?;
        for name in ["rootfs", "home", "run", "log", "host"] {
            workspace::run(
                Command::new("chown").arg("-R").arg(format!("{user}:")).arg(dir.path(name)),
            )?;
        }
        let user = User { name: user, variables: variables(&dir) };
        let runner =
            |view, log| Runner::start(&user, view, &dir.path("xtask"), &dir.path("log").join(log));
        Ok(Place {
            teardowns: Vec::new(),
            plain: runner(View::Plain, "plain")?,
            no_hybrid: runner(View::NoHybrid, "no-hybrid")?,
            user,
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

impl Drop for Place {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Removed on drop.
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
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("warning: cannot remove `{}`: {error}", self.0.display());
        }
    }
}

/// The whole environment of what is measured.
fn variables(dir: &Dir) -> Vec<(&'static str, String)> {
    let path = |name| dir.path(name).display().to_string();
    vec![
        ("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin".to_owned()),
        ("HOME", path("home")),
        ("MSB_HOME", path("home/.msb")),
        ("MSB_PATH", path("msb")),
        ("XDG_RUNTIME_DIR", path("run")),
    ]
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
        let path = env::temp_dir().join(format!("msb-xtask-place-{}", id()));
        let dir = Dir::make(path.clone()).unwrap();
        fs::create_dir(dir.path("a")).unwrap();
        fs::write(dir.path("a/b"), "").unwrap();

        drop(dir);

        assert!(!path.exists());
    }
}
