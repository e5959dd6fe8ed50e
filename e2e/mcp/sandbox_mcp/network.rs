//! Sandboxes that reach each other, and ports that are reached from the host.

use super::{SandboxMcpClient, mask};
use msb_e2e::{Msb, free_port};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a server listens");
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("it is read");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an end");
    text
}

/// Serves /workspace of a sandbox at a port, and waits until it does.
fn serve(mcp: &mut SandboxMcpClient, sandbox: &str, port: u16) {
    let bg = json!({"command": format!("python3 -m http.server {port}"), "name": "web",
        "sandbox": sandbox});
    let said = mcp.masked("bg", bg);
    assert!(said.starts_with("Started [web] PID N\n"), "{said}");
    let up = format!("until curl -s -o /dev/null http://127.0.0.1:{port}/; do sleep 0.02; done");
    mcp.run_in(sandbox, &up);
}

#[test]
fn sandboxes_reach_each_other_by_name() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::networked(&msb);
        mcp.run_in("a", "echo from-a > /workspace/f");
        mcp.run_in("b", "true");
        serve(&mut mcp, "a", 8000);
        assert_eq!(mcp.run_in("b", "curl -sS http://a:8000/f"), "from-a");
        let told = mcp.masked("network_info", json!({}));
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines.len(), 4, "{told}");
        for (name, peer, at) in [("a", "b", 0), ("b", "a", 2)] {
            let words: Vec<&str> = lines[at].split_whitespace().collect();
            assert_eq!((words[0], words[1], words[3]), (name, "mcp-sb-ID", "shell:alive"));
            let ip = words[2].strip_prefix("ip:").expect("an address");
            assert!(ip.parse::<std::net::IpAddr>().is_ok(), "{told}");
            assert_eq!(lines[at + 1].trim_start(), format!("-> {peer}: ok"));
        }
        assert!(mcp.says("status", json!({})).contains("  ip:"));
        // A destroyed sandbox cannot be reached; a new one of that name can.
        mcp.says("destroy", json!({"sandbox": "a"}));
        let said = mcp.run_in("b", "curl -sS -m 5 http://a:8000/f 2> /dev/null");
        assert!(said.starts_with("[exit code "), "{said}");
        serve(&mut mcp, "a", 8000);
        assert_eq!(mcp.run_in("b", "curl -sS http://a:8000/f"), "from-a");
        // Sandboxes that others made are no peers.
        msb.words("create -q -n stranger --net public host").ok();
        let out = ["exec", "stranger", "--", "curl", "-sS", "-m", "3", "http://a:8000/f"];
        assert_ne!(msb.run(out).code, 0);
    }
}

#[test]
fn a_port_is_reached_until_it_is_not_exposed_any_more() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::networked(&msb);
        mcp.run("echo served > /workspace/f");
        let port = free_port();
        let expose = json!({"port": 8000, "host_port": port});
        let said = mcp.says("expose", expose.clone());
        let forwarding = format!(
            "Forwarding localhost:{port} -> 'default':8000\n  URL:  http://localhost:{port}\n  \
             curl: curl http://localhost:{port}"
        );
        let warning = "\n  Warning: port 8000 is not yet listening in the sandbox";
        assert_eq!(said, format!("{forwarding}{warning}"));
        // A server that listens later is reached, too.
        serve(&mut mcp, "default", 8000);
        assert!(get(port, "/f").ends_with("\r\nserved\n"));
        let again = format!(
            "Error: localhost:{port} already forwarding to 'default':8000. Use unexpose({port}) \
             first."
        );
        assert_eq!(mcp.says("expose", expose.clone()), again);
        let status = mcp.says("status", json!({}));
        assert!(status.contains("\nPort forwards:"), "{status}");
        assert!(status.contains(&port.to_string()), "{status}");
        assert!(mcp.says("health", json!({})).contains(&format!("fwd=[{port}->8000]")));
        get(port, "/f");
        let unexpose = json!({ "port": port });
        let said = mcp.says("unexpose", unexpose.clone());
        let stopped = format!("Stopped forwarding localhost:{port} -> 'default':8000 (");
        assert_eq!(said, format!("{stopped}2 connections served)"));
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
        let said = mcp.says("unexpose", unexpose);
        assert_eq!(said, format!("Error: no forward on localhost:{port}. Active: none"));
        // With a listener there is no warning; the forward ends with the sandbox.
        assert_eq!(mcp.says("expose", expose), forwarding);
        assert!(get(port, "/f").ends_with("\r\nserved\n"));
        mcp.says("destroy", json!({"sandbox": "default"}));
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
        // A port that is in use, and numbers that are no port.
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let number = taken.local_addr().expect("its number").port();
        let said = mcp.says("expose", json!({"port": 8000, "host_port": number}));
        assert!(said.starts_with("Error"), "{said}");
        for number in [-1, 0, 70_000] {
            let said = mcp.says("expose", json!({ "port": number }));
            assert!(said.starts_with("Error"), "{number}: {said}");
        }
    }
}

/// Without a network there is an answer all the same.
#[test]
fn a_sandbox_without_a_network_says_so() {
    let msb = Msb::new();
    let mut mcp = SandboxMcpClient::open(&msb);
    mcp.run("true");
    let told = mask(&mcp.says("network_info", json!({})));
    let words: Vec<&str> = told.split_whitespace().collect();
    assert_eq!(words[..4], ["default", "mcp-sb-ID", "ip:unknown", "shell:alive"]);
}
