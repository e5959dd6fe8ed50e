//! What the black-box tests share: the real binary, a state directory of its own, and a user.
//!
//! A test may assume Linux, the packages that `cargo xtask ci` installs, and nothing of the
//! machine's own state. What it cannot test it says with [`skip`].

pub mod debian;
pub mod http_stub;
pub mod images;
mod init_rootfs;
pub mod listener;
pub mod mcp;
mod programs;
pub mod raw_image;
pub mod registry;
pub mod relay;
pub mod schema;
pub mod schema_client;
pub mod tar;
pub mod terminal;
pub mod tokens;

pub use init_rootfs::copy_program;
pub use programs::{as_unprivileged_user, compiled};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

/// Far longer than anything here takes on a busy machine, or on an emulated one: what is not over
/// by then hangs.
pub const HANG: Duration = Duration::from_secs(120);

/// A user of every Debian without an entry in /etc/subuid.
const USER_WITHOUT_SUBIDS: &str = "nobody";

/// `msb` with a state directory of its own, as one user. Everything is gone when it is dropped.
#[derive(Debug)]
pub struct Msb {
    scratch: PathBuf,
    user: Option<String>,
    namespace_pid: Option<u32>,
}

/// Exit code and output of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CmdOutput {
    /// Exit code; 128+n for signal n.
    pub code: i32,
    /// What it wrote.
    pub stdout: String,
    /// What it said.
    pub stderr: String,
}

impl CmdOutput {
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

/// Runs any program to its end.
#[track_caller]
pub fn gives(command: &mut Command) -> CmdOutput {
    match command.output() {
        Ok(output) => output.into(),
        Err(error) => panic!("cannot execute {command:?}: {error}"),
    }
}

impl From<Output> for CmdOutput {
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
    /// As the user that runs the tests.
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

    /// Like [`Msb::each`], without the shared layers: for tests that pull, count and remove.
    pub fn each_with_own_layers() -> Vec<Self> {
        let user = std::env::var("MSB_TEST_USER").ok();
        [Some(Self::with_own_layers()), user.map(|user| Self::bare(Some(user)))]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Like [`Msb::new`], without the layers that tests share.
    pub fn with_own_layers() -> Self {
        Self::bare(None)
    }

    /// As a user without subordinate ids; `None` where the tests are not root.
    pub fn with_one_id() -> Option<Self> {
        (own_uid() == 0).then(|| Self::bare(Some(USER_WITHOUT_SUBIDS.to_owned())))
    }

    /// Runs everything in the network and mount namespaces of a process.
    #[must_use]
    pub fn in_namespaces_of(mut self, pid: u32) -> Self {
        self.namespace_pid = Some(pid);
        self
    }

    fn make(user: Option<String>) -> Self {
        let msb = Self::bare(user);
        msb.share_layers();
        msb
    }

    fn bare(user: Option<String>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let scratch = shared().join(format!("{number}"));
        fs::create_dir(&scratch).expect("a scratch directory");
        let msb = Self { scratch, user, namespace_pid: None };
        msb.chown(&msb.scratch);
        msb.make_private_dir(&msb.home());
        msb
    }

    /// Lets all state directories of a user hold the same image layers. To build the thousands
    /// of entries of the `host` image takes longer than most tests; no two would differ.
    fn share_layers(&self) {
        let user = self.user.as_deref().unwrap_or("self");
        let layers = shared().join(format!("layers-{user}"));
        self.make_private_dir(&layers);
        std::os::unix::fs::symlink(layers, self.home().join("layers")).expect("a link");
    }

    fn make_private_dir(&self, directory: &Path) {
        fs::create_dir_all(directory).expect("a directory");
        fs::set_permissions(directory, Permissions::from_mode(0o700)).expect("its mode");
        self.chown(directory);
    }

    /// Whether it runs as root.
    pub fn is_root(&self) -> bool {
        self.user.is_none() && own_uid() == 0
    }

    /// Whether it runs as the user of [`Msb::with_one_id`].
    pub fn has_one_id(&self) -> bool {
        self.user.as_deref() == Some(USER_WITHOUT_SUBIDS)
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
            self.chown(parent);
        }
        fs::write(&path, content).expect("a file");
        self.chown(&path);
        path
    }

    /// Writes `config.toml` of the user.
    pub fn write_config(&self, settings: &str) {
        self.file("home/config.toml", settings);
    }

    /// Makes the user the owner of a path.
    pub fn chown(&self, path: &Path) {
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

    /// The command, to be changed further. Isolation is said, so that nothing is noted.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.user_command(shared().join("msb"));
        command.args(args);
        command
    }

    /// Any program as the user, with the environment of a test.
    pub fn user_command(&self, program: impl AsRef<OsStr>) -> Command {
        // By their paths: to look for them the standard library would fork, which copies the
        // tables of a process that may hold large images.
        let mut words: Vec<OsString> = Vec::new();
        if let Some(pid) = self.namespace_pid {
            words.extend(["/usr/bin/nsenter", "--net", "--mount"].map(OsString::from));
            words.push(format!("--target={pid}").into());
            // nsenter leaves the working directory at the root of the mounts.
            words.extend(["--", "/usr/bin/env", "-C"].map(OsString::from));
            words.push(self.scratch.clone().into());
        }
        if let Some(user) = &self.user {
            let (uid, gid) = ids_of(user);
            words.push("/usr/bin/setpriv".into());
            words.extend([format!("--reuid={uid}").into(), format!("--regid={gid}").into()]);
            words.extend(["--init-groups", "--"].map(OsString::from));
        }
        words.push(program.as_ref().to_owned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", &self.scratch)
            .env("MSB_HOME", self.home())
            .env("MSB_ISOLATION", isolation())
            // Most promises are not about the network; those that are ask for one.
            .env("MSB_NET", "none")
            .envs(std::env::var_os("MSB_KERNEL").map(|kernel| ("MSB_KERNEL", kernel)))
            .current_dir(&self.scratch)
            .stdin(Stdio::null());
        command
    }

    /// Runs `msb` with these arguments.
    #[track_caller]
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> CmdOutput {
        ends(self.spawn(args))
    }

    /// Begins `msb` with these arguments and no stdin; what it writes goes to pipes.
    #[track_caller]
    pub fn spawn<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Child {
        let mut command = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("msb can be executed")
    }

    /// Runs `msb` with these arguments and reads the JSON that it writes.
    #[track_caller]
    pub fn json<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> serde_json::Value {
        let gave = self.run(args).ok();
        serde_json::from_str(&gave.stdout).unwrap_or_else(|error| panic!("{error}: {gave:#?}"))
    }

    /// The worker of a running sandbox and everything below it.
    #[track_caller]
    pub fn processes(&self, name: &str) -> Vec<Process> {
        let inspected = self.json(["inspect", name]);
        let worker = inspected["worker"]["pid"].as_u64().expect("a worker that runs");
        Process::tree(u32::try_from(worker).expect("a pid"))
    }

    /// Runs `msb` with these arguments and this stdin.
    #[track_caller]
    pub fn run_with<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
        stdin: &[u8],
    ) -> CmdOutput {
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
        let gave = ends(child);
        let _ = writer.join();
        gave
    }

    /// Runs `msb` with words separated by spaces on a terminal, which gives one stream.
    #[track_caller]
    pub fn on_terminal(&self, line: &str) -> CmdOutput {
        let line = format!("{} {line}", shared().join("msb").display());
        let mut command = self.user_command("script");
        command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        ends(command.spawn().expect("script is part of every Debian"))
    }

    /// Runs `msb` with words separated by spaces.
    #[track_caller]
    pub fn words(&self, line: &str) -> CmdOutput {
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
        // By directory, because a listing leaves out what a test has damaged.
        for entry in fs::read_dir(self.home().join("sandboxes")).into_iter().flatten().flatten() {
            self.run([OsStr::new("rm"), OsStr::new("-f"), &entry.file_name()]);
        }
        if fs::remove_dir_all(&self.scratch).is_err() && own_uid() != 0 {
            // Layers of images belong to ids that only msb can act for.
            self.run(["image", "prune", "--all"]);
            let _ = fs::remove_dir_all(&self.scratch);
        }
    }
}

/// One process of the host, told apart from a later one with the same pid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its pid.
    pub pid: u32,
    /// What it calls itself.
    pub name: String,
    parent: u32,
    started: u64,
}

impl Process {
    /// A process that exists and has not ended.
    pub fn find(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // A name may hold anything, so the fields are counted from its end.
        let (head, tail) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = tail.split_whitespace().collect();
        let name = head.split_once('(')?.1.to_owned();
        let ended = matches!(fields[0], "Z" | "X");
        let process =
            Self { pid, name, parent: fields[1].parse().ok()?, started: fields[19].parse().ok()? };
        (!ended).then_some(process)
    }

    /// A process and all below it, parents first.
    pub fn tree(root: u32) -> Vec<Self> {
        let mut all: Vec<Self> = fs::read_dir("/proc")
            .expect("proc")
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter_map(Self::find)
            .collect();
        let mut tree: Vec<Self> = all.extract_if(.., |one| one.pid == root).collect();
        let mut at = 0;
        while at < tree.len() {
            let parent = tree[at].pid;
            tree.extend(all.extract_if(.., |one| one.parent == parent));
            at += 1;
        }
        tree
    }

    /// Whether it still runs.
    pub fn is_alive(&self) -> bool {
        Self::find(self.pid).is_some_and(|now| now.started == self.started)
    }

    /// Sends it a signal, by name.
    #[track_caller]
    pub fn signal(&self, signal: &str) {
        signal_pid(self.pid, signal);
    }
}

/// Sends a signal to a pid.
#[track_caller]
pub fn signal_pid(pid: u32, signal: &str) {
    let status = Command::new("kill").args(["-s", signal, &pid.to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()), "kill -s {signal} {pid}");
}

/// A TCP port of 127.0.0.1 that is free, for a program that is to listen there later. The kernel gives
/// no such port to sockets that ask for any, so no other program takes it meanwhile.
pub fn free_port() -> u16 {
    /// Below the range of ports for sockets that ask for any (`ip_local_port_range`).
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        // Test programs that run at the same time begin at different ports.
        let offset = std::process::id().wrapping_mul(97).wrapping_add(step) % COUNT;
        let port = u16::try_from(FIRST + offset).expect("below 65536");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Sends a signal to the process group that this process leads.
pub fn signal_group(leader: u32, signal: &str) {
    let status = Command::new("kill").args(["-s", signal, "--", &format!("-{leader}")]).status();
    assert!(status.is_ok_and(|status| status.success()), "kill -s {signal} -{leader}");
}

/// What a child gave at its end; kills it and fails if it hangs.
#[track_caller]
pub fn ends(child: Child) -> CmdOutput {
    ends_within(child, HANG)
}

/// Like [`ends`], for what may rightly take longer.
#[track_caller]
pub fn ends_within(mut child: Child, limit: Duration) -> CmdOutput {
    let pid = child.id();
    drop(child.stdin.take());
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(child.wait_with_output()));
    match told.recv_timeout(limit) {
        Ok(output) => output.expect("a child can be waited for").into(),
        Err(_) => {
            signal_pid(pid, "KILL");
            panic!("process {pid} still ran after {limit:?}");
        }
    }
}

/// Waits until something is so; fails if it never is.
#[track_caller]
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < HANG, "not so after {HANG:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Says loudly that something was not tested, and why.
#[expect(clippy::print_stderr, reason = "the tally of xtask reads it")]
pub fn skip(reason: &str) {
    eprintln!("SKIP: {reason}");
}

/// The tier that is tested: `process` by default.
fn isolation() -> String {
    std::env::var("MSB_TEST_ISOLATION").unwrap_or_else(|_| "process".to_owned())
}

const SHARED_PREFIX: &str = "msb-e2e-";

/// A directory that every user can enter, with the binary in it.
pub fn shared() -> &'static Path {
    static SHARED: OnceLock<PathBuf> = OnceLock::new();
    SHARED.get_or_init(|| {
        sweep();
        let directory = std::env::temp_dir().join(format!("{SHARED_PREFIX}{}", std::process::id()));
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

/// A test run cannot clean up behind itself, so the next one does.
fn sweep() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(SHARED_PREFIX).and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
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
