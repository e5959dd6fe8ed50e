//! The server on the vm tier: what clients do with machines is what they do with sandboxes.

use crate::lab;
use msb_e2e::eventually;
use msb_e2e::listener::Server;
use msb_e2e::schema_client::SchemaClient;
use serde_json::json;

#[test]
fn a_machine_is_driven_over_mcp() {
    let Some(msb) = lab::user() else { return };
    msb.rootfs();
    let mut mcp = SchemaClient::open(&msb, "core");
    let made = json!({"name": "box", "image": "./rootfs", "memory": "128M"});
    let made = mcp.done("sandbox_create", made);
    assert_eq!((&made["status"], &made["isolation"]), (&json!("running"), &json!("vm")));
    let ran = json!({"sandbox": "box", "command": "cat; echo no >&2; exit 3", "stdin": "in"});
    let ran = mcp.done("exec", ran);
    assert_eq!((&ran["exit_code"], &ran["stdout"]), (&json!(3), &json!("in")));
    mcp.done("file_write", json!({"sandbox": "box", "path": "/root/a", "content": "one\n"}));
    mcp.done("snapshot_create", json!({"sandbox": "box", "name": "saved"}));
    mcp.done("exec", json!({"sandbox": "box", "command": "rm /root/a"}));
    mcp.done("snapshot_restore", json!({"sandbox": "box", "snapshot": "saved"}));
    let read = mcp.done("file_read", json!({"sandbox": "box", "path": "/root/a"}));
    assert_eq!(read["content"], "one\n");
    let params = json!({"name": "exec", "arguments": {"sandbox": "box", "command": "sleep 600"}});
    let call = mcp.client.begin("tools/call", params);
    let sleeps = || msb.words("ps --execs box").stdout.contains("sleep 600");
    eventually("the command runs", sleeps);
    mcp.client.cancel(call);
    eventually("it has ended", || !sleeps());
    mcp.done("sandbox_stop", json!({"sandbox": "box", "remove": true}));
    msb.words("snapshot rm saved").ok();
}

#[test]
fn a_machine_is_driven_over_http() {
    let Some(msb) = lab::user() else { return };
    msb.rootfs();
    let server = Server::start(&msb, "");
    let key = server.key("*");
    let spec = json!({"name": "box", "image": "./rootfs", "memory": "128M"});
    let headers = [("Authorization", key.as_str())];
    let ask = |path: &str, body| {
        let (status, answer) = server.ask(&format!("/api/v1{path}"), &headers, &body);
        assert_eq!(status, 200, "{answer}");
        answer
    };
    assert!(ask("/sandboxes", json!({"spec": spec})).contains("\"isolation\":\"vm\""));
    let script = json!({"argv": ["sh", "-c", "cat; exit 3"]});
    let ran = ask("/sandboxes/box/execs", json!({"command": script, "stdin": "in"}));
    assert!(ran.contains("\"text\":\"in\"") && ran.contains("\"code\":3"), "{ran}");
    let url = format!("http://{}", server.address);
    let remote = |words: &[&str]| {
        let mut command = msb.command(["--remote", &url]);
        command.args(words).env("MSB_API_KEY", key.trim_start_matches("Bearer "));
        msb_e2e::gives(&mut command).ok()
    };
    msb.file("in", "from here\n");
    remote(&["cp", "-q", "./in", "box:/root/in"]);
    assert_eq!(remote(&["exec", "box", "--", "cat", "/root/in"]).stdout, "from here\n");
    ask("/sandboxes/box/stop", json!({}));
    msb.words("rm -f box").ok();
}
