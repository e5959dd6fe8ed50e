//! MCP's own suite for servers.

use crate::installed::{node, script};
use crate::served::{DIALECTS, Mcp};
use msb_e2e::{Gave, Msb, ends};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What needs nothing of a server but that it is one.
const ANYWHERE: [&str; 6] = [
    "server-initialize",
    "ping",
    "logging-set-level",
    "tools-list",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
];

fn suite(msb: &Msb, url: &str, words: &[&str]) -> Gave {
    let mut command = msb.as_whom(node());
    command.arg(script("conformance/dist/index.js")).args(["server", "--url", url]).args(words);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    ends(child.expect("Node.js is installed"))
}

#[test]
fn every_dialect_is_a_server_as_mcp_wants_it() {
    let msb = Msb::new();
    for dialect in DIALECTS {
        let server = Mcp::start(&msb, dialect);
        let more: &[&str] = match dialect {
            "microsandbox" => &["resources-list"],
            "server" => &["prompts-list"],
            _ => &[],
        };
        for scenario in ANYWHERE.iter().chain(more) {
            let gave = suite(&msb, &server.url, &["--scenario", scenario]);
            assert_eq!(gave.code, 0, "{dialect}: {scenario}: {gave:#?}");
        }
    }
}

/// Everything, against a dialect that has what the suite looks for.
#[test]
fn the_whole_suite_passes_on_its_own_fixture() {
    let msb = Msb::new();
    let mut fixture =
        Command::new(fixture()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect(
            "`cargo build -p msb-server --features fixture --example conformance` builds it",
        );
    let mut url = String::new();
    let mut stdout = BufReader::new(fixture.stdout.take().expect("a pipe"));
    stdout.read_line(&mut url).expect("its address");
    let gave = suite(&msb, url.trim(), &["--suite", "all"]);
    drop(fixture.stdin.take());
    let _ = fixture.wait();
    assert_eq!(gave.code, 0, "{gave:#?}");
    assert!(gave.stdout.contains("Total: 46 passed, 0 failed"), "{gave:#?}");
}

/// What `cargo xtask ci` has built, or whoever tries it by hand.
fn fixture() -> PathBuf {
    std::env::var_os("MSB_CONFORMANCE_BIN").map_or_else(
        || {
            let test = std::env::current_exe().expect("a test is a file");
            test.ancestors().nth(2).expect("target/PROFILE/deps/test").join("examples/conformance")
        },
        PathBuf::from,
    )
}
