//! Settings of `sandbox_create` that programs for microsandbox-mcp send, by their effect inside.

use super::MicrosandboxClient;
use msb_e2e::Msb;
use msb_e2e::mcp::Client;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// A server whose sandboxes have the usual network.
fn open(msb: &Msb, more: &[&str]) -> MicrosandboxClient {
    let mut command = msb.command([&["mcp"], more].concat());
    command.env("MSB_NET", "public");
    MicrosandboxClient { client: Client::over(command), called: BTreeSet::new() }
}

/// The exit code of a line of shell in the sandbox `box`, and its output.
#[track_caller]
fn shell(mcp: &mut MicrosandboxClient, line: &str) -> (i64, String) {
    let ran = mcp.done("sandbox_shell", json!({"name": "box", "command": line}));
    (ran["exitCode"].as_i64().expect("a code"), ran["stdout"].as_str().expect("text").to_owned())
}

#[test]
fn no_file_of_a_noexec_mount_is_executed() {
    for msb in Msb::each() {
        let directory = msb.scratch().join("tools");
        fs::create_dir(&directory).expect("a directory");
        let tool = directory.join("tool");
        fs::write(&tool, "#!/bin/sh\necho ran\n").expect("a file");
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).expect("a mode");
        msb.chown(&directory);
        msb.chown(&tool);
        let mut mcp = open(&msb, &["--host-path", &msb.scratch().display().to_string()]);
        mcp.done("volume_create", json!({"name": "vol"}));
        let mounts = |noexec: bool| {
            json!({"name": "box", "lifecycle": {"replace": true}, "mounts": [
                {"kind": "bind", "hostPath": directory, "guestPath": "/m", "noexec": noexec,
                 "nosuid": true, "nodev": true},
                {"kind": "named", "name": "vol", "guestPath": "/v", "noexec": noexec},
                {"kind": "tmpfs", "guestPath": "/t", "sizeMib": 8, "noexec": noexec},
            ]})
        };
        for (noexec, expected) in [(true, (126, String::new())), (false, (0, "ran\n".to_owned()))] {
            mcp.done("sandbox_create", mounts(noexec));
            for at in ["/m", "/v", "/t"] {
                let line = format!("[ -e {at}/tool ] || cp /m/tool {at}/; {at}/tool");
                assert_eq!(shell(&mut mcp, &line), expected, "{at} noexec={noexec}");
            }
        }
        let flags = shell(&mut mcp, "grep -E ' /(m|v|t) ' /proc/mounts").1;
        assert_eq!(flags.lines().count(), 3, "{flags}");
        for line in flags.lines() {
            assert!(line.contains("nosuid") && line.contains("nodev"), "{line}");
        }
        let sealed = json!({"name": "box", "lifecycle": {"replace": true}, "mounts": [
            {"kind": "tmpfs", "guestPath": "/t", "readonly": true, "nosuid": false},
        ]});
        let envelope = mcp.envelope("sandbox_create", sealed);
        assert_eq!(envelope["ok"], true, "{envelope}");
        assert!(envelope["warnings"].to_string().contains("nosuid and nodev"), "{envelope}");
        assert_ne!(shell(&mut mcp, "touch /t/x 2>&1").0, 0);
    }
}

/// Answers every query for an A record with 10.1.2.3, and those for `slow.test` so late that a
/// gateway with the default timeout has given up.
fn dns_server() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let port = socket.local_addr().expect("an address").port();
    thread::spawn(move || {
        let mut message = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut message) {
            let mut reply = message[..length].to_vec();
            let name_end = 12 + reply[12..].iter().position(|byte| *byte == 0).expect("a name");
            let is_a = reply[name_end + 1..name_end + 3] == [0, 1];
            let is_slow = reply[12..].starts_with(b"\x04slow");
            reply.truncate(name_end + 5);
            // A response without additional records.
            reply[2..4].copy_from_slice(&[0x81, 0x80]);
            reply[6..12].copy_from_slice(&[0, u8::from(is_a), 0, 0, 0, 0]);
            if is_a {
                reply.extend(b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\x0a\x01\x02\x03");
            }
            let socket = socket.try_clone().expect("a socket");
            thread::spawn(move || {
                if is_slow {
                    thread::sleep(Duration::from_millis(4500));
                }
                drop(socket.send_to(&reply, client));
            });
        }
    });
    port
}

#[test]
fn dns_settings_are_those_of_the_gateway() {
    let port = dns_server();
    for msb in Msb::each() {
        let server = format!("127.0.0.1:{port}");
        let mut mcp = open(&msb, &["--ceiling", &format!("dns={server}")]);
        let create = |dns: Value| json!({"name": "box", "lifecycle": {"replace": true}, "network": {"dns": dns}});
        let ask = |name: &str| format!("RES_OPTIONS=timeout:30 getent ahostsv4 {name}");
        mcp.done("sandbox_create", create(json!({"nameservers": [server]})));
        assert_ne!(shell(&mut mcp, &ask("private.test")).0, 0);
        let dns = json!({"nameservers": [server], "allowRebind": true, "queryTimeoutMs": 60000});
        mcp.done("sandbox_create", create(dns));
        for name in ["private.test", "slow.test"] {
            let (code, found) = shell(&mut mcp, &ask(name));
            assert_eq!(code, 0, "{name}: {found}");
            assert!(found.contains("10.1.2.3"), "{name}: {found}");
        }
    }
}

#[test]
fn a_bypassed_host_gets_no_secret_and_the_sandbox_is_made() {
    for msb in Msb::each() {
        let mut mcp = open(&msb, &[]);
        let create = json!({
            "name": "box",
            "rootfs": {"kind": "oci", "reference": "host"},
            "network": {"tls": {"bypassDomains": ["api.example"]}},
            "secrets": [{"envVar": "TOKEN", "value": "value-of-it", "allowedHost": "api.example"}],
        });
        let envelope = mcp.envelope("sandbox_create", create);
        assert_eq!(envelope["ok"], true, "{envelope}");
        assert!(envelope["warnings"][0].to_string().contains("bypassDomains"), "{envelope}");
        let (code, token) = shell(&mut mcp, "printenv TOKEN");
        assert!(code == 0 && token.starts_with("msb-secret-"), "{token}");
        // The programs are those of the host.
        assert_eq!(mcp.done("sandbox_list", json!({}))[0]["image"], "host");
    }
}

/// Whether a file below a directory contains the text.
fn is_stored(directory: &Path, text: &str) -> bool {
    fs::read_dir(directory).is_ok_and(|entries| {
        entries.flatten().any(|entry| {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => is_stored(&path, text),
                Ok(kind) if kind.is_file() => fs::read(&path).is_ok_and(|bytes| {
                    bytes.windows(text.len()).any(|window| window == text.as_bytes())
                }),
                _ => false,
            }
        })
    })
}

#[test]
fn a_server_starts_sandboxes_with_the_secrets_that_it_was_given() {
    for msb in Msb::each() {
        let mut mcp = open(&msb, &[]);
        let create = json!({"name": "box", "image": "host", "secrets": [
            {"envVar": "TOKEN", "value": "given-only-once", "allowedHost": "api.example"},
        ]});
        mcp.done("sandbox_create", create);
        let before = shell(&mut mcp, "printenv TOKEN");
        mcp.done("sandbox_stop", json!({"name": "box", "force": true}));
        // Whatever it is called then.
        msb.words("rename box other").ok();
        let started = mcp.done("sandbox_start", json!({"name": "other"}));
        assert_eq!(started[0]["started"], true, "{started}");
        msb.words("stop other").ok();
        msb.words("rename other box").ok();
        mcp.done("sandbox_start", json!({"name": "box"}));
        assert_eq!(shell(&mut mcp, "printenv TOKEN"), before);
        assert!(!is_stored(&msb.home(), "given-only-once"), "a value is on disk");
        mcp.done("sandbox_stop", json!({"name": "box", "force": true}));
        // Another process was not given it.
        let mut later = open(&msb, &[]);
        let envelope = later.envelope("sandbox_start", json!({"name": "box"}));
        assert!(
            envelope.to_string().contains("its value must come from the program"),
            "{envelope}"
        );
    }
}
