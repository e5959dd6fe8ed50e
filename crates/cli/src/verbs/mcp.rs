//! `msb mcp`: sandboxes for an MCP client, on stdin and stdout.

use super::tidy_up;
use crate::table::Act;
use crate::words::Outcome;
use clap::Parser;
use msb_engine::{Engine, Launcher};
use msb_server::{Dialect, HostPaths, Named, Selected, World, serve_stdio};
use msb_spec::{Error, NetworkSpec, Result, Spec, env};
use std::path::PathBuf;
use std::sync::Arc;

/// Speaks MCP on stdin and stdout, for a client that starts this program.
///
/// A dialect is a set of tools; clients that were written for another server find its own here.
#[derive(Debug, Parser)]
#[command(override_usage = "msb mcp [OPTIONS]\n       msb mcp COMMAND [OPTIONS]")]
pub(crate) struct Mcp {
    /// Which tools to show: `core`
    #[arg(long, value_name = "NAME", default_value = "core")]
    dialect: Named,
    /// Show only these tools, as in `run,file_*`
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    tools: Vec<String>,
    /// A directory of this host whose files clients may name; the current one if none is given
    #[arg(long = "host-path", value_name = "DIR")]
    host_paths: Vec<PathBuf>,
}

impl Act for Mcp {
    fn act(self) -> Outcome {
        let engine = Engine::open(Launcher::Execute("/proc/self/exe".into()))?;
        tidy_up(&engine);
        let paths = match self.host_paths.is_empty() {
            true => HostPaths::below(std::env::current_dir(), "`--host-path`"),
            false => HostPaths::below(self.host_paths, "`--host-path`"),
        };
        let world =
            World { api: Arc::new(engine), paths: Arc::new(paths), defaults: usual_spec()? };
        let dialect = selected(self.dialect.dialect(world), &self.tools)?;
        let failed = |error| Error::host("cannot start a runtime", error);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(failed)?;
        runtime.block_on(serve_stdio(dialect))?;
        // A call that is still at work ends with us.
        runtime.shutdown_background();
        Ok(0)
    }
}

/// What a sandbox is where its client says nothing else.
fn usual_spec() -> Result<Spec> {
    let mut spec = Spec::with_defaults();
    if let Ok(tier) = std::env::var(env::ISOLATION) {
        spec.isolation = tier.parse()?;
    }
    let net = std::env::var(env::NET).ok();
    spec.network = Some(NetworkSpec::default().or_usual(net.as_deref())?);
    Ok(spec)
}

fn selected(dialect: Arc<dyn Dialect>, tools: &[String]) -> Result<Arc<dyn Dialect>> {
    if tools.is_empty() {
        return Ok(dialect);
    }
    let all: Vec<String> = dialect.tools().iter().map(|tool| tool.name.clone()).collect();
    Selected::new(dialect, tools).map(|selected| Arc::new(selected) as Arc<dyn Dialect>).map_err(
        |pattern| {
            let error = Error::invalid(format!("no tool is called `{pattern}`"));
            match msb_spec::nearest(&pattern, all.iter().map(String::as_str)) {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => error.hint(format!("there are {}", all.join(", "))),
            }
        },
    )
}
