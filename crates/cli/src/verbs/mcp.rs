//! `msb mcp`: sandboxes for an MCP client.

use crate::http_server::{HostArgs, block_on, ceiling, listen, selected, told_to_stop, world};
use crate::output::{self, Outcome};
use crate::secret_argument;
use crate::verb_table::LocalVerb;
use clap::{Args, Parser, ValueEnum};
use msb_api::{Api, Sandboxes};
use msb_client::Client;
use msb_server::{
    AuthMode, DialectName, HttpState, OpenSandboxRemote, OpenSandboxSettings, ServedRoutes,
    serve_http, serve_stdio,
};
use msb_spec::{Error, Result, env};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

/// That of OpenSandbox's server, too.
const USUAL_PORT: u16 = 8000;

/// Speaks MCP on stdin and stdout, for a client that starts this program, or over HTTP.
///
/// A dialect is a set of tools; clients that were written for another server find its own here.
#[derive(Debug, Parser)]
#[command(override_usage = "msb mcp [OPTIONS]\n       msb mcp COMMAND [OPTIONS]")]
pub(crate) struct McpArgs {
    /// Which tools to show: `core`, `microsandbox`, `server`, `opensandbox` or `sandbox-mcp`
    #[arg(long, value_name = "NAME", default_value = "microsandbox")]
    dialect: DialectName,
    /// How the client comes here
    #[arg(long, value_enum, default_value = "stdio", value_name = "HOW")]
    transport: Transport,
    /// Where to listen; 127.0.0.1 if nothing is given, and only loopback needs no key
    #[arg(long, value_name = "ADDRESS")]
    host: Option<IpAddr>,
    /// The port to listen on; 8000 if none is given
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Show only these tools, as in `run,file_*`
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    tools: Vec<String>,
    #[command(flatten)]
    of_host: HostArgs,
    #[command(flatten)]
    opensandbox: OpenSandboxArgs,
}

/// The flags of OpenSandbox's server that its clients are started with.
#[derive(Debug, Args)]
#[command(next_help_heading = "With the dialect opensandbox")]
struct OpenSandboxArgs {
    /// A file with the key for a remote server, or OPEN_SANDBOX_API_KEY; sandboxes of this machine need none
    #[arg(long, value_name = "@FILE")]
    api_key: Option<String>,
    /// `HOST[:PORT]` of a remote server
    #[arg(long, value_name = "PLACE")]
    domain: Option<String>,
    /// `http` or `https`, for a remote server
    #[arg(long, value_name = "NAME")]
    protocol: Option<String>,
    /// How long a call may take that neither makes a sandbox nor runs a command
    #[arg(long, value_name = "SECONDS")]
    request_timeout: Option<f64>,
    /// Reach ports of sandboxes through the remote server
    #[arg(long)]
    use_server_proxy: bool,
}

impl OpenSandboxArgs {
    /// The first of them that was given.
    fn given(&self) -> Option<&'static str> {
        // Every field by name: a new one has to be thought about.
        let Self { api_key, domain, protocol, request_timeout, use_server_proxy } = self;
        let all = [
            ("--api-key", api_key.is_some()),
            ("--domain", domain.is_some()),
            ("--protocol", protocol.is_some()),
            ("--request-timeout", request_timeout.is_some()),
            ("--use-server-proxy", *use_server_proxy),
        ];
        all.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
    }

    /// These and the variables of that server.
    fn settings(self) -> Result<OpenSandboxSettings> {
        let seconds = |seconds: f64| {
            Duration::try_from_secs_f64(seconds)
                .map_err(|_| Error::invalid(format!("not a number of seconds: {seconds}")))
        };
        let settings = OpenSandboxSettings {
            api_key: self.api_key.as_deref().map(key).transpose()?,
            domain: self.domain,
            protocol: self.protocol,
            request_timeout: self.request_timeout.map(seconds).transpose()?,
            use_server_proxy: self.use_server_proxy,
        };
        Ok(settings.or_environment())
    }
}

/// The key that `--api-key` means. Stdin is the client's.
fn key(text: &str) -> Result<String> {
    secret_argument::read("--api-key", text, env::OPEN_SANDBOX_API_KEY, false)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    /// A program that starts this one
    Stdio,
    /// Streamable HTTP, at `/mcp`
    StreamableHttp,
}

impl LocalVerb for McpArgs {
    fn run(self) -> Outcome {
        if self.dialect != DialectName::OpenSandbox
            && let Some(flag) = self.opensandbox.given()
        {
            let dialect = self.dialect.as_str();
            let error = format!("`{flag}` means nothing to the dialect `{dialect}`");
            return Err(Error::invalid(error).hint("it is for `--dialect opensandbox`").into());
        }
        if self.transport == Transport::Stdio {
            let given = [("--host", self.host.is_some()), ("--port", self.port.is_some())];
            if let Some((flag, _)) = given.iter().find(|(_, given)| *given) {
                let error = format!("`{flag}` means nothing on stdin and stdout");
                let hint = "it is for `--transport streamable-http`";
                return Err(Error::invalid(error).hint(hint).into());
            }
        }
        let ceiling = ceiling(&self.of_host.ceiling)?;
        let mut world = world(self.of_host, ceiling)?;
        if self.dialect == DialectName::OpenSandbox {
            let settings = self.opensandbox.settings()?;
            if let Some(remote) = settings.remote()? {
                world.api = remote_api(remote, settings.use_server_proxy)?;
            }
            world.opensandbox = settings;
        }
        match self.transport {
            Transport::Stdio => {
                let dialect = selected(self.dialect.dialect(world), &self.tools)?;
                block_on(serve_stdio(dialect))?;
            }
            Transport::StreamableHttp => {
                let host = self.host.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
                let listener = open(host, self.port.unwrap_or(USUAL_PORT))?;
                let address = listener.local_addr();
                let address = address.map_err(|error| Error::host("cannot listen", error))?;
                output::note(format!("MCP at http://{address}/mcp"));
                let site = HttpState::new(world, AuthMode::Open).with_tools(self.tools);
                block_on(serve_http(
                    listener,
                    site,
                    ServedRoutes::One(self.dialect),
                    told_to_stop(),
                ))?;
            }
        }
        Ok(0)
    }
}

/// The sandboxes of a server, if it is one of ours.
fn remote_api(remote: OpenSandboxRemote, proxied: bool) -> Result<Arc<dyn Api>> {
    if proxied {
        let error = "servers of msb pass on no ports of sandboxes";
        return Err(Error::unsupported(error).hint("leave out `--use-server-proxy`"));
    }
    let client = Client::connect(&remote.url, remote.key)?;
    // Now, so that a wrong address is an error at the start.
    client.sandbox_list()?;
    Ok(Arc::new(client))
}

/// Without keys only clients of this machine may connect.
fn open(host: IpAddr, port: u16) -> Result<TcpListener> {
    if !host.is_loopback() {
        return Err(Error::invalid(format!(
            "`msb mcp` asks for no key, and {host} is not loopback"
        ))
        .hint("`msb server start --host …` serves the same with keys"));
    }
    listen(host, port)
}
