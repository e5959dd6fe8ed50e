//! The test network: a host on which msb runs, and a simulated internet one veth pair away.
//!
//! Made once for each test process, of network, mount and PID namespaces, by `setup.sh`, and full
//! of real servers. Nothing of the machine that runs the tests is touched, and what it holds ends
//! with the tests, even if they are killed.

use msb_e2e::{CmdOutput, Msb, ends, eventually, skip};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

const PARTS: &[(&str, &str)] = &[
    ("setup.sh", include_str!("testnet/setup.sh")),
    ("servers.py", include_str!("testnet/servers.py")),
    ("wheel.py", include_str!("testnet/wheel.py")),
    ("dnsmasq.conf", include_str!("testnet/dnsmasq.conf")),
    ("nginx.conf.in", include_str!("testnet/nginx.conf.in")),
    ("inside/probe.py", include_str!("inside/probe.py")),
    ("inside/frames.py", include_str!("inside/frames.py")),
    ("inside/hosts.py", include_str!("inside/hosts.py")),
    ("inside/smuggle.py", include_str!("inside/smuggle.py")),
    ("inside/streams.py", include_str!("inside/streams.py")),
    ("inside/web.py", include_str!("inside/web.py")),
];

/// The address of the web server on the simulated internet.
pub(crate) const WEB: &str = "203.0.113.10";

/// The test network of this test process.
#[derive(Debug)]
pub(crate) struct TestNet {
    directory: PathBuf,
    /// Its first process, which ends when our end of its stdin is closed.
    first: Child,
}

impl TestNet {
    /// The test network; `None` without root, which is needed to make one.
    pub(crate) fn get() -> Option<&'static Self> {
        static TESTNET: OnceLock<Option<TestNet>> = OnceLock::new();
        let net = TESTNET.get_or_init(|| Msb::new().is_root().then(Self::make));
        if net.is_none() {
            skip("only root can make a network to test in");
        }
        net.as_ref()
    }

    /// All users to test as: root and an ordinary one.
    pub(crate) fn users() -> Vec<TestUser> {
        let Some(net) = Self::get() else { return Vec::new() };
        let place = |msb: Msb| TestUser { msb: msb.in_namespaces_of(net.first.id()), net };
        Msb::each().into_iter().map(place).collect()
    }

    /// All users, and one without subordinate ids.
    pub(crate) fn users_and_one_id() -> Vec<TestUser> {
        let mut users = Self::users();
        let net = users.first().map(|user| user.net);
        let one_id = net.and_then(|net| Some((net, Msb::with_one_id()?)));
        users.extend(
            one_id.map(|(net, msb)| TestUser { msb: msb.in_namespaces_of(net.first.id()), net }),
        );
        users
    }

    fn make() -> Self {
        let directory = msb_e2e::shared().join("world");
        fs::create_dir_all(directory.join("inside")).expect("a directory");
        for (name, text) in PARTS {
            fs::write(directory.join(name), text).expect("a file");
        }
        let said = fs::File::create(directory.join("setup.log")).expect("a file");
        let first = Command::new("unshare")
            .args(["--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "setup.sh"])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", &directory)
            .current_dir(&directory)
            .stdin(Stdio::piped())
            .stdout(said.try_clone().expect("a descriptor"))
            .stderr(said)
            .spawn()
            .expect("unshare is part of every Debian");
        let mut net = Self { directory, first };
        eventually("the test network is up", || {
            let ended = net.first.try_wait().expect("a child");
            let said = || fs::read_to_string(net.directory.join("setup.log"));
            assert!(ended.is_none(), "no test network: {}", said().unwrap_or_default());
            net.directory.join("ready").exists()
        });
        net
    }

    /// A file of the test network.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The CA certificate that signed the certificates of all servers.
    pub(crate) fn authority(&self) -> PathBuf {
        self.file("ca.pem")
    }

    /// Connections to servers that no sandbox may reach.
    pub(crate) fn canaries(&self) -> Vec<String> {
        self.log("canaries").lines().map(str::to_owned).collect()
    }

    /// A log of the servers.
    pub(crate) fn log(&self, name: &str) -> String {
        fs::read_to_string(self.file(&format!("log/{name}.log"))).unwrap_or_default()
    }

    /// The requests for paths that hold this word, as the servers that tell understood them.
    pub(crate) fn requests(&self, word: &str) -> Vec<serde_json::Value> {
        let log = self.log("requests");
        let all = log.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        let is_it = |one: &serde_json::Value| one["path"].as_str().unwrap_or("").contains(word);
        all.filter(is_it).collect()
    }

    /// A program of the machine that msb runs on, as its root.
    pub(crate) fn at_home(&self, program: &str) -> Command {
        let mut command = Command::new("/usr/bin/nsenter");
        command.arg(format!("--target={}", self.first.id())).args(["--mount", "--net", "--"]);
        command.arg(program).stdin(Stdio::null()).current_dir("/");
        command
    }

    /// A program of the internet: at home it would come from the host.
    pub(crate) fn outside(&self, program: &str) -> Command {
        let mut command = Command::new("/usr/bin/nsenter");
        command.arg(format!("--target={}", self.first.id())).arg("--mount");
        // The file is a mount, visible only in the mount namespace of the test network.
        command.args(["--", "/usr/bin/nsenter"]);
        command.arg(format!("--net={}", self.file("internet").display())).arg("--").arg(program);
        command.stdin(Stdio::null()).current_dir("/");
        command
    }
}

/// Changes to the mounts after which no network device can be made: there is none, or it is
/// none.
pub(crate) const WITHOUT_TUN: [&str; 2] =
    ["mount -t tmpfs none /dev/net", "mount --bind /dev/null /dev/net/tun"];

/// A command of a test user, run after this change to its mounts; `None` for a command that does
/// not enter the test network.
pub(crate) fn changed(command: &Command, change: &str) -> Option<Command> {
    // As root: before the command enters the network and becomes another user.
    let words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let at = words.iter().position(|word| word == "-C")? - 1;
    let script = format!("{change} && exec \"$@\"");
    let mut wrapped = Command::new(command.get_program());
    wrapped.args(&words[..at]);
    wrapped.args(["unshare", "--mount", "sh", "-c", &script, "sh"]).args(&words[at..]);
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(key, value),
            None => wrapped.env_remove(key),
        };
    }
    wrapped.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(wrapped)
}

/// A user of the test network's host, with an `msb` of its own.
#[derive(Debug)]
pub(crate) struct TestUser {
    pub(crate) msb: Msb,
    pub(crate) net: &'static TestNet,
}

impl TestUser {
    /// `msb` with these arguments and the network that it gives by itself.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.msb.command(args);
        command.env_remove("MSB_NET").env("SSL_CERT_FILE", self.net.authority());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Any program of the machine that msb runs on, as this user.
    pub(crate) fn at_home(&self, program: &str) -> Command {
        let mut command = self.msb.user_command(program);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs `msb` with these arguments.
    #[track_caller]
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> CmdOutput {
        ends(self.command(args).spawn().expect("msb can be executed"))
    }

    /// Runs `msb` with these arguments and reads the JSON that it writes.
    #[track_caller]
    pub(crate) fn json<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
    ) -> serde_json::Value {
        let gave = self.run(args).ok();
        serde_json::from_str(&gave.stdout).unwrap_or_else(|error| panic!("{error}: {gave:#?}"))
    }

    /// The network events of a sandbox, or those of them that hold this word.
    #[track_caller]
    pub(crate) fn events(&self, name: &str, word: &str) -> Vec<serde_json::Value> {
        let gave = self.run(["events", "--net", "--json", name]).ok();
        let lines = gave.stdout.lines().filter(|line| line.contains(word));
        lines.map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Waits for network events with this word: decisions are logged with a delay.
    #[track_caller]
    pub(crate) fn told(&self, name: &str, word: &str) -> Vec<serde_json::Value> {
        let mut events = Vec::new();
        eventually(&format!("an event with `{word}`"), || {
            events = self.events(name, word);
            !events.is_empty()
        });
        events
    }

    /// Runs a shell script in a new sandbox of the `host` image made with these flags.
    #[track_caller]
    pub(crate) fn inside(&self, flags: &[&str], script: &str) -> CmdOutput {
        ends(self.inside_command(flags, script).spawn().expect("msb can be executed"))
    }

    /// The command of [`TestUser::inside`], to be changed further.
    pub(crate) fn inside_command(&self, flags: &[&str], script: &str) -> Command {
        let mut args: Vec<OsString> = ["run", "-q"].map(OsString::from).to_vec();
        args.extend(self.usual(flags));
        args.extend(["host", "--", "sh", "-c", script].map(OsString::from));
        self.command(args)
    }

    /// Tries the probes of `inside/probe.py` in a new sandbox.
    #[track_caller]
    pub(crate) fn probe(&self, flags: &[&str], probes: &[&str]) -> Vec<String> {
        lines(&self.inside(flags, &probing(probes)))
    }

    /// Tries the probes of `inside/probe.py` in a running sandbox.
    #[track_caller]
    pub(crate) fn probe_in(&self, name: &str, probes: &[&str]) -> Vec<String> {
        lines(&self.within(name, &probing(probes)))
    }

    /// Makes a sandbox of the `host` image that goes on until the test is over.
    #[track_caller]
    pub(crate) fn lasting(&self, name: &str, flags: &[&str]) {
        ends(self.lasting_command(name, flags).spawn().expect("msb can be executed")).ok();
    }

    /// The command of [`TestUser::lasting`], to be changed further.
    pub(crate) fn lasting_command(&self, name: &str, flags: &[&str]) -> Command {
        let mut args: Vec<OsString> = ["create", "-q", "-n", name].map(OsString::from).to_vec();
        args.extend(self.usual(flags));
        args.push("host".into());
        self.command(args)
    }

    /// Runs a shell script in a sandbox that runs.
    #[track_caller]
    pub(crate) fn within(&self, name: &str, script: &str) -> CmdOutput {
        self.run(["exec", name, "--", "sh", "-c", script])
    }

    fn usual(&self, flags: &[&str]) -> Vec<OsString> {
        let inside = format!("{}:/world:ro", self.net.file("inside").display());
        let flags = flags.iter().map(OsString::from);
        ["-v".into(), inside.into()].into_iter().chain(flags).collect()
    }

    /// The state directory.
    pub(crate) fn home(&self) -> PathBuf {
        self.msb.home()
    }

    /// Where the tests may write.
    pub(crate) fn scratch(&self) -> &Path {
        self.msb.scratch()
    }
}

fn probing(probes: &[&str]) -> String {
    let quoted: Vec<String> = probes.iter().map(|probe| format!("'{probe}'")).collect();
    format!("/usr/bin/python3 /world/probe.py {}", quoted.join(" "))
}

#[track_caller]
fn lines(gave: &CmdOutput) -> Vec<String> {
    gave.clone().ok().stdout.lines().map(str::to_owned).collect()
}
