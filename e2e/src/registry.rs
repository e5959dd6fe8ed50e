//! A real registry on loopback: Debian's docker-registry with a storage of its own.
//!
//! It never outlives the tests, not even those that are killed: it ends with a pipe that they
//! hold.

use crate::images::Layout;
use crate::tokens::TokenServer;
use crate::{CmdOutput, HANG, Msb, eventually, gives, shared};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The user that a registry with a password lets in.
pub const USER: &str = "agent";
/// The password of [`USER`].
pub const PASSWORD: &str = "correct horse";
/// bcrypt of [`PASSWORD`], which takes a tool that is not everywhere to make.
const PASSWORD_HASH: &str = "$2y$05$TQcfTNt6x7T0RnGijKWHOuuoPjQ0L5Q1.0Jm2seHIbOSpzSwalxKa";

/// One registry. It ends, and what it holds is gone, when it is dropped.
#[derive(Debug)]
pub struct Registry {
    directory: PathBuf,
    process: Child,
    address: String,
    asks: AuthMode,
    tokens: Option<TokenServer>,
}

/// How a registry authenticates clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AuthMode {
    Nothing,
    Password,
    Token,
    Tls,
}

/// One line of the registry's access log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// `GET` and the like.
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// The status that was answered.
    pub status: u16,
    /// How many bytes the answer had.
    pub bytes: u64,
}

impl Registry {
    /// Without any protection.
    pub fn plain() -> Self {
        Self::start(AuthMode::Nothing)
    }

    /// One that asks for [`USER`] and [`PASSWORD`] in each request.
    pub fn with_password() -> Self {
        Self::start(AuthMode::Password)
    }

    /// One that sends clients to a [`TokenServer`].
    pub fn with_tokens() -> Self {
        Self::start(AuthMode::Token)
    }

    /// A registry that speaks only TLS, with a certificate signed by [`Registry::ca`].
    pub fn with_tls() -> Self {
        Self::start(AuthMode::Tls)
    }

    /// The plain one that all tests of a run share, for what they only read.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Registry> = OnceLock::new();
        SHARED.get_or_init(Self::plain)
    }

    fn start(asks: AuthMode) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = shared().join(format!("registry-{number}"));
        fs::create_dir(&directory).expect("a directory for the registry");
        let tokens = (asks == AuthMode::Token).then(|| TokenServer::start(&directory));
        let settings = directory.join("config.yml");
        fs::write(&settings, settings_of(asks, &directory, tokens.as_ref())).expect("a file");
        // The registry ends when the pipe is closed; that includes the end of our process.
        let script = "docker-registry serve \"$0\" >\"$1\" 2>\"$2\" </dev/null & \
                      cat >/dev/null; kill $!; wait $!";
        let process = Command::new("sh")
            .args(["-c", script])
            .args([&settings, &directory.join("access.log"), &directory.join("said.log")])
            .env_remove("REGISTRY_HTTP_ADDR")
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh can be executed");
        let mut registry = Self { directory, process, address: String::new(), asks, tokens };
        registry.address = registry.listens_at();
        registry
    }

    /// The port is the kernel's choice, so that tests do not race for one; the log says which.
    fn listens_at(&self) -> String {
        let mut address = None;
        let log = self.directory.join("said.log");
        eventually("docker-registry listens", || {
            let said = fs::read_to_string(&log).unwrap_or_default();
            address = said.split_once("listening on 127.0.0.1:").map(|(_, rest)| {
                let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
                format!("127.0.0.1:{port}")
            });
            address.is_some()
        });
        address.expect("found above")
    }

    /// Its host and port, as in the name of an image.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its address as a mirror is written.
    pub fn url(&self) -> String {
        let scheme = if self.asks == AuthMode::Tls { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The full name of an image in it.
    pub fn name(&self, repository: &str) -> String {
        format!("{}/{repository}", self.address)
    }

    /// The CA certificate of a registry with TLS.
    pub fn ca(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// The server of its tokens.
    pub fn tokens(&self) -> &TokenServer {
        self.tokens.as_ref().expect("a registry with tokens")
    }

    /// Pushes an image of a layout with skopeo, all platforms of it, and gives its full name.
    #[track_caller]
    pub fn push(&self, layout: &Layout, repository: &str) -> String {
        let name = self.name(repository);
        Self::ask("copy", |command| {
            command.args(["--all", "--preserve-digests", "--dest-tls-verify=false"]);
            if self.asks_for_a_name() {
                command.arg(format!("--dest-creds={USER}:{PASSWORD}"));
            }
            command.arg(layout.skopeo()).arg(format!("docker://{name}"));
        });
        name
    }

    /// What `skopeo inspect --raw` says of an image: its manifest or index, to the byte.
    #[track_caller]
    pub fn manifest(&self, repository: &str) -> String {
        let gave = Self::ask("inspect", |command| {
            command.args(["--raw", "--tls-verify=false"]);
            if self.asks_for_a_name() {
                command.arg(format!("--creds={USER}:{PASSWORD}"));
            }
            command.arg(format!("docker://{}", self.name(repository)));
        });
        gave.stdout
    }

    fn asks_for_a_name(&self) -> bool {
        matches!(self.asks, AuthMode::Password | AuthMode::Token)
    }

    #[track_caller]
    fn ask(verb: &str, arguments: impl FnOnce(&mut Command)) -> CmdOutput {
        let mut command = skopeo(verb);
        arguments(&mut command);
        gives(&mut command).ok()
    }

    /// What it was asked so far, in order, but for what the tests' own skopeo asked.
    ///
    /// The log has a line when an answer is over, which may be after its reader went on; so this
    /// waits until the log does not grow.
    pub fn requests(&self) -> Vec<Request> {
        let read = || fs::read_to_string(self.directory.join("access.log")).unwrap_or_default();
        let mut log = read();
        loop {
            std::thread::sleep(Duration::from_millis(50));
            let now = read();
            if now == log {
                let ours = log.lines().filter(|line| !line.contains("\"skopeo/"));
                return ours.filter_map(Request::parse).collect();
            }
            log = now;
        }
    }

    /// The requests for the content of a blob, whole or in part.
    pub fn fetched(&self, digest: &str) -> Vec<Request> {
        let path = format!("/blobs/{digest}");
        let is_it = |request: &Request| request.method == "GET" && request.path.ends_with(&path);
        self.requests().into_iter().filter(is_it).collect()
    }

    /// Where it keeps what was pushed.
    pub fn storage(&self) -> PathBuf {
        self.directory.join("storage")
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Request {
    /// Reads `127.0.0.1 - - [date] "GET /v2/ HTTP/1.1" 200 2 "" "agent"`.
    fn parse(line: &str) -> Option<Self> {
        let mut quoted = line.split('"');
        let mut first = quoted.nth(1)?.split(' ');
        let mut numbers = quoted.next()?.split_whitespace();
        Some(Self {
            method: first.next()?.to_owned(),
            path: first.next()?.to_owned(),
            status: numbers.next()?.parse().ok()?,
            bytes: numbers.next()?.parse().ok()?,
        })
    }
}

/// skopeo as a test calls it: no policy and no login of the machine decides, and it does not
/// wait for ever.
pub fn skopeo(verb: &str) -> Command {
    prepared(Command::new("skopeo"), verb)
}

impl Msb {
    /// [`skopeo`] as the user.
    pub fn skopeo(&self, verb: &str) -> Command {
        prepared(self.user_command("skopeo"), verb)
    }
}

fn prepared(mut skopeo: Command, verb: &str) -> Command {
    skopeo.args(["--insecure-policy", "--command-timeout", &format!("{}s", HANG.as_secs())]);
    skopeo.arg(verb).stdin(Stdio::null());
    skopeo.env("REGISTRY_AUTH_FILE", shared().join("no-auth.json"));
    skopeo
}

fn settings_of(asks: AuthMode, directory: &Path, tokens: Option<&TokenServer>) -> String {
    let at = |name: &str| directory.join(name).display().to_string();
    let mut settings = format!(
        "version: 0.1\n\
         log:\n  level: info\n  accesslog: {{disabled: false}}\n\
         storage:\n  filesystem: {{rootdirectory: {}}}\n  delete: {{enabled: true}}\n\
         http:\n  addr: 127.0.0.1:0\n",
        at("storage")
    );
    match asks {
        AuthMode::Nothing => {}
        AuthMode::Password => {
            fs::write(at("passwords"), format!("{USER}:{PASSWORD_HASH}\n")).expect("a file");
            settings +=
                &format!("auth:\n  htpasswd: {{realm: tests, path: {}}}\n", at("passwords"));
        }
        AuthMode::Token => {
            let tokens = tokens.expect("started before");
            settings += &format!(
                "auth:\n  token:\n    realm: {}\n    service: tests\n    issuer: tests\n    \
                 rootcertbundle: {}\n",
                tokens.url(),
                tokens.certificate().display()
            );
        }
        AuthMode::Tls => {
            certify(directory);
            settings += &format!(
                "  tls: {{certificate: {}, key: {}}}\n",
                at("server.pem"),
                at("server.key")
            );
        }
    }
    settings
}

/// Makes an authority and a certificate of it for loopback.
fn certify(directory: &Path) {
    let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let openssl = |first: &[&str], rest: &[&str]| {
        openssl(directory, &[first, &curve, rest].concat());
    };
    openssl(
        &["req", "-x509", "-days", "2"],
        &["-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=msb tests"],
    );
    openssl(&["req"], &["-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost"]);
    fs::write(directory.join("names"), "subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        .expect("a file");
    crate::registry::openssl(
        directory,
        &[
            &["x509", "-req", "-days", "2", "-in", "server.csr", "-out", "server.pem"][..],
            &["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"],
        ]
        .concat(),
    );
}

/// Runs openssl in a directory.
pub(crate) fn openssl(directory: &Path, arguments: &[&str]) {
    let output = Command::new("openssl").args(arguments).current_dir(directory).output();
    let output = output.expect("openssl is installed");
    assert!(
        output.status.success(),
        "openssl {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
