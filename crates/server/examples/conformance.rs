//! Serves the fixture of the MCP conformance suite over the HTTP listener.
//!
//! Writes its address to stdout, and exits at the end of its stdin.

use msb_server::{DialectName, ServedRoutes, fixture, serve_http};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    writeln!(std::io::stdout(), "http://{}/mcp", listener.local_addr()?)?;
    let left = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(left.0);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let stop = async {
        let _ = left.1.await;
    };
    let name = DialectName::Core;
    runtime.block_on(serve_http(listener, fixture::state(name), ServedRoutes::One(name), stop))?;
    Ok(())
}
