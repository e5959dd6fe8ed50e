//! Many calls at once, and many after each other.

use msb_e2e::Msb;
use msb_e2e::listener::{ACCEPT, Server, begin};
use msb_e2e::mcp::Client;
use serde_json::{Value, json};
use std::fs;

/// Calls at the same time, and how many of them run a command.
const CALLS: usize = 500;
const COMMANDS: usize = 64;

/// Everything is answered, each call with its own answer.
#[test]
fn five_hundred_calls_at_once_are_answered_rightly() {
    let msb = Msb::new();
    // Fewer than there will be connections.
    let server = Server::start_with_files(&msb, 256);
    let (_, hello) = server.ask("/mcp/core", &[ACCEPT], &begin());
    let session = hello.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
    let session = session.expect("a session");
    let headers = [ACCEPT, ("Mcp-Session-Id", session)];
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    server.ask("/mcp/core", &headers, &ready);
    let create = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "sandbox_create", "arguments": {"name": "box"},
    }});
    let (_, made) = server.ask("/mcp/core", &headers, &create);
    assert_eq!(message(&made)["result"]["isError"], false, "{made}");
    let limit = msb.run(["exec", "box", "--", "sh", "-c", "ulimit -Sn"]).line();
    assert_eq!(limit, "256", "commands have the limit that the server was started with");
    let call = |number: usize| -> (u16, String) {
        let params = match number % CALLS.div_ceil(COMMANDS) {
            0 => json!({"name": "exec", "arguments": {
                "sandbox": "box", "command": format!("echo answer-$(({number} * 7919))"),
            }}),
            1 => json!({"name": "file_read", "arguments": {
                "sandbox": "box", "path": "/etc/passwd",
            }}),
            _ => json!({"name": "sandbox_list", "arguments": {}}),
        };
        let call = json!({
            "jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params
        });
        server.ask("/mcp/core", &headers, &call)
    };
    let answers: Vec<(u16, String)> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..CALLS).map(|number| scope.spawn(move || call(number))).collect();
        calls.into_iter().map(|call| call.join().expect("it ends")).collect()
    });
    for (number, (status, answer)) in answers.iter().enumerate() {
        assert_eq!(*status, 200, "{number}: {answer}");
        let message = message(answer);
        assert_eq!(message["id"], json!(number), "{answer}");
        assert_eq!(message["result"]["isError"], false, "{number}: {answer}");
        let said = &message["result"]["structuredContent"];
        match number % CALLS.div_ceil(COMMANDS) {
            0 => assert_eq!(said["stdout"], format!("answer-{}\n", number * 7919)),
            1 => assert!(said["content"].to_string().contains("root:x:0"), "{said}"),
            _ => assert_eq!(said["sandboxes"][0]["name"], "box", "{said}"),
        }
    }
    msb.words("rm -f box").ok();
}

/// The message of an answer, in plain JSON or as an event.
#[track_caller]
fn message(answer: &str) -> Value {
    let found = answer.lines().find_map(|line| {
        let line = line.strip_prefix("data:").unwrap_or(line).trim();
        line.starts_with('{').then(|| serde_json::from_str(line).ok()).flatten()
    });
    found.unwrap_or_else(|| panic!("no message: {answer}"))
}

/// What a thousand calls may leave behind: what an allocator keeps for the next.
const MOST_KEPT_KIB: u64 = 8 << 10;
const MOST_DESCRIPTORS: usize = 4;

#[test]
fn a_thousand_calls_leave_nothing_behind() {
    let msb = Msb::new();
    let mut client = Client::start(&msb, &["--dialect", "core"]);
    client.call("sandbox_create", json!({"name": "box"}));
    let mut calls = |count: usize| {
        for number in 0..count {
            let said = match number % 4 {
                0 => client.call("exec", json!({"sandbox": "box", "command": "echo hi"})),
                1 => client.call(
                    "file_write",
                    json!({"sandbox": "box", "path": "/root/f", "content": "x"}),
                ),
                2 => client.call("file_read", json!({"sandbox": "box", "path": "/root/f"})),
                _ => client.call("sandbox_list", json!({})),
            };
            assert_eq!(said["isError"], false, "{said}");
        }
        used(client.pid())
    };
    let (memory, descriptors) = calls(200);
    let (more, more_descriptors) = calls(1000);
    assert!(more <= memory + MOST_KEPT_KIB, "{memory} KiB grew to {more}");
    assert!(
        more_descriptors <= descriptors + MOST_DESCRIPTORS,
        "{descriptors} descriptors grew to {more_descriptors}"
    );
    client.call("sandbox_stop", json!({"sandbox": "box", "remove": true}));
}

/// Memory in KiB, and descriptors.
fn used(pid: u32) -> (u64, usize) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let memory = memory.and_then(|it| it.trim().strip_suffix(" kB")).expect("a size");
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count();
    (memory.trim().parse().expect("a number"), descriptors)
}
