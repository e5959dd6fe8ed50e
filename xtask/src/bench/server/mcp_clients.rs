//! Clients of MCP, on pipes and over HTTP, that do no more than they must.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Stdio as Pipe};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::bench::bench_dir::BenchDir;
use crate::bench::contender::Contenders;
use crate::bench::runner::View;
use crate::bench::stopwatch::Argv;

/// Whatever takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn request(number: usize, method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).to_string()
}

fn initialize() -> String {
    let params = json!({
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    });
    request(0, "initialize", &params)
}

const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// A server on pipes, after its greetings. It ends with this.
pub(super) struct Stdio {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Stdio {
    pub(super) fn start(bench_dir: &BenchDir, argv: Argv) -> Result<Self> {
        let mut command = bench_dir.user.command(View::Plain);
        command.args(argv).stdin(Pipe::piped()).stdout(Pipe::piped()).stderr(Pipe::null());
        let mut child = command.spawn().context("cannot start a server")?;
        let input = child.stdin.take().context("no stdin")?;
        let output = BufReader::new(child.stdout.take().context("no stdout")?);
        let mut server = Self { child, input, output };
        server.ask(&initialize())?;
        server.tell(INITIALIZED)?;
        Ok(server)
    }

    pub(super) fn tell(&mut self, line: &str) -> Result<()> {
        self.input.write_all(format!("{line}\n").as_bytes()).context("the server has ended")
    }

    pub(super) fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).context("the server has ended")?;
        ensure!(read > 0, "the server has ended");
        Ok(line)
    }

    pub(super) fn ask(&mut self, line: &str) -> Result<String> {
        self.tell(line)?;
        self.hear()
    }

    pub(super) fn tools(&mut self) -> Result<()> {
        let answer = self.ask(&request(1, "tools/list", &json!({})))?;
        ensure!(answer.contains("\"tools\""), "no tools: {answer}");
        Ok(())
    }
}

impl Drop for Stdio {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that listens. It ends with this.
pub(super) struct Listener {
    child: Child,
    address: String,
}

impl Listener {
    pub(super) fn start(bench_dir: &BenchDir, contenders: &Contenders) -> Result<Self> {
        let mut command = bench_dir.user.command(View::Plain);
        command.args(contenders.msb(&["server", "start", "--dev", "--port", "0"]));
        command.stdin(Pipe::null()).stdout(Pipe::piped()).stderr(Pipe::null());
        let mut child = command.spawn().context("cannot start a server")?;
        let output = child.stdout.take().context("no stdout")?;
        let mut server = Self { child, address: String::new() };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let address = line.trim().strip_prefix("http://");
        server.address = address.context("the server does not say where it is")?.to_owned();
        Ok(server)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One connection with a session of its own.
pub(super) struct Http {
    stream: BufReader<TcpStream>,
    address: String,
    session: Option<String>,
}

impl Http {
    pub(super) fn connect(listener: &Listener) -> Result<Self> {
        let stream = TcpStream::connect(&listener.address).context("cannot connect")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let address = listener.address.clone();
        let mut http = Self { stream: BufReader::new(stream), address, session: None };
        http.ask(&initialize())?;
        ensure!(http.session.is_some(), "there is no session");
        http.ask(INITIALIZED)?;
        Ok(http)
    }

    /// One request; the body of its answer.
    pub(super) fn ask(&mut self, body: &str) -> Result<String> {
        let Self { address, session, .. } = self;
        let session = session
            .as_ref()
            .map_or_else(String::new, |session| format!("Mcp-Session-Id: {session}\r\n"));
        let text = format!(
            "POST /mcp/microsandbox HTTP/1.1\r\nHost: {address}\r\n{session}\
             Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.get_mut().write_all(text.as_bytes())?;
        let status = self.line()?;
        ensure!(status.contains(" 20"), "the server answered `{status}`");
        let (mut length, mut chunked) = (0, false);
        loop {
            let line = self.line()?;
            let (name, value) = match line.split_once(':') {
                Some((name, value)) => (name.to_ascii_lowercase(), value.trim()),
                None if line.is_empty() => break,
                None => bail!("not a header: `{line}`"),
            };
            match name.as_str() {
                "content-length" => length = value.parse()?,
                "transfer-encoding" => chunked = value == "chunked",
                "mcp-session-id" => self.session = Some(value.to_owned()),
                _ => {}
            }
        }
        if !chunked {
            return self.bytes(length);
        }
        let mut body = String::new();
        loop {
            let size = usize::from_str_radix(&self.line()?, 16).context("not a chunk")?;
            body.push_str(&self.bytes(size)?);
            self.line()?;
            if size == 0 {
                return Ok(body);
            }
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.stream.read_line(&mut line)? > 0, "the server hung up");
        Ok(line.trim_end().to_owned())
    }

    fn bytes(&mut self, count: usize) -> Result<String> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
