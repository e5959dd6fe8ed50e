//! What serving needs, whatever is served: sandboxes, a runtime, what is usual.

use crate::output;
use crate::target::{bare_engine, tidy_up};
use clap::Args;
use msb_engine::{Engine, Launcher};
use msb_server::{
    Dialect, DialectName, HostPaths, MOST_CALLS, MicrosandboxSettings, SandboxMcpProfile,
    SandboxMcpSettings, ServerConfig, ToolFilter,
};
use msb_spec::{CallOrigin, Ceiling, Error, Name, Reach, Result, Secret, Spec, Surface};
use std::collections::BTreeMap;
use std::net::{IpAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

/// Threads beside those of calls: for what is read, and for names that are looked up.
const MORE_THREADS: usize = 64;

/// What of this host clients may use.
#[derive(Debug, Clone, Args)]
pub(crate) struct HostArgs {
    /// A directory of this host that clients may name files of; if none is given the current one, but
    /// never the whole home directory
    #[arg(long = "host-path", value_name = "DIR")]
    host_paths: Vec<PathBuf>,
    /// A variable of this program that clients may use as a secret, for these hosts only
    #[arg(long = "secret-env", value_name = "NAME@HOST[,HOST…]", value_parser = Secret::parse)]
    secret_env: Vec<Secret>,
    /// The most that clients may ask for, as in `reach=private,bind=0.0.0.0`; see docs/http.md
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) ceiling: Vec<String>,
}

/// The sandboxes of this machine, for clients that may use this of the host and ask for as much as the
/// ceiling leaves.
pub(crate) fn world(host: HostArgs, ceiling: Ceiling) -> Result<ServerConfig> {
    msb_engine::raise_file_limit();
    // This process has threads, so it cannot become a worker by forking.
    let engine = Engine::open(Launcher::Execute("/proc/self/exe".into()))?
        .with_default_origin(CallOrigin::new(Surface::Server))
        .for_clients(ceiling);
    tidy_up(&engine);
    let mut settings = MicrosandboxSettings::read(|name| std::env::var(name).ok())?;
    settings.secret_env = host.secret_env;
    settings.program = std::env::current_exe().ok();
    settings.kernel = engine.guest_kernel().ok().map(|kernel| kernel.path);
    let listed = (!host.host_paths.is_empty())
        .then(|| HostPaths::below(host.host_paths, HOST_PATH))
        .or_else(|| settings.paths());
    let paths = listed.unwrap_or_else(current_directory).without_state(engine.home().path())?;
    let sandbox_mcp = SandboxMcpSettings {
        state: Some(engine.dialect_state(DialectName::SandboxMcp.as_str())),
        profiles: engine
            .profiles()?
            .into_iter()
            .map(|(name, it)| (name.to_string(), profile(&it)))
            .collect(),
        children: engine.settled_children(&Name::parse("default")?, &BTreeMap::new())?,
    };
    let defaults = usual_spec(&engine)?;
    let world = ServerConfig::new(Arc::new(engine), Arc::new(paths), defaults);
    Ok(ServerConfig { microsandbox: settings, sandbox_mcp, ..world })
}

const HOST_PATH: &str = "`--host-path`";

/// What clients may name where nothing was said: the current directory, unless it is the user's home or lies
/// above it. Desktop applications start servers there, and offering all of it is never meant.
fn current_directory() -> HostPaths {
    let current = std::env::current_dir().and_then(|path| path.canonicalize());
    let current = current.unwrap_or_else(|_| PathBuf::from("/"));
    let said =
        std::env::var_os("HOME").map(PathBuf::from).and_then(|home| home.canonicalize().ok());
    let homes = [Some(PathBuf::from("/")), said, home_of_user()];
    if homes.iter().flatten().any(|home| home.starts_with(&current)) {
        let current = current.display();
        output::note(format!(
            "clients may name no files of this host: `{current}` is not offered as a whole; \
             `--host-path DIR` offers a directory"
        ));
        return HostPaths::below([], HOST_PATH);
    }
    HostPaths::below([current], HOST_PATH)
}

/// The home directory that the host has for this user, whatever the environment says.
fn home_of_user() -> Option<PathBuf> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let uid = rustix::process::getuid().as_raw().to_string();
    let home = users.lines().find_map(|line| {
        let mut parts = line.split(':').skip(2);
        (parts.next()? == uid).then(|| parts.nth(2)).flatten()
    });
    PathBuf::from(home?).canonicalize().ok()
}

/// The most that clients may ask for: as config.toml says, then as the flag does. How far sandboxes
/// reach by default is as far as clients may ask for, unless the operator says otherwise.
pub(crate) fn ceiling(flags: &[String]) -> Result<Ceiling> {
    let mut ceiling = bare_engine()?.ceiling()?;
    for flag in flags {
        ceiling = ceiling.with(flag)?;
    }
    // It raises the ceiling and never lowers it: a network may be asked for where none is usual.
    let usual = msb_engine::conf::defaults()?.network;
    if ceiling.reach.is_none() && usual != Some(Reach::None) {
        ceiling.reach = usual;
    }
    Ok(ceiling)
}

/// A profile of config.toml as the dialect has it.
fn profile(it: &msb_engine::SandboxProfile) -> SandboxMcpProfile {
    SandboxMcpProfile { cpus: it.cpus, memory: it.memory, virtualization: it.virtualization }
}

/// What a sandbox is where its client says nothing else: the defaults of the operator, as far as the
/// ceiling allows them.
fn usual_spec(engine: &Engine) -> Result<Spec> {
    let defaults = msb_engine::conf::defaults()?;
    let network = Some(defaults.network(defaults.network_base(), false)?);
    Ok(engine.lowered_to_ceiling(Spec { network, ..defaults.spec() }))
}

/// A dialect with only the tools that were asked for.
pub(crate) fn selected(dialect: Arc<dyn Dialect>, tools: &[String]) -> Result<Arc<dyn Dialect>> {
    if tools.is_empty() {
        return Ok(dialect);
    }
    let all: Vec<String> = dialect.tools().iter().map(|tool| tool.name.clone()).collect();
    match ToolFilter::new(dialect, tools) {
        Ok(selected) => Ok(Arc::new(selected)),
        Err(pattern) => {
            let error = Error::invalid(format!("no tool is called `{pattern}`"));
            Err(match msb_spec::nearest(&pattern, all.iter().map(String::as_str)) {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => error.hint(format!("there are {}", all.join(", "))),
            })
        }
    }
}

/// Runs this to its end; calls that are still at work then end with us.
pub(crate) fn block_on(work: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(MOST_CALLS + MORE_THREADS)
        .enable_all()
        .build()
        .map_err(|error| Error::host("cannot start a runtime", error))?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

/// Ends with the first SIGINT or SIGTERM of this process.
pub(crate) async fn told_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

/// Listens, or says why not.
pub(crate) fn listen(host: IpAddr, port: u16) -> Result<TcpListener> {
    TcpListener::bind((host, port)).map_err(|error| {
        let in_use = error.kind() == std::io::ErrorKind::AddrInUse;
        let error = Error::host(format!("cannot listen on {host}, port {port}"), error);
        if in_use { error.hint("`--port` takes another; 0 takes any that is free") } else { error }
    })
}
