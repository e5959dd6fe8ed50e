//! A client of MCP over stdin and stdout, with nothing but what the tests need.

use crate::{HANG, Msb};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};

/// Settings with which the dialect `sandbox-mcp` has the image `host`: the one that it would build
/// for itself is made of one that cannot be had, so that no test waits for the internet.
pub const WITHOUT_ALPINE: &str = "[aliases]\n'alpine:3.22' = '127.0.0.1:1/none'\n";

/// A connection to `msb mcp`, after its greetings. The server ends with it.
#[derive(Debug)]
pub struct Client {
    server: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
    next: u64,
    /// What the server said of itself.
    pub about: Value,
    /// Progress that was told since the last call began.
    pub progress: Vec<Value>,
}

impl Client {
    /// Starts a server with these arguments after `msb mcp`, for files of the test.
    #[track_caller]
    pub fn start(msb: &Msb, arguments: &[&str]) -> Self {
        let mut command = msb.command(["mcp"].iter().chain(arguments));
        if !arguments.contains(&"--host-path") {
            // The test's own directory is its home, which is not offered by itself.
            command.arg("--host-path").arg(msb.scratch());
        }
        Self::over(command)
    }

    /// Starts a client of the server that this command runs.
    #[track_caller]
    pub fn over(mut command: Command) -> Self {
        let mut server = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("msb can be executed");
        let stdin = server.stdin.take();
        let stdout = BufReader::new(server.stdout.take().expect("a pipe"));
        let (told, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let value = serde_json::from_str(&line);
                let value = value.unwrap_or_else(|error| panic!("not JSON ({error}): {line}"));
                if told.send(value).is_err() {
                    return;
                }
            }
        });
        let (about, progress) = (Value::Null, Vec::new());
        let mut client = Self { server, stdin, lines, next: 0, about, progress };
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "e2e", "version": "1"},
        });
        client.about = client.ask("initialize", params);
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    /// The server's process; that of `msb` itself where the test's own user runs it.
    pub fn pid(&self) -> u32 {
        self.server.id()
    }

    fn send(&mut self, message: &Value) {
        let stdin = self.stdin.as_mut().expect("it is open");
        writeln!(stdin, "{message}").expect("the server reads");
    }

    /// Asks, and waits for the result.
    #[track_caller]
    pub fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        self.end(id)
    }

    /// Asks, and does not wait.
    pub fn begin(&mut self, method: &str, mut params: Value) -> u64 {
        self.next += 1;
        self.progress.clear();
        params["_meta"]["progressToken"] = json!(self.next);
        self.send(&json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params}));
        self.next
    }

    /// The result of what was asked before.
    #[track_caller]
    pub fn end(&mut self, id: u64) -> Value {
        loop {
            let line = self.lines.recv_timeout(HANG).expect("the server answers");
            if line["method"] == "notifications/progress" {
                self.progress.push(line["params"].clone());
            }
            if line["id"] == json!(id) {
                assert_eq!(line["error"], Value::Null, "{line}");
                return line["result"].clone();
            }
        }
    }

    /// The results of several that were asked before, in the order of their ids here.
    #[track_caller]
    pub fn ends(&mut self, ids: &[u64]) -> Vec<Value> {
        let mut results = BTreeMap::new();
        while results.len() < ids.len() {
            let line = self.lines.recv_timeout(HANG).expect("the server answers");
            let id = line["id"].as_u64().filter(|id| ids.contains(id));
            if let Some(id) = id {
                assert_eq!(line["error"], Value::Null, "{line}");
                results.insert(id, line["result"].clone());
            }
        }
        ids.iter().map(|id| results[id].clone()).collect()
    }

    /// Takes back what was asked before.
    pub fn cancel(&mut self, id: u64) {
        let params = json!({"requestId": id, "reason": "the test wants it"});
        self.send(&json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params
        }));
    }

    /// Its tools.
    #[track_caller]
    pub fn tools(&mut self) -> Vec<Value> {
        self.ask("tools/list", json!({}))["tools"].as_array().expect("a list").clone()
    }

    /// Calls a tool.
    #[track_caller]
    pub fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let mut params = json!({"name": tool});
        params["arguments"] = arguments;
        self.ask("tools/call", params)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.server.wait();
    }
}
