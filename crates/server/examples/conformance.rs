//! Serves what the conformance suite of MCP wants to find, over the listener of every dialect.
//!
//! Writes its address to stdout and ends with its stdin.

use msb_server::{Named, Shown, fixture, serve_http};
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
    let named = Named::Core;
    runtime.block_on(serve_http(listener, fixture::site(named), Shown::One(named), stop))?;
    Ok(())
}
