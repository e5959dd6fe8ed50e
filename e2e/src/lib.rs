//! What the black-box tests share: the real binary, a state directory of its own, and a user.
//!
//! A test may assume Linux, the packages that `cargo xtask ci` installs, and nothing of the
//! machine's own state. What it cannot test it says with [`skip`].

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// `msb` with a state directory of its own, as one user. Everything is gone when it is dropped.
#[derive(Debug)]
pub struct Msb {
    scratch: PathBuf,
    user: Option<String>,
}

/// What a command gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gave {
    /// Exit code; 128+n for signal n.
    pub code: i32,
    /// What it wrote.
    pub stdout: String,
    /// What it said.
    pub stderr: String,
}

impl Gave {
    /// Itself, if the exit code was zero.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{self:#?}");
        self
    }

    /// Its stdout without the last line end, if the exit code was zero.
    #[track_caller]
    pub fn line(self) -> String {
        self.ok().stdout.trim_end_matches('\n').to_owned()
    }
}

impl From<Output> for Gave {
    fn from(output: Output) -> Self {
        use std::os::unix::process::ExitStatusExt;
        let status = output.status;
        Self {
            code: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Msb {
    /// As whoever runs the tests.
    pub fn new() -> Self {
        Self::make(None)
    }

    /// As an ordinary user; none where the tests are not root and so are one already.
    pub fn as_user() -> Option<Self> {
        std::env::var("MSB_TEST_USER").ok().map(|user| Self::make(Some(user)))
    }

    /// Every user that there is to test as: root and an ordinary one, or just the latter.
    pub fn each() -> Vec<Self> {
        [Some(Self::new()), Self::as_user()].into_iter().flatten().collect()
    }

    fn make(user: Option<String>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let scratch = shared().join(format!("{number}"));
        fs::create_dir(&scratch).expect("a scratch directory");
        let msb = Self { scratch, user };
        msb.own(&msb.scratch);
        msb
    }

    /// Whether it runs as root.
    pub fn is_root(&self) -> bool {
        self.user.is_none() && own_uid() == 0
    }

    /// A directory for the test's own files, owned by the user.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// The state directory.
    pub fn home(&self) -> PathBuf {
        self.scratch.join("home")
    }

    /// Writes a file of the test's own, owned by the user, and gives its path.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.scratch.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).expect("a directory");
            self.own(parent);
        }
        fs::write(&path, content).expect("a file");
        self.own(&path);
        path
    }

    /// Gives a path to the user.
    pub fn own(&self, path: &Path) {
        if let Some(user) = &self.user {
            let (uid, gid) = ids_of(user);
            chown(path, Some(uid), Some(gid)).expect("root may give files away");
        }
    }

    /// A root filesystem with a static busybox, owned by the user.
    pub fn rootfs(&self) -> PathBuf {
        let root = self.scratch.join("rootfs");
        if root.exists() {
            return root;
        }
        for dir in ["", "bin", "etc", "tmp", "proc", "sys", "dev", "root", "usr", "usr/bin"] {
            fs::create_dir_all(root.join(dir)).expect("a directory");
        }
        fs::copy("/bin/busybox", root.join("bin/busybox")).expect("busybox-static is installed");
        for applet in [
            "sh",
            "cat",
            "echo",
            "ls",
            "id",
            "sleep",
            "true",
            "false",
            "mount",
            "dd",
            "wc",
            "stat",
            "touch",
            "chmod",
            "chown",
            "ln",
            "mkdir",
            "rm",
            "kill",
            "ps",
            "env",
            "head",
            "od",
            "mknod",
            "mkfifo",
            "su",
            "tee",
            "yes",
            "seq",
            "hostname",
            "ip",
            "unshare",
            "sync",
            "cp",
            "mv",
            "grep",
            "readlink",
            "md5sum",
            "sha256sum",
            "find",
            "test",
            "printf",
            "sort",
            "tr",
            "stty",
            "tty",
            "nc",
        ] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).expect("a link");
        }
        fs::write(
            root.join("etc/passwd"),
            "root:x:0:0:root:/root:/bin/sh\nweb:x:33:33:web:/tmp:/bin/sh\n",
        )
        .expect("a file");
        fs::write(root.join("etc/group"), "root:x:0:\nweb:x:33:\n").expect("a file");
        if let Some(user) = &self.user {
            let status =
                Command::new("chown").args(["-R", &format!("{user}:")]).arg(&root).status();
            assert!(status.is_ok_and(|status| status.success()), "chown of the rootfs");
        }
        root
    }

    /// The command, to be changed further. Isolation is `process`, so that nothing is noted.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.as_whom(shared().join("msb"));
        command.args(args);
        command
    }

    /// Any program as the user, with the environment of a test.
    pub fn as_whom(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match &self.user {
            None => Command::new(program),
            Some(user) => {
                let (uid, gid) = ids_of(user);
                let mut command = Command::new("setpriv");
                command.args([format!("--reuid={uid}"), format!("--regid={gid}")]);
                command.args(["--init-groups", "--"]).arg(program);
                command
            }
        };
        command
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", &self.scratch)
            .env("MSB_HOME", self.home())
            .env("MSB_ISOLATION", "process")
            .current_dir(&self.scratch)
            .stdin(Stdio::null());
        command
    }

    /// Runs `msb` with these arguments.
    #[track_caller]
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Gave {
        self.command(args).output().expect("msb can be executed").into()
    }

    /// Runs `msb` with these arguments and this stdin.
    #[track_caller]
    pub fn run_with<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
        stdin: &[u8],
    ) -> Gave {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("msb can be executed");
        let mut pipe = child.stdin.take().expect("a pipe");
        let bytes = stdin.to_vec();
        let writer = std::thread::spawn(move || drop(pipe.write_all(&bytes)));
        let output = child.wait_with_output().expect("msb ends");
        let _ = writer.join();
        output.into()
    }

    /// Runs `msb` with words separated by spaces.
    #[track_caller]
    pub fn words(&self, line: &str) -> Gave {
        self.run(line.split_whitespace())
    }
}

impl Default for Msb {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Msb {
    fn drop(&mut self) {
        let names = self.run(["ls", "-q"]).stdout;
        for name in names.lines() {
            self.run(["rm", "-f", name]);
        }
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

/// Says loudly that something was not tested, and why.
#[expect(clippy::print_stderr, reason = "the tally of xtask reads it")]
pub fn skip(reason: &str) {
    eprintln!("SKIP: {reason}");
}

/// A directory that every user can enter, with the binary in it.
fn shared() -> &'static Path {
    static SHARED: OnceLock<PathBuf> = OnceLock::new();
    SHARED.get_or_init(|| {
        let directory = std::env::temp_dir().join(format!("msb-e2e-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).expect("a directory for the tests");
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).expect("its permissions");
        let built = std::env::var_os("MSB_BIN").map_or_else(beside_the_tests, PathBuf::from);
        fs::copy(&built, directory.join("msb"))
            .unwrap_or_else(|error| panic!("no msb at {}: {error}", built.display()));
        fs::set_permissions(directory.join("msb"), Permissions::from_mode(0o755))
            .expect("its permissions");
        directory
    })
}

/// Where cargo puts the binary, seen from a test that it has built.
fn beside_the_tests() -> PathBuf {
    let exe = std::env::current_exe().expect("a test is a file");
    let profile = exe.parent().and_then(Path::parent).expect("target/PROFILE/deps/test");
    profile.join("msb")
}

fn own_uid() -> u32 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").expect("proc").uid()
}

fn ids_of(user: &str) -> (u32, u32) {
    let passwd = fs::read_to_string("/etc/passwd").expect("passwd");
    let line = passwd.lines().find(|line| line.split(':').next() == Some(user));
    let line = line.unwrap_or_else(|| panic!("no user {user}"));
    let number = |field: usize| line.split(':').nth(field).and_then(|id| id.parse().ok());
    (number(2).expect("a uid"), number(3).expect("a gid"))
}
