//! Clients in Python. What each does is written in its script.

use crate::installed;
use crate::servers::{self, DIALECTS, McpServer, MsbServer};
use msb_e2e::{CmdOutput, Msb, ends, shared};
use std::path::Path;
use std::process::Stdio;

/// Runs a script to its end, which has to be a good one.
#[track_caller]
fn runs(msb: &Msb, script: &str, arguments: &[&str]) -> CmdOutput {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(script);
    let mut command = msb.user_command(installed::python());
    command.arg("-B").arg(script).args(arguments);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let gave = ends(child.expect("Python is installed")).ok();
    assert!(gave.stdout.ends_with("all is well\n"), "{gave:#?}");
    gave
}

fn over_stdio(script: &str) {
    let msb = servers::msb();
    let program = shared().join("msb");
    let program = program.to_str().expect("a path");
    for dialect in DIALECTS {
        runs(&msb, script, &[dialect, program, "mcp", "--dialect", dialect]);
    }
}

fn over_http(script: &str) {
    let msb = servers::msb();
    for dialect in DIALECTS {
        let server = McpServer::start(&msb, dialect);
        let gave = runs(&msb, script, &[dialect, &server.url]);
        // They complain of an end that they do not understand, and go on.
        assert!(!gave.stderr.contains("termination failed"), "{gave:#?}");
    }
}

#[test]
fn the_sdk_of_mcp_is_content_over_stdio() {
    over_stdio("with_mcp.py");
}

#[test]
fn the_sdk_of_mcp_is_content_over_http() {
    over_http("with_mcp.py");
}

#[test]
fn fastmcp_is_content_over_stdio() {
    over_stdio("with_fastmcp.py");
}

#[test]
fn fastmcp_is_content_over_http() {
    over_http("with_fastmcp.py");
}

/// Over HTTP only: it starts no program that it does not know.
#[test]
fn agno_finds_and_calls_every_dialect() {
    over_http("with_agno.py");
}

/// As it is on PyPI, with keys.
#[test]
fn the_last_sdk_of_the_microsandbox_server_works() {
    let msb = servers::msb();
    let site = MsbServer::start(&msb);
    let (all, team) = (site.key("*"), site.key("team"));
    runs(&msb, "microsandbox_0_1_8.py", &[&site.url, &all, &team, "team"]);
    for name in msb.words("ls -q").ok().stdout.lines() {
        msb.words(&format!("rm -f {name}")).ok();
    }
}
