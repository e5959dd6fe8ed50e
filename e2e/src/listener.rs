//! `msb server` in the background, and requests to it.

use crate::{CmdOutput, Msb, gives, shared};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// A server in the background, which ends with this.
#[derive(Debug)]
pub struct Server<'a> {
    msb: &'a Msb,
    /// Where it listens.
    pub address: SocketAddr,
}

impl<'a> Server<'a> {
    /// Starts one on any port that is free, with these words more.
    #[track_caller]
    pub fn start(msb: &'a Msb, more: &str) -> Self {
        let own = match more.contains("--host-path") {
            true => String::new(),
            false => format!("--host-path {}", msb.scratch().display()),
        };
        let line = format!("server start -dp 0 {more} {own}");
        Self { msb, address: address(&msb.words(&line).ok()) }
    }

    /// Starts a server with this soft limit of open files.
    #[track_caller]
    pub fn start_with_files(msb: &'a Msb, files: u32) -> Self {
        let line = format!("ulimit -Sn {files}; exec \"$0\" server start --dev -dp 0");
        let mut command = msb.user_command("/bin/sh");
        command.arg("-c").arg(line).arg(shared().join("msb"));
        Self { msb, address: address(&gives(&mut command).ok()) }
    }

    /// Starts a server with this hard limit of open files, and more arguments.
    #[track_caller]
    pub fn start_limited(msb: &'a Msb, files: u32, more: &str) -> Self {
        let line = format!("ulimit -n {files}; exec \"$0\" server start -dp 0 {more}");
        let mut command = msb.user_command("/bin/sh");
        command.arg("-c").arg(line).arg(shared().join("msb"));
        Self { msb, address: address(&gives(&mut command).ok()) }
    }

    /// One POST request; the status and the response.
    pub fn ask(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> (u16, String) {
        self.request("POST", path, headers, &body.to_string())
    }

    /// One request with any method and body; the status and the response.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (u16, String) {
        let mut stream = self.begin(method, path, headers, body);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it is there");
        let status = answer.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("a status");
        (status, answer)
    }

    /// Asks, and waits for nothing.
    pub fn begin(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).expect("it is there");
        let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            text.push_str(&format!("Host: {}\r\n", self.address));
        }
        // One without a value is left out.
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if !headers.iter().any(|(name, _)| *name == "Content-Type") {
            text.push_str("Content-Type: application/json\r\n");
        }
        text.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        stream.write_all(text.as_bytes()).expect("it is there");
        stream
    }

    /// A key of this namespace, as it is sent.
    pub fn key(&self, namespace: &str) -> String {
        let key = self.msb.run(["server", "keygen", "--expire", "1h", "-n", namespace]).line();
        format!("Bearer {key}")
    }

    /// A call of `/api/v1/rpc`; its result.
    #[track_caller]
    pub fn call(&self, key: &str, method: &str, params: &Value) -> Value {
        let body = json!({"jsonrpc": "2.0", "id": "1", "method": method, "params": params});
        let (status, answer) = self.ask("/api/v1/rpc", &[("Authorization", key)], &body);
        let body = answer.split_once("\r\n\r\n").expect("a body").1;
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(body).expect("it is there")
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let _ = self.msb.words("server stop");
    }
}

#[track_caller]
fn address(said: &CmdOutput) -> SocketAddr {
    let address = said.stdout.trim().strip_prefix("http://").expect("an address");
    address.parse().expect("an address")
}

/// The first message of a session.
pub fn begin() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "e2e", "version": "1"},
    }})
}

/// What every client of MCP over HTTP says.
pub const ACCEPT: (&str, &str) = ("Accept", "application/json, text/event-stream");
