//! The MCP Inspector's command line, which also judges the schemas of tools.

use crate::installed::{node, script};
use crate::servers::{self, DIALECTS, McpServer};
use msb_e2e::{CmdOutput, Msb, ends, shared};
use serde_json::Value;
use std::ffi::OsString;
use std::process::Stdio;

/// How it reaches a server.
enum McpTransport {
    Stdio(&'static str),
    Http(McpServer),
}

impl McpTransport {
    #[track_caller]
    fn ask(&self, msb: &Msb, words: &[&str]) -> (Value, String) {
        let mut command = msb.user_command(node());
        command.arg(script("inspector/clients/launcher/build/index.js"));
        command.args(["--cli", "--format", "json"]).args(words);
        match self {
            McpTransport::Stdio(dialect) => {
                // It hides its own environment from what it starts.
                for (name, value) in msb.command([""]).get_envs() {
                    let pair = [name, "=".as_ref(), value.unwrap_or_default()];
                    command.arg("-e").arg(pair.into_iter().collect::<OsString>());
                }
                command.arg(shared().join("msb")).args(["mcp", "--dialect", dialect]);
            }
            McpTransport::Http(server) => {
                command.args(["--transport", "http", "--server-url", &server.url]);
            }
        }
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let gave: CmdOutput = ends(child.expect("Node.js is installed")).ok();
        let said: Value =
            serde_json::from_str(&gave.stdout).unwrap_or_else(|error| panic!("{error}: {gave:#?}"));
        (said["result"].clone(), gave.stderr)
    }
}

/// Its tools, and one that can be called without more ado: its name, its arguments, what it says.
fn expected(dialect: &str) -> (usize, [&'static str; 3]) {
    match dialect {
        "core" => (15, ["run", r#"{"command": "echo $((6 * 7))-here"}"#, "42-here"]),
        "microsandbox" => {
            (70, ["sandbox_run", r#"{"command": "echo $((6 * 7))-here"}"#, "42-here"])
        }
        "sandbox-mcp" => (35, ["exec", r#"{"command": "echo $((6 * 7))-here"}"#, "42-here"]),
        "server" => (5, ["sandbox_get_metrics", "{}", "sandboxes"]),
        _ => (19, ["sandbox_list", "{}", "sandbox_infos"]),
    }
}

fn walk(msb: &Msb, dialect: &str, way: &McpTransport) {
    let (count, [tool, arguments, answer]) = expected(dialect);
    let (listed, complaints) = way.ask(msb, &["--method", "tools/list", "--strict"]);
    assert_eq!(listed["tools"].as_array().expect("a list").len(), count);
    assert!(!complaints.contains("tool \""), "{complaints}");
    let call = ["--method", "tools/call", "--tool-name", tool, "--tool-args-json", arguments];
    let (said, _) = way.ask(msb, &call);
    assert_ne!(said["isError"], true, "{said}");
    assert!(said["content"][0]["text"].as_str().expect("text").contains(answer), "{said}");
    let length = |method: &str, list: &str| {
        way.ask(msb, &["--method", method]).0[list].as_array().expect("a list").len()
    };
    if dialect == "microsandbox" {
        assert_eq!(length("resources/list", "resources"), 7);
    }
    if dialect == "server" {
        assert_eq!(length("prompts/list", "prompts"), 2);
    }
}

#[test]
fn the_inspector_has_nothing_against_stdio() {
    let msb = servers::msb();
    for dialect in DIALECTS {
        walk(&msb, dialect, &McpTransport::Stdio(dialect));
    }
}

#[test]
fn the_inspector_has_nothing_against_http() {
    let msb = servers::msb();
    for dialect in DIALECTS {
        walk(&msb, dialect, &McpTransport::Http(McpServer::start(&msb, dialect)));
    }
}
