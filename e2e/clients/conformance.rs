//! MCP's own suite for servers.

use crate::installed::{node, script};
use crate::servers::{self, DIALECTS, McpServer};
use msb_e2e::{CmdOutput, Msb, ends};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Scenarios that need no tools of a fixture.
const ANYWHERE: [&str; 6] = [
    "server-initialize",
    "ping",
    "logging-set-level",
    "tools-list",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
];

/// Scenarios of the revision 2026-07-28 that need no tools of a fixture.
const ANYWHERE_NEXT: [&str; 3] =
    ["server-stateless", "server-session-lifecycle", "http-header-validation"];

/// The suite, and the one that knows the revision 2026-07-28.
const SUITE: &str = "conformance/dist/index.js";
const NEXT: &str = "conformance-next/dist/index.js";

fn judged(msb: &Msb, suite: &str, url: &str, words: &[&str]) -> CmdOutput {
    let mut command = msb.user_command(node());
    command.arg(script(suite)).args(["server", "--url", url]).args(words);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    ends(child.expect("Node.js is installed"))
}

/// A file that says what is missing, and why.
fn baseline(name: &str) -> String {
    format!("{}/clients/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_dialect_is_a_server_as_mcp_wants_it() {
    let msb = servers::msb();
    for dialect in DIALECTS {
        let server = McpServer::start(&msb, dialect);
        let more: &[&str] = match dialect {
            "microsandbox" => &["resources-list"],
            "server" => &["prompts-list"],
            _ => &[],
        };
        for scenario in ANYWHERE.iter().chain(more) {
            let gave = judged(&msb, SUITE, &server.url, &["--scenario", scenario]);
            assert_eq!(gave.code, 0, "{dialect}: {scenario}: {gave:#?}");
        }
    }
}

#[test]
fn every_dialect_is_a_server_as_the_next_mcp_wants_it() {
    let msb = servers::msb();
    let baseline = baseline("expected-failures-of-dialects.yml");
    for dialect in DIALECTS {
        let server = McpServer::start(&msb, dialect);
        // It lists whatever can be listed, and only here something of all can.
        let more = matches!(dialect, "opensandbox" | "sandbox-mcp").then_some("caching");
        for scenario in ANYWHERE_NEXT.into_iter().chain(more) {
            let words = ["--scenario", scenario, "--expected-failures", &baseline];
            let gave = judged(&msb, NEXT, &server.url, &words);
            assert_eq!(gave.code, 0, "{dialect}: {scenario}: {gave:#?}");
        }
    }
}

/// Everything, against a dialect that has what the suite looks for.
#[test]
fn the_whole_suite_passes_on_its_own_fixture() {
    let msb = servers::msb();
    let fixture = Fixture::start();
    let gave = judged(&msb, SUITE, &fixture.url, &["--suite", "all"]);
    assert_eq!(gave.code, 0, "{gave:#?}");
    assert!(gave.stdout.contains("Total: 46 passed, 0 failed"), "{gave:#?}");
    let baseline = baseline("expected-failures.yml");
    let words = ["--requirements", "2026-07-28", "--expected-failures", &baseline];
    let gave = judged(&msb, NEXT, &fixture.url, &words);
    assert_eq!(gave.code, 0, "{gave:#?}");
}

struct Fixture {
    server: Child,
    url: String,
}

impl Fixture {
    fn start() -> Self {
        let build = "`cargo build -p msb-server --features fixture --example conformance` makes it";
        let mut command = Command::new(fixture());
        let server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut server = server.expect(build);
        let mut url = String::new();
        let mut stdout = BufReader::new(server.stdout.take().expect("a pipe"));
        stdout.read_line(&mut url).expect("its address");
        Self { server, url: url.trim().to_owned() }
    }
}

/// It ends with its stdin.
impl Drop for Fixture {
    fn drop(&mut self) {
        drop(self.server.stdin.take());
        let _ = self.server.wait();
    }
}

/// The example `conformance`, as `cargo xtask ci` or a developer has built it.
fn fixture() -> PathBuf {
    std::env::var_os("MSB_CONFORMANCE_BIN").map_or_else(
        || {
            let test = std::env::current_exe().expect("a test is a file");
            test.ancestors().nth(2).expect("target/PROFILE/deps/test").join("examples/conformance")
        },
        PathBuf::from,
    )
}
