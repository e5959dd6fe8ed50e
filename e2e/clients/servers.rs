//! Servers for the clients, which end with their tests.

use msb_e2e::mcp::WITHOUT_ALPINE;
use msb_e2e::{CmdOutput, Msb};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

/// All of them.
pub(crate) const DIALECTS: [&str; 5] =
    ["core", "microsandbox", "server", "sandbox-mcp", "opensandbox"];

/// `msb` with settings for servers without the Alpine image.
pub(crate) fn msb() -> Msb {
    let msb = Msb::new();
    msb.write_config(WITHOUT_ALPINE);
    msb
}

/// `msb mcp` over HTTP.
pub(crate) struct McpServer {
    server: Child,
    pub(crate) url: String,
}

impl McpServer {
    pub(crate) fn start(msb: &Msb, dialect: &str) -> Self {
        let words = ["mcp", "--dialect", dialect, "--transport", "streamable-http", "--port", "0"];
        let server =
            msb.command(words).arg("--host-path").arg(msb.scratch()).stderr(Stdio::piped()).spawn();
        let mut server = server.expect("msb can be executed");
        let mut said = String::new();
        let mut stderr = BufReader::new(server.stderr.take().expect("a pipe"));
        stderr.read_line(&mut said).expect("a line");
        let at = said.find("http://").unwrap_or_else(|| panic!("no address: {said}"));
        let url = said[at..].trim().to_owned();
        // It says more, and must not wait for a reader.
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        Self { server, url }
    }
}

impl Drop for McpServer {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// `msb server` in the background.
pub(crate) struct MsbServer<'a> {
    msb: &'a Msb,
    pub(crate) url: String,
}

impl<'a> MsbServer<'a> {
    pub(crate) fn start(msb: &'a Msb) -> Self {
        let url = msb
            .words(&format!("server start -dp 0 --host-path {}", msb.scratch().display()))
            .line();
        Self { msb, url }
    }

    pub(crate) fn key(&self, namespace: &str) -> String {
        self.msb.run(["server", "keygen", "--expire", "1h", "-n", namespace]).line()
    }
}

impl Drop for MsbServer<'_> {
    fn drop(&mut self) {
        let _: CmdOutput = self.msb.words("server stop");
    }
}
