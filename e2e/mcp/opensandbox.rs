//! Every tool of OpenSandbox's dialect on a real sandbox, its answers held against their schemas.

use msb_e2e::Msb;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Read;
use std::net::TcpStream;

/// A mcp that also looks at what clients see that know no structure.
struct OpenSandboxClient(msb_e2e::schema_client::SchemaClient);

impl OpenSandboxClient {
    fn open(msb: &Msb) -> Self {
        Self(msb_e2e::schema_client::SchemaClient::open(msb, "opensandbox"))
    }

    #[track_caller]
    fn done(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.0.result(tool, arguments);
        let said = result["structuredContent"].clone();
        let texts = result["content"].as_array().expect("a list").iter();
        let texts: Vec<Value> = texts
            .map(|block| serde_json::from_str(block["text"].as_str().expect("text")).expect("JSON"))
            .collect();
        match said["result"].as_array() {
            Some(results) if said.as_object().expect("an object").len() == 1 => {
                assert_eq!(&texts, results)
            }
            _ => assert_eq!(texts, std::slice::from_ref(&said)),
        }
        said
    }

    #[track_caller]
    fn failed(&mut self, tool: &str, arguments: Value) -> String {
        self.0.failed(tool, arguments)
    }
}

#[test]
fn every_tool_does_what_it_says() {
    for msb in Msb::each() {
        let mut mcp = OpenSandboxClient::open(&msb);
        assert_eq!(mcp.0.client.about["serverInfo"]["name"], "OpenSandbox Sandbox");
        assert_eq!(mcp.0.schemas.len(), 19);
        let made = mcp.done(
            "sandbox_create",
            json!({
                "image": "host", "env": {"GREETING": "hello"}, "metadata": {"team": "a"},
                "network_policy": {"defaultAction": "deny"}, "timeout_seconds": 300,
            }),
        );
        let progress: Vec<(f64, &str)> = mcp
            .0
            .client
            .progress
            .iter()
            .map(|told| {
                (
                    told["progress"].as_f64().expect("a number"),
                    told["message"].as_str().expect("text"),
                )
            })
            .collect();
        for step in [
            (0.1, "Validating input"),
            (0.3, "Creating sandbox"),
            (0.8, "Fetching sandbox info"),
            (1.0, "Done"),
        ] {
            assert!(progress.contains(&step), "{step:?} in {progress:?}");
        }
        let id = made["sandbox_id"].as_str().expect("text").to_owned();
        assert_eq!(made["info"]["status"]["state"], "Running");
        commands(&mut mcp, &id);
        files(&mut mcp, &id);
        ports(&mut mcp, &id);
        life(&mut mcp, &msb, &id);
        let all: BTreeSet<String> = mcp.0.schemas.keys().cloned().collect();
        assert_eq!(mcp.0.called, all);
    }
}

fn commands(mcp: &mut OpenSandboxClient, id: &str) {
    let command = "echo $GREETING; echo no >&2; pwd; exit 3";
    let ran = mcp.done(
        "command_run",
        json!({"sandbox_id": id, "command": command, "working_directory": "/tmp"}),
    );
    let texts = |stream: &str| {
        let lines = ran["logs"][stream].as_array().expect("a list").iter();
        lines.map(|line| line["text"].as_str().expect("text")).collect::<Vec<_>>()
    };
    assert_eq!((texts("stdout"), texts("stderr")), (vec!["hello", "/tmp"], vec!["no"]));
    assert_eq!((&ran["exit_code"], &ran["error"]["value"]), (&json!(3), &json!("3")));
    // In the background, and ended although it does not want to.
    let stubborn = "trap '' INT; echo begun > /tmp/begun; sleep 1000";
    let begun =
        mcp.done("command_run", json!({"sandbox_id": id, "command": stubborn, "background": true}));
    assert_eq!(begun["exit_code"], Value::Null);
    let execution = json!({"sandbox_id": id, "execution_id": begun["id"]});
    assert_eq!(mcp.done("command_interrupt", execution.clone())["status"], "interrupted");
    let text = mcp.failed("command_interrupt", execution);
    assert!(text.contains("runs in this sandbox\nhint: "), "{text}");
    // A cancelled call ends its command.
    let arguments = json!({"sandbox_id": id, "command": "sleep 1000"});
    let call =
        mcp.0.client.begin("tools/call", json!({"name": "command_run", "arguments": arguments}));
    let sleeping = "while ! pgrep -f '^sleep 1000' > /dev/null; do sleep 0.05; done";
    mcp.done("command_run", json!({"sandbox_id": id, "command": sleeping}));
    mcp.0.client.cancel(call);
    let ended = "while pgrep -f '^sleep 1000' > /dev/null; do sleep 0.05; done";
    mcp.done("command_run", json!({"sandbox_id": id, "command": ended}));
}

fn files(mcp: &mut OpenSandboxClient, id: &str) {
    mcp.done(
        "file_create_directories",
        json!({"sandbox_id": id, "entries": [{"path": "/tmp/w/d", "mode": 700}]}),
    );
    mcp.done(
        "file_write",
        json!({"sandbox_id": id, "path": "/tmp/w/d/a.py", "content": "héllo héllo\n", "mode": 640,
            "owner": "root", "group": "0"}),
    );
    let read = |mcp: &mut OpenSandboxClient, more: Value| {
        let mut arguments = json!({"sandbox_id": id, "path": "/tmp/w/d/a.py"});
        arguments
            .as_object_mut()
            .expect("an object")
            .extend(more.as_object().expect("an object").clone());
        mcp.done("file_read", arguments)["content"].as_str().expect("text").to_owned()
    };
    assert_eq!(read(mcp, json!({})), "héllo héllo\n");
    assert_eq!(read(mcp, json!({"range_header": "bytes=3-5"})), "llo");
    assert_eq!(read(mcp, json!({"range_header": "bytes=-1", "encoding": "base64"})), "Cg==");
    let edits = json!([{"path": "/tmp/w/d/a.py", "old_content": "héllo", "new_content": "hi"}]);
    let edited = mcp.done("file_replace_contents", json!({"sandbox_id": id, "entries": edits}));
    assert_eq!(edited, json!({"result": [{"path": "/tmp/w/d/a.py", "replaced_count": 2}]}));
    assert_eq!(read(mcp, json!({})), "hi hi\n");
    let search = json!({"sandbox_id": id, "path": "/tmp/w", "pattern": "*.py"});
    let found = mcp.done("file_search", search.clone());
    let entry = &found["result"][0];
    assert_eq!(
        (&entry["path"], &entry["mode"], &entry["owner"], &entry["size"]),
        (&json!("/tmp/w/d/a.py"), &json!(640), &json!("root"), &json!(6))
    );
    let moves = json!([{"source": "/tmp/w/d/a.py", "destination": "/tmp/w/new/b.py"}]);
    mcp.done("file_move", json!({"sandbox_id": id, "entries": moves}));
    assert_eq!(mcp.done("file_search", search)["result"][0]["path"], "/tmp/w/new/b.py");
    let text = mcp.failed("file_read", json!({"sandbox_id": id, "path": "/tmp/w/d/a.py"}));
    assert!(text.starts_with("Error executing tool file_read: in the sandbox, cannot "), "{text}");
    assert!(text.contains("cause: no such file or directory"), "{text}");
    mcp.done("file_delete", json!({"sandbox_id": id, "paths": ["/tmp/w/new/b.py"]}));
    mcp.done("file_delete_directories", json!({"sandbox_id": id, "paths": ["/tmp/w"]}));
    let gone = json!({"sandbox_id": id, "path": "/tmp", "pattern": "b.py"});
    assert_eq!(mcp.done("file_search", gone), json!({"result": []}));
}

fn ports(mcp: &mut OpenSandboxClient, id: &str) {
    let serve = "while :; do echo served | /bin/busybox nc -l -p 8000; done";
    mcp.done("command_run", json!({"sandbox_id": id, "command": serve, "background": true}));
    let there = "until grep -q ':1F40 .* 0A ' /proc/net/tcp*; do sleep 0.05; done";
    mcp.done("command_run", json!({"sandbox_id": id, "command": there}));
    let endpoint = mcp.done("sandbox_get_endpoint", json!({"sandbox_id": id, "port": 8000}));
    let mut text = String::new();
    let mut stream =
        TcpStream::connect(endpoint["endpoint"].as_str().expect("text")).expect("a server listens");
    stream.read_to_string(&mut text).expect("an end");
    assert_eq!(text, "served\n");
    let again = mcp.done("sandbox_get_endpoint", json!({"sandbox_id": id, "port": 8000}));
    assert_eq!(again, endpoint);
}

fn life(mcp: &mut OpenSandboxClient, msb: &Msb, id: &str) {
    let metrics = mcp.done("sandbox_get_metrics", json!({"sandbox_id": id}));
    assert_eq!(
        (&metrics["cpu_count"], &metrics["memory_total_in_mib"]),
        (&json!(1.0), &json!(2048.0))
    );
    assert_eq!(mcp.done("sandbox_healthcheck", json!({"sandbox_id": id}))["healthy"], true);
    // The CLI sees it, with its labels.
    let listed = msb.json(["ls", "--json"]);
    let ours =
        listed.as_array().expect("a list").iter().find(|one| one["name"] == id).expect("ours");
    assert_eq!(
        (&ours["labels"]["team"], &ours["labels"]["opensandbox.id"]),
        (&json!("a"), &json!(id))
    );
    // A server that was just started finds it, and uses it once it is connected.
    let called = std::mem::take(&mut mcp.0.called);
    *mcp = OpenSandboxClient::open(msb);
    mcp.0.called = called;
    let page = mcp.done("sandbox_list", json!({"filter": {"metadata": {"team": "a"}}}));
    assert_eq!(
        (&page["sandbox_infos"][0]["id"], &page["pagination"]["total_items"]),
        (&json!(id), &json!(1))
    );
    let text = mcp.failed("command_run", json!({"sandbox_id": id, "command": "true"}));
    assert!(text.contains("is not connected here\nhint: call `sandbox_connect`"), "{text}");
    mcp.done("sandbox_connect", json!({"sandbox_id": id}));
    mcp.done("command_run", json!({"sandbox_id": id, "command": "true"}));
    let before = mcp.done("sandbox_get_info", json!({"sandbox_id": id}));
    let renewed = mcp.done("sandbox_renew", json!({"sandbox_id": id, "timeout_seconds": 3000}));
    assert!(renewed["expires_at"].as_str() > before["expires_at"].as_str(), "{renewed} {before}");
    let after = mcp.done("sandbox_get_info", json!({"sandbox_id": id}))["expires_at"].clone();
    // Both are counted from now, in different milliseconds perhaps.
    assert_eq!(
        after.as_str().expect("text")[..16],
        renewed["expires_at"].as_str().expect("text")[..16]
    );
    assert_eq!(mcp.done("sandbox_kill", json!({"sandbox_id": id})), json!({"status": "killed"}));
    let text = mcp.failed("sandbox_get_info", json!({"sandbox_id": id}));
    assert!(text.starts_with("Error executing tool sandbox_get_info: no sandbox `"), "{text}");
    assert_eq!(mcp.failed("no_such", json!({})), "Unknown tool: no_such");
}

#[test]
fn a_sandbox_ends_when_it_expires_and_not_before_a_renewal_says() {
    for msb in Msb::each() {
        let mut mcp = OpenSandboxClient::open(&msb);
        let mut make = |seconds: u32| {
            let made =
                mcp.done("sandbox_create", json!({"image": "host", "timeout_seconds": seconds}));
            made["sandbox_id"].as_str().expect("text").to_owned()
        };
        let (short, renewed) = (make(2), make(2));
        mcp.done("sandbox_renew", json!({"sandbox_id": renewed, "timeout_seconds": 3000}));
        // Only the workers enforce the timeout.
        drop(mcp);
        msb.run(["wait", &short]);
        let mut mcp = OpenSandboxClient::open(&msb);
        let ended = mcp.done("sandbox_get_info", json!({"sandbox_id": short}));
        assert_eq!(
            (&ended["status"]["state"], &ended["status"]["reason"]),
            (&json!("Terminated"), &json!("expired"))
        );
        // It was made after the other, and would have ended after it.
        mcp.done("sandbox_connect", json!({"sandbox_id": renewed}));
        let sleep = json!({"sandbox_id": renewed, "command": "sleep 2; echo here"});
        assert_eq!(mcp.done("command_run", sleep)["logs"]["stdout"][0]["text"], "here");
        let soon = json!({"sandbox_id": renewed, "timeout_seconds": 0.1});
        mcp.done("sandbox_renew", soon);
        msb.run(["wait", &renewed]);
        let text =
            mcp.failed("sandbox_renew", json!({"sandbox_id": renewed, "timeout_seconds": 9}));
        assert!(text.contains("is not running"), "{text}");
        let text = mcp.failed("sandbox_connect", json!({"sandbox_id": renewed}));
        assert!(text.contains("has ended\nhint: "), "{text}");
        assert_eq!(
            mcp.done("sandbox_healthcheck", json!({"sandbox_id": renewed}))["healthy"],
            false
        );
    }
}

#[test]
fn files_of_the_host_are_not_named() {
    let msb = Msb::new();
    let mut mcp = OpenSandboxClient::open(&msb);
    let text = mcp.failed("sandbox_create", json!({"image": "/usr"}));
    assert!(text.contains("host path `/usr` is not allowed\nhint: "), "{text}");
    let entrypoint = json!({"image": "./rootfs", "entrypoint": ["/bin/sleep", "1000"]});
    msb.rootfs();
    let made = mcp.done("sandbox_create", entrypoint);
    assert_eq!(made["info"]["entrypoint"], json!(["/bin/sleep", "1000"]));
    // There is no bash in it.
    let id = &made["sandbox_id"];
    let owner =
        json!({"sandbox_id": id, "path": "/f", "content": "x", "owner": "web", "group": "web"});
    if msb.is_root() {
        mcp.done("file_write", owner);
        let ran = mcp.done("command_run", json!({"sandbox_id": id, "command": "stat -c %U:%a /f"}));
        assert_eq!(ran["logs"]["stdout"][0]["text"], "web:755");
    }
    let text = mcp.failed(
        "file_write",
        json!({"sandbox_id": id, "path": "/g", "content": "x", "owner": "nobody-here"}),
    );
    assert!(text.contains("unknown user or group"), "{text}");
}

/// The dialect drives the sandboxes of a remote server; the client's host has none.
#[test]
fn a_remote_server_is_used() {
    let (there, here) = (Msb::new(), Msb::new());
    let server = msb_e2e::listener::Server::start(&there, "");
    let key = there.run(["server", "keygen", "--expire", "1h", "-n", "*"]).line();
    let place = server.address.to_string();
    let file = format!("@{}", here.file("key", &key).display());
    let flags = ["--dialect", "opensandbox", "--domain", &place, "--api-key", &file];
    let mut client = msb_e2e::mcp::Client::start(&here, &flags);
    let made = client.call("sandbox_create", json!({"image": "host"}));
    let id = made["structuredContent"]["sandbox_id"].clone();
    assert!(id.is_string(), "{made}");
    let ran = client.call("command_run", json!({"sandbox_id": id, "command": "echo there"}));
    assert_eq!(ran["structuredContent"]["logs"]["stdout"][0]["text"], "there", "{ran}");
    assert_eq!(here.words("ls -q").ok().stdout, "");
    assert_eq!(there.words("ls -q").ok().stdout.lines().count(), 1);
    client.call("sandbox_kill", json!({"sandbox_id": id}));
    for (flags, said) in [
        (&["--domain", place.as_str()][..], "requires an API key"),
        (&["--domain", "127.0.0.1:1", "--api-key", &file], "cannot reach the server"),
        (&["--domain", &place, "--api-key", &key], "takes no secret on the command line"),
        (&["--domain", &place, "--api-key", &file, "--use-server-proxy"], "pass on no ports"),
    ] {
        let words = ["mcp", "--dialect", "opensandbox"].iter().chain(flags);
        let gave = here.run(words.copied());
        assert!(gave.code != 0 && gave.stderr.contains(said), "{gave:#?}");
    }
    for name in there.words("ls -q").ok().stdout.lines() {
        there.words(&format!("rm -f {name}")).ok();
    }
}
