//! `msb server`: sandboxes over HTTP.

use super::bare_engine;
use crate::http_server::{HostArgs, block_on, ceiling, listen, told_to_stop, world};
use crate::listing;
use crate::output::{self, Outcome};
use crate::secret_argument;
use crate::verb_table::LocalVerb;
use clap::{Parser, ValueEnum};
use msb_api::{Api, prometheus};
use msb_client::Collector;
use msb_engine::Home;
use msb_server::{
    AuthMode, HttpState, Keys, RequestLog, RequestLogFormat, Scope, SelfSigned, ServedRoutes,
    USUAL_EXPIRY, serve_http,
};
use msb_spec::{Ceiling, DomainName, Error, Kind, Result, Span, env};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A server that is asked to end finishes what it is at.
const STOP_LIMIT: Duration = Duration::from_secs(15);
/// It listens within milliseconds, unless the machine is swamped.
const START_LIMIT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);
/// An address, a few numbers, and the rules of a ceiling.
const RECORD_LIMIT: u64 = 64 << 10;

/// Serves sandboxes over HTTP: MCP in every dialect, each at its own path.
///
/// It keeps nothing itself: sandboxes are those of `msb ls`, and outlive it.
#[derive(Debug, Parser)]
pub(crate) struct ServerStartArgs {
    /// Ask for no keys; on loopback only
    #[arg(long)]
    dev: bool,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// The port to listen on; 0 takes any that is free
    #[arg(long, short, value_name = "PORT", default_value_t = 5555)]
    port: u16,
    /// A host name that clients may use besides loopback, such as that of a reverse proxy
    #[arg(long = "allowed-host", value_name = "NAME", value_parser = allowed_host)]
    allowed_hosts: Vec<String>,
    /// Serve TLS with this certificate, or chain of certificates, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Serve TLS with a certificate that msb makes once; clients know it by its fingerprint
    #[arg(long, conflicts_with = "tls_cert")]
    tls_self_signed: bool,
    /// Go on in the background
    #[arg(long, short)]
    detach: bool,
    /// A file with the secret that keys are signed with, in place of the one in the state directory; `-` is
    /// stdin, and the variable MSB_SERVER_SECRET may hold it, too
    #[arg(long, short, value_name = "@FILE", conflicts_with = "reset_key")]
    key: Option<String>,
    /// Make a new secret first, so that no key of before is good any more
    #[arg(long)]
    reset_key: bool,
    #[command(flatten)]
    of_host: HostArgs,
    /// Tell this collector of OpenTelemetry how much sandboxes use, as in `http://127.0.0.1:4318`
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// How often
    #[arg(long, value_name = "TIME", default_value = "15s")]
    otlp_interval: Span,
    /// Log each request: method, path without the query, status, milliseconds and key id; the default is
    /// `text`, with `--detach` it is `off`
    #[arg(long, value_name = "FORMAT")]
    log: Option<LogFormat>,
    #[arg(long, hide = true)]
    background: bool,
}

/// How requests are logged on stderr, or in `server.log` of a server in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// One line of text for each request
    Text,
    /// One JSON object for each request
    Json,
    /// Requests are not logged
    Off,
}

/// Ends the server; sandboxes go on.
#[derive(Debug, Parser)]
pub(crate) struct ServerStopArgs {}

/// Shows whether a server runs, and where. The exit code is 1 if none does.
#[derive(Debug, Parser)]
pub(crate) struct ServerStatusArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Makes a key for clients of the server and prints it, once.
#[derive(Debug, Parser)]
pub(crate) struct ServerKeygenArgs {
    /// How long it is good, as in `3h` or `30d`
    #[arg(long, value_name = "TIME")]
    expire: Option<Span>,
    /// The namespace that it is for; `*` is all
    #[arg(long, short, value_name = "NAME", default_value = "*")]
    namespace: String,
    /// A file with the secret that it is signed with: that of a server which was started with one of its own; `-`
    /// is stdin, and the variable MSB_SERVER_SECRET may hold it, too
    #[arg(long, short, value_name = "@FILE")]
    key: Option<String>,
}

/// What a server writes down about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    pid: i32,
    address: SocketAddr,
    dev: bool,
    /// The fingerprint of its certificate; none without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tls: Option<String>,
    /// The most that its clients may ask for.
    #[serde(default)]
    ceiling: Ceiling,
}

impl Record {
    /// The address for `--remote`, with the fingerprint that it pins.
    fn url(&self) -> String {
        match &self.tls {
            Some(fingerprint) => format!("https://{}#{fingerprint}", self.address),
            None => format!("http://{}", self.address),
        }
    }
}

impl LocalVerb for ServerStartArgs {
    fn run(self) -> Outcome {
        if self.dev && !self.host.is_loopback() {
            return Err(Error::invalid(format!(
                "`--dev` asks for no keys, and {} is not loopback",
                self.host
            ))
            .hint("leave out `--dev`; `msb server keygen` makes keys")
            .into());
        }
        if self.dev && !self.allowed_hosts.is_empty() {
            return Err(Error::invalid(
                "`--dev` asks for no keys, and `--allowed-host` lets others in",
            )
            .hint("leave out `--dev`; `msb server keygen` makes keys")
            .into());
        }
        let home = bare_engine()?.home().clone();
        if self.detach && !self.background {
            let record = self.leave_behind(&home)?;
            say_where(&record);
            return Ok(0);
        }
        if self.background {
            let _ = rustix::process::setsid();
        }
        let mut seat = Seat::take(&home)?;
        let door = self.door(&home)?;
        let log = self.request_log();
        let collector = self.collector()?;
        let certificate = self.certificate(&home)?;
        let ceiling = ceiling(&self.of_host.ceiling)?;
        let world = world(self.of_host, ceiling.clone())?;
        let listener = listen(self.host, self.port)?;
        let address = listener.local_addr();
        let address = address.map_err(|error| Error::host("cannot listen", error))?;
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let tls = certificate.as_ref().map(|(chain, _)| msb_server::fingerprint(chain));
        let record = Record { pid, address, dev: self.dev, tls: tls.transpose()?, ceiling };
        seat.write(&record)?;
        if !self.background {
            say_where(&record);
        }
        if !self.host.is_loopback() && certificate.is_none() {
            output::note("keys travel as they are: use `--tls-cert` or `--tls-self-signed`");
        }
        if let Some(collector) = collector {
            export(collector, Arc::clone(&world.api), self.otlp_interval.0)?;
        }
        let mut state =
            HttpState::new(world, door).with_request_log(log).with_hosts(self.allowed_hosts);
        if let Some((chain, key)) = certificate {
            state = state.with_tls(&chain, &key)?;
        }
        block_on(serve_http(listener, state, ServedRoutes::All, told_to_stop()))?;
        Ok(0)
    }
}

/// Often enough for any graph, seldom enough for any collector.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

/// Tells a collector how much sandboxes use, again and again, until this process ends.
fn export(collector: Collector, api: Arc<dyn Api>, interval: Duration) -> Result<()> {
    let tell = move || {
        let mut well = true;
        loop {
            let told = prometheus::gather(&*api, |_| true).and_then(|all| collector.send(&all));
            // One that is away is told of once, and asked again.
            match &told {
                Err(error) if well => output::print_error(error),
                Ok(()) if !well => output::note("the collector is there again"),
                _ => {}
            }
            well = told.is_ok();
            std::thread::sleep(interval.max(SHORTEST_INTERVAL));
        }
    };
    let thread = std::thread::Builder::new().name("otlp".to_owned()).spawn(tell);
    thread.map(drop).map_err(|error| Error::host("cannot make a thread", error))
}

impl ServerStartArgs {
    /// Where the usage of sandboxes is sent, if anywhere.
    fn collector(&self) -> Result<Option<Collector>> {
        let endpoint = self.otlp.clone().or_else(|| std::env::var(env::OTLP_ENDPOINT).ok());
        let headers = std::env::var(env::OTLP_HEADERS).unwrap_or_default();
        let endpoint = endpoint.filter(|endpoint| !endpoint.is_empty());
        endpoint.map(|endpoint| Collector::new(&endpoint, &headers)).transpose()
    }

    /// The certificate chain and the key for TLS in PEM, if it is wanted.
    fn certificate(&self, home: &Home) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let read = |path: &Path| {
            std::fs::read(path)
                .map_err(|error| Error::host(format!("cannot read `{}`", path.display()), error))
        };
        if let (Some(path), Some(key)) = (&self.tls_cert, &self.tls_key) {
            let chain = read(path)?;
            msb_server::fingerprint(&chain).map_err(|error| {
                error.under(format!("cannot use the certificate `{}`", path.display()))
            })?;
            return Ok(Some((chain, read(key)?)));
        }
        if !self.tls_self_signed {
            return Ok(None);
        }
        // Kept, so that its fingerprint stays. Both in one file, which is there or not.
        let path = home.path().join("server-tls.pem");
        if !path.exists() {
            let made = SelfSigned::new(self.own_names())?;
            let about = |error| Error::host(format!("cannot write `{}`", path.display()), error);
            let aside = path.with_extension("new");
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.open(&aside).map_err(about)?;
            let text = format!("{}{}", made.certificate, made.key);
            file.write_all(text.as_bytes()).map_err(about)?;
            std::fs::rename(&aside, &path).map_err(about)?;
        }
        let both = read(&path)?;
        Ok(Some((both.clone(), both)))
    }

    /// Names and addresses that clients may reach this server by.
    fn own_names(&self) -> Vec<String> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let addresses = msb_sys::net::own_addresses().unwrap_or_default();
        let addresses = addresses.into_iter().chain([self.host]);
        let addresses = addresses.filter(|it| !it.is_unspecified()).map(|it| it.to_string());
        let mut names: Vec<String> = ["localhost".to_owned(), host]
            .into_iter()
            .chain(self.allowed_hosts.iter().cloned())
            .chain(addresses)
            .filter(|name| !name.is_empty())
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// Where requests are logged. The file of a server in the background is not bounded, so that it
    /// logs only if it is told to.
    fn request_log(&self) -> Option<RequestLog> {
        let usual = if self.background { LogFormat::Off } else { LogFormat::Text };
        let format = match self.log.unwrap_or(usual) {
            LogFormat::Text => RequestLogFormat::Text,
            LogFormat::Json => RequestLogFormat::Json,
            LogFormat::Off => return None,
        };
        Some(RequestLog::new(format, |line| output::write_stderr(line.as_bytes())))
    }

    fn door(&self, home: &Home) -> Result<AuthMode> {
        if self.dev {
            return Ok(AuthMode::Open);
        }
        let keys = match (secret_of(self.key.as_deref())?, self.reset_key) {
            (Some(_), true) => {
                let error = format!(
                    "`--reset-key` is for the secret of the state directory, and {} is set",
                    env::SERVER_SECRET
                );
                return Err(Error::invalid(error));
            }
            (Some(secret), false) => Keys::of(secret.as_bytes())?,
            (None, true) => Keys::reset(home.path())?,
            (None, false) => Keys::open(home.path())?,
        };
        Ok(AuthMode::Keys(keys))
    }

    /// Starts the same again, without us, and waits until it listens.
    fn leave_behind(&self, home: &Home) -> Result<Record> {
        if let Some(record) = running(home)? {
            return Err(already(&record));
        }
        let path = home.server_log();
        let about = |error| Error::host("cannot start the server", error);
        let mut options = OpenOptions::new();
        options.create(true).write(true).truncate(true).mode(0o600);
        let log = options.open(&path).map_err(about)?;
        // A file is read there; stdin here, and handed on.
        let secret = self.key.as_deref().filter(|key| !key.starts_with('@'));
        let secret = secret.map(|key| secret_of(Some(key)));
        let secret = secret.transpose()?.flatten();
        let mut child = Command::new("/proc/self/exe")
            .args(std::env::args_os().skip(1))
            .arg("--background")
            .stdin(if secret.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(log.try_clone().map_err(about)?)
            .stderr(log)
            .spawn()
            .map_err(about)?;
        if let (Some(mut stdin), Some(secret)) = (child.stdin.take(), secret) {
            // One that ended already says why itself.
            let _ = stdin.write_all(secret.as_bytes());
        }
        let since = Instant::now();
        loop {
            if let Some(record) = running(home)? {
                return Ok(record);
            }
            if let Some(_status) = child.try_wait().map_err(about)? {
                let said = std::fs::read_to_string(&path).unwrap_or_default();
                let said = said.trim().trim_start_matches("error: ").to_owned();
                return Err(Error::new(Kind::State, "the server ended at once").cause(said));
            }
            if since.elapsed() > START_LIMIT {
                let _ = child.kill();
                return Err(Error::new(Kind::Timeout, "the server did not begin to listen")
                    .hint(format!("`{}` may say why", path.display())));
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl LocalVerb for ServerStopArgs {
    fn run(self) -> Outcome {
        let home = bare_engine()?.home().clone();
        let record = running(&home)?.ok_or_else(none)?;
        let pid = rustix::process::Pid::from_raw(record.pid).ok_or_else(none)?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .map_err(|error| Error::host("cannot end the server", std::io::Error::from(error)))?;
        let since = Instant::now();
        while running(&home)?.is_some() {
            if since.elapsed() > STOP_LIMIT {
                return Err(Error::new(Kind::Timeout, "the server does not end")
                    .hint(format!("`kill -9 {}` ends it; sandboxes go on", record.pid))
                    .into());
            }
            std::thread::sleep(LOOK);
        }
        output::result("status", "stopped");
        Ok(0)
    }
}

impl LocalVerb for ServerStatusArgs {
    fn run(self) -> Outcome {
        let home = bare_engine()?.home().clone();
        let record = running(&home)?;
        if self.json {
            listing::json(&serde_json::json!({"running": record.is_some(), "server": record}));
        } else if let Some(record) = &record {
            let keys = if record.dev { "no keys are asked for" } else { "keys are asked for" };
            output::print(format!("running on {} (pid {}), {keys}", record.url(), record.pid));
            output::print(format!("clients may ask for {}", record.ceiling));
        } else {
            output::print("not running");
        }
        Ok(i32::from(record.is_none()))
    }
}

impl LocalVerb for ServerKeygenArgs {
    fn run(self) -> Outcome {
        let home = bare_engine()?.home().clone();
        let keys = match secret_of(self.key.as_deref())? {
            Some(secret) => Keys::of(secret.as_bytes())?,
            None => Keys::open(home.path())?,
        };
        let expire = self.expire.map_or(USUAL_EXPIRY, |span| span.0);
        let made = keys.keygen(expire, &Scope::parse(&self.namespace)?)?;
        output::result("key", made.token);
        Ok(0)
    }
}

/// The secret of a server's own, if there is one: what the flag means, or the variable.
fn secret_of(flag: Option<&str>) -> Result<Option<String>> {
    let variable = env::SERVER_SECRET;
    match flag {
        Some(text) => secret_argument::read("--key", text, variable, true).map(Some),
        None => Ok(std::env::var(variable).ok().filter(|secret| !secret.is_empty())),
    }
}

/// A host name or address that a client may put into its `Host` header.
fn allowed_host(text: &str) -> Result<String> {
    match text.parse::<IpAddr>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => DomainName::parse(text).map(|name| name.to_string()),
    }
}

fn say_where(record: &Record) {
    output::result("url", record.url());
    if !record.dev {
        output::note("clients need a key: `msb server keygen` makes one");
    }
}

fn none() -> Error {
    Error::new(Kind::State, "no server runs").hint("`msb server start` starts one")
}

fn already(record: &Record) -> Error {
    Error::new(Kind::Exists, format!("a server runs already, on {}", record.url()))
        .hint("`msb server stop` ends it")
}

/// The state file of the server. The process that holds its lock is the server.
struct Seat {
    path: PathBuf,
    /// Locked as long as the server runs.
    _lock: File,
    /// What the server says of itself, locked as well: so what is read is of one that lives.
    record: Option<File>,
}

impl Seat {
    fn take(home: &Home) -> Result<Self> {
        let about = |error| Error::host("cannot take the server's place", error);
        let path = home.server();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(path.with_extension("lock")).map_err(about)?;
        if !msb_sys::lock::try_lock(&lock).map_err(about)? {
            return Err(running(home)?.map_or_else(
                || Error::new(Kind::State, "a server is just starting"),
                |record| already(&record),
            ));
        }
        Ok(Self { path, _lock: lock, record: None })
    }

    /// Writes down where the server is, for as long as it lives.
    fn write(&mut self, record: &Record) -> Result<()> {
        let text = serde_json::to_vec(record).unwrap_or_default();
        let aside = self.path.with_extension("new");
        let write = || -> std::io::Result<File> {
            let mut options = OpenOptions::new();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
            msb_sys::lock::try_lock(&file)?;
            file.write_all(&text)?;
            std::fs::rename(&aside, &self.path)?;
            Ok(file)
        };
        let written = write();
        let about = |error| Error::host("cannot write where the server is", error);
        self.record = Some(written.map_err(about)?);
        Ok(())
    }
}

/// The server that runs, if one does.
fn running(home: &Home) -> Result<Option<Record>> {
    let about = |error| Error::host("cannot look for a server", error);
    let file = match File::options().read(true).write(true).open(home.server()) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(about)?,
    };
    if !msb_sys::lock::is_locked(&file).map_err(about)? {
        return Ok(None);
    }
    let mut text = Vec::new();
    file.take(RECORD_LIMIT).read_to_end(&mut text).map_err(about)?;
    Ok(serde_json::from_slice(&text).ok())
}
