//! Every tool of our own dialect on a real sandbox, its answers held against their schemas.

use msb_e2e::mcp::Client;
use msb_e2e::schema_client::SchemaClient;
use msb_e2e::{Msb, eventually};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::process::Stdio;

#[test]
fn every_tool_does_what_it_says() {
    for msb in Msb::each() {
        let mut mcp = SchemaClient::open(&msb, "core");
        let listed = mcp.client.ask("tools/list", json!({})).to_string();
        assert!(listed.len() <= 12 << 10, "{}", listed.len());
        once(&mut mcp);
        let made = mcp.done("sandbox_create", json!({"name": "box", "env": {"A": "b"}}));
        assert_eq!((&made["name"], &made["status"]), (&json!("box"), &json!("running")));
        commands(&mut mcp);
        files(&mut mcp);
        snapshots(&mut mcp);
        children(&mut mcp);
        let no_network = mcp.failed("port_publish", json!({"sandbox": "box", "port": 80}));
        assert!(no_network.contains("has no network"), "{no_network}");
        mcp.called.insert("port_publish".to_owned());
        let all = mcp.done("sandbox_list", json!({}));
        assert_eq!(all["sandboxes"].as_array().expect("it is there").len(), 1);
        mcp.done("sandbox_stop", json!({"sandbox": "box"}));
        let awake = mcp.done("exec", json!({"sandbox": "box", "command": "true"}));
        assert!(
            awake["note"].as_str().expect("it is there").contains("has been started"),
            "{awake}"
        );
        mcp.done("sandbox_stop", json!({"sandbox": "box", "remove": true}));
        assert_eq!(msb.words("ls -q").ok().stdout, "");
        msb.words("snapshot rm saved").ok();
        let tools: BTreeSet<String> = mcp.schemas.keys().cloned().collect();
        assert_eq!(mcp.called, tools, "every tool was called");
    }
}

fn once(mcp: &mut SchemaClient) {
    let ran = mcp.done("run", json!({"command": "cat; echo no >&2; exit 3", "stdin": "in"}));
    assert_eq!((&ran["exit_code"], &ran["stdout"]), (&json!(3), &json!("in")));
    assert_eq!(ran["stderr"], "no\n");
    let ran = mcp.done("run", json!({"code": "print(6 * 7)", "language": "python"}));
    assert_eq!(ran["stdout"], "42\n");
    assert!(mcp.failed("run", json!({})).contains("needs either `command` or `code`"));
    let wrong = mcp.failed("run", json!({"command": 3}));
    assert!(wrong.contains("argument `command`"), "{wrong}");
    assert!(mcp.failed("rum", json!({})).contains("did you mean `run`?"));
}

fn commands(mcp: &mut SchemaClient) {
    let ran =
        mcp.done("exec", json!({"sandbox": "box", "command": "echo $A; pwd", "workdir": "/tmp"}));
    assert_eq!(ran["stdout"], "b\n/tmp\n");
    let ran =
        mcp.done("exec", json!({"sandbox": "box", "command": "sleep 60", "timeout_seconds": 0.1}));
    assert_eq!(ran["exit_code"], 124);
    let much = mcp.done("exec", json!({"sandbox": "box", "command": "head -c 100000 /dev/zero"}));
    assert!(
        much["note"].as_str().expect("it is there").contains("100000 bytes"),
        "{}",
        much["note"]
    );
    let line = "read x; echo got $x; exit 7";
    let begun = mcp.done("exec", json!({"sandbox": "box", "command": line, "background": true}));
    let exec = &begun["exec"];
    let poll = mcp.done("exec_poll", json!({"sandbox": "box", "exec": exec}));
    assert_eq!(poll["running"], true, "{poll}");
    let arguments = json!({"sandbox": "box", "exec": exec, "stdin": "word\n", "wait_seconds": 30});
    let poll = mcp.done("exec_poll", arguments);
    assert_eq!((&poll["exit_code"], &poll["output"]), (&json!(7), &json!("got word\n")));
    let again = json!({"sandbox": "box", "exec": exec, "since": poll["next"]});
    assert_eq!(mcp.done("exec_poll", again)["output"], "");
    let missing = mcp.failed("exec", json!({"sandbox": "bix", "command": "true"}));
    assert!(missing.contains("sandbox_list shows"), "{missing}");
}

fn files(mcp: &mut SchemaClient) {
    let path = "/root/a/b.txt";
    mcp.done("file_write", json!({"sandbox": "box", "path": path, "content": "one\ntwo\ntwo\n"}));
    let twice = json!({"sandbox": "box", "path": path, "old": "two", "new": "2"});
    assert!(mcp.failed("file_edit", twice).contains("occurs 2 times"));
    let edit = json!({"sandbox": "box", "path": path, "old": "two", "new": "2", "all": true});
    assert_eq!(mcp.done("file_edit", edit)["replaced"], 2);
    let read = json!({"sandbox": "box", "path": path, "start_line": 2, "lines": 1});
    let read = mcp.done("file_read", read);
    assert_eq!((&read["content"], &read["lines"]), (&json!("2\n"), &json!(3)));
    assert!(read["note"].as_str().expect("it is there").contains("start_line 3"), "{read}");
    let found = json!({"sandbox": "box", "path": "/root", "pattern": "^on."});
    assert_eq!(mcp.done("file_search", found)["matches"], json!(["/root/a/b.txt:1:one"]));
    let named = json!({"sandbox": "box", "path": "/root", "name": "*.txt"});
    assert_eq!(mcp.done("file_search", named)["matches"], json!([path]));
    assert_eq!(mcp.done("file_read", json!({"sandbox": "box", "path": "/root/a"}))["size"], 1);
}

fn children(mcp: &mut SchemaClient) {
    let none = mcp.failed("child_spawn", json!({"parent": "box"}));
    assert!(none.contains("may have no children"), "{none}");
    let policy = "max=1,child-memory=64M";
    mcp.done("sandbox_create", json!({"name": "lead", "spawn": policy}));
    let child = mcp.done("child_spawn", json!({"parent": "lead", "name": "scout", "cpus": 1}));
    assert_eq!((&child["name"], &child["status"]), (&json!("scout"), &json!("running")));
    let port = mcp.failed("port_publish", json!({"sandbox": "scout", "port": 80}));
    assert!(port.contains("ports of children of `lead` are not published"), "{port}");
    let more = mcp.failed("child_spawn", json!({"parent": "lead"}));
    assert!(more.contains("no more than 1 at once"), "{more}");
    let listed = mcp.done("sandbox_list", json!({"parent": "lead"}));
    assert_eq!(listed["sandboxes"][0]["name"], "scout");
    let ran = mcp.done("exec", json!({"sandbox": "scout", "command": "echo in"}));
    assert_eq!(ran["stdout"], "in\n");
    mcp.done("sandbox_stop", json!({"sandbox": "lead", "remove": true}));
    assert!(mcp.failed("exec", json!({"sandbox": "scout", "command": "true"})).contains("scout"));
}

fn snapshots(mcp: &mut SchemaClient) {
    mcp.done("snapshot_create", json!({"sandbox": "box", "name": "saved", "note": "good"}));
    let all = mcp.done("snapshot_list", json!({}));
    assert_eq!(all["snapshots"][0]["note"], "good");
    mcp.done("exec", json!({"sandbox": "box", "command": "rm -r /root/a"}));
    mcp.done("snapshot_restore", json!({"sandbox": "box", "snapshot": "saved"}));
    let read = mcp.done("file_read", json!({"sandbox": "box", "path": "/root/a/b.txt"}));
    assert_eq!(read["content"], "one\n2\n2\n");
}

#[test]
fn a_cancelled_call_ends_what_it_started() {
    for msb in Msb::each() {
        let mut mcp = SchemaClient::open(&msb, "core");
        mcp.done("sandbox_create", json!({"name": "box"}));
        let params =
            json!({"name": "exec", "arguments": {"sandbox": "box", "command": "sleep 600"}});
        let call = mcp.client.begin("tools/call", params);
        let sleeps = || msb.processes("box").iter().any(|it| it.name.contains("sleep"));
        eventually("the command runs", sleeps);
        mcp.client.cancel(call);
        eventually("it has ended", || !sleeps());
        mcp.done("sandbox_stop", json!({"sandbox": "box", "remove": true}));
    }
}

/// Attack 1, over MCP.
#[test]
fn no_path_of_the_host_is_shown_that_is_not_allowed() {
    for msb in Msb::each() {
        let mut mcp = SchemaClient::open(&msb, "core");
        symlink("/etc", msb.scratch().join("link")).expect("it is there");
        for path in ["/etc", "../..", "./link", "./link/new/deeper"] {
            let arguments = json!({"name": "box", "mounts": [format!("{path}:/x")]});
            let said = mcp.failed("sandbox_create", arguments);
            assert!(said.contains("is not allowed"), "{path}: {said}");
            let said = mcp.failed("sandbox_create", json!({"name": "box", "workspace": path}));
            assert!(said.contains("is not allowed"), "{path}: {said}");
            let said = mcp.failed("sandbox_create", json!({"name": "box", "image": path}));
            assert!(said.contains("is not allowed"), "{path}: {said}");
            let said = mcp.failed("run", json!({"command": "true", "image": path}));
            assert!(said.contains("is not allowed"), "{path}: {said}");
            let spawn = format!("image={path}");
            let said = mcp.failed("sandbox_create", json!({"name": "box", "spawn": spawn}));
            assert!(said.contains("is not allowed"), "{path}: {said}");
        }
        assert_eq!(msb.words("ls -q").ok().stdout, "");
    }
}

#[test]
fn fewer_tools_are_shown_and_no_others_work() {
    let msb = Msb::new();
    let mut client = Client::start(&msb, &["--dialect", "core", "--tools", "run,file_*"]);
    let names: Vec<Value> = client.tools().iter().map(|tool| tool["name"].clone()).collect();
    assert_eq!(names, ["run", "file_read", "file_write", "file_edit", "file_search"]);
    let result = client.call("sandbox_list", json!({}));
    assert_eq!(result["isError"], true, "{result}");
    let gave = msb.words("mcp --dialect core --tools rum");
    assert!(gave.stderr.contains("did you mean `run`?"), "{gave:#?}");
    let gave = msb.words("mcp --dialect cor");
    assert!(gave.stderr.contains("`core`"), "{gave:#?}");
}

/// A flag that would do nothing is refused by its name.
#[test]
fn flags_of_another_dialect_are_refused() {
    let msb = Msb::new();
    let values = ["--api-key k", "--domain d", "--protocol http", "--request-timeout 3"];
    for flags in values.into_iter().chain(["--use-server-proxy"]) {
        for dialect in ["core", "microsandbox", "server"] {
            let gave = msb.words(&format!("mcp --dialect {dialect} {flags}"));
            assert_ne!(gave.code, 0, "{gave:#?}");
            let flag = flags.split(' ').next().expect("a flag");
            let named = format!("`{flag}` means nothing to the dialect `{dialect}`");
            assert!(gave.stderr.contains(&named), "{gave:#?}");
        }
    }
    let gave = msb.words("mcp --port 80");
    assert!(gave.stderr.contains("`--port` means nothing on stdin and stdout"), "{gave:#?}");
}

/// What a client names of the host through every tool that takes a path, and what it says then.
fn tries(client: &mut Client, path: &str) -> Vec<Value> {
    vec![
        client.call("sandbox_create", json!({"name": "a", "mounts": [format!("{path}:/x")]})),
        client.call("sandbox_create", json!({"name": "b", "workspace": path})),
        client.call("sandbox_create", json!({"name": "c", "image": path})),
    ]
}

/// A server that is started where programs with windows start it offers no files of the host.
#[test]
fn neither_the_root_nor_the_home_directory_is_offered_by_itself() {
    for msb in Msb::each() {
        let user = msb.scratch().join("user");
        msb.file("user/.ssh/id", "private");
        msb.file("user/project/file", "public");
        for (directory, offered) in
            [("/".into(), false), (user.clone(), false), (user.join("project"), true)]
        {
            let mut command = msb.command(["mcp", "--dialect", "core"]);
            command.env("HOME", &user).current_dir(&directory).stderr(Stdio::piped());
            let mut client = Client::over(command);
            let shown = user.join("project").display().to_string();
            for said in tries(&mut client, &shown) {
                // A directory is no image without programs, but may be named.
                let denied = said.to_string().contains("is not allowed");
                assert_eq!(denied, !offered, "{directory:?}: {said}");
            }
            for path in [user.join(".ssh").display().to_string(), "/etc".to_owned()] {
                for said in tries(&mut client, &path) {
                    assert!(said.to_string().contains("is not allowed"), "{directory:?}: {said}");
                }
            }
            drop(client);
            for name in msb.words("ls -q").ok().stdout.lines() {
                msb.words(&format!("rm -f {name}")).ok();
            }
        }
    }
}

/// The state directory holds the secret of the server and the files of every sandbox.
#[test]
fn the_state_directory_is_never_shown() {
    for msb in Msb::each() {
        let home = msb.home();
        msb.words("server keygen").ok();
        assert!(home.join("server.key").exists());
        symlink(&home, msb.scratch().join("link")).expect("a link");
        let own = msb.scratch().display().to_string();
        for more in [
            &["--host-path", own.as_str()][..],
            &["--host-path", "/"],
            &["--host-path", own.as_str(), "--host-path", home.to_str().expect("text")],
        ] {
            let arguments: Vec<&str> = [&["--dialect", "core"], more].concat();
            let mut client = Client::start(&msb, &arguments);
            // Itself, what is in it, what leads to it and what it lies in.
            for path in [
                home.clone(),
                home.join("server.key"),
                home.join("sandboxes"),
                msb.scratch().join("link"),
                msb.scratch().to_owned(),
                "/".into(),
            ] {
                for said in tries(&mut client, &path.display().to_string()) {
                    let text = said.to_string();
                    let refused = ["overlaps the state directory", "is not allowed"];
                    assert!(refused.iter().any(|it| text.contains(it)), "{path:?}: {text}");
                }
            }
            drop(client);
            assert_eq!(msb.words("ls -q").ok().stdout, "");
        }
    }
}
