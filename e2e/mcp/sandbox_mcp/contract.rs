//! What a client is told before it calls anything, and how calls fail.

use super::{DIALECT, SandboxMcpClient, mask};
use msb_e2e::Msb;
use msb_e2e::mcp::Client;
use serde_json::{Value, json};

/// Every tool with its arguments, as its authors wrote them down: name, type, and default.
/// Their schemas follow from that.
const TOOLS: &str = r#"
exec command:string timeout:number=30.0 workdir:string="/workspace" stdin:string="" sandbox:string="default"
python code:string timeout:number=30.0 sandbox:string="default"
write_file path:string content:string sandbox:string="default"
read_file path:string sandbox:string="default"
install packages:string sandbox:string="default"
reset wipe_workspace:boolean=false sandbox:string="default"
status
health
upload local_path:string sandbox_path:string="/workspace" sandbox:string="default"
download sandbox_path:string local_path:string sandbox:string="default"
bg command:string name:string="" workdir:string="/workspace" sandbox:string="default"
logs name:string tail:integer=50 sandbox:string="default"
kill name:string sandbox:string="default"
stats sandbox:string="default"
snapshot snapshot_name:string sandbox:string="default"
restore snapshot_name:string sandbox:string="default"
list_snapshots
git_clone repo:string branch:string="" token:string="" path:string="/workspace" shallow:boolean=true sandbox:string="default"
sync_start local_dir:string sandbox_dir:string="/workspace" sandbox:string="default"
sync_stop job_id:string
env action:string="list" key:string="" value:string="" sandbox:string="default"
clone source:string target:string
history limit:integer=20 sandbox:string="default"
batch_write files:string sandbox:string="default"
list_all
destroy sandbox:string
delete_snapshot snapshot_name:string
network_info
build_image name:string containerfile:string
images
expose port:integer host_port:integer=0 sandbox:string="default"
unexpose port:integer
spawn image:string="" parent:string="default" name:string="" cpus:integer=0 memory:string=""
children parent:string="default"
destroy_child name:string
"#;

/// `sandbox_path` is titled `Sandbox Path`.
fn title(name: &str) -> String {
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    name.split('_').map(capital).collect::<Vec<_>>().join(" ")
}

fn input_schema(tool: &str, arguments: &[&str]) -> Value {
    let mut schema = json!({"properties": {}, "title": format!("{tool}Arguments")});
    schema["type"] = json!("object");
    for argument in arguments {
        let (name, kind) = argument.split_once(':').expect("a type");
        let (kind, default) = kind.split_once('=').unzip();
        let kind = kind.unwrap_or_else(|| argument.split_once(':').expect("a type").1);
        let mut property = json!({"title": title(name), "type": kind});
        match default {
            Some(default) => property["default"] = serde_json::from_str(default).expect("JSON"),
            None => {
                let required = schema["required"].as_array().cloned().unwrap_or_default();
                schema["required"] = required.into_iter().chain([json!(name)]).collect();
            }
        }
        schema["properties"][name] = property;
    }
    schema
}

pub(super) fn names() -> Vec<String> {
    let lines = TOOLS.trim().lines();
    lines.map(|line| line.split(' ').next().expect("a name").to_owned()).collect()
}

#[test]
fn the_tools_and_their_schemas_are_those_of_the_original() {
    let msb = Msb::new();
    let mut client = Client::start(&msb, &DIALECT);
    assert_eq!(client.about["serverInfo"]["name"], "sandbox");
    assert!(client.about["instructions"].is_string(), "{}", client.about);
    let tools = client.tools();
    let listed: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().expect("text")).collect();
    assert_eq!(listed, names());
    for (tool, line) in tools.iter().zip(TOOLS.trim().lines()) {
        let words: Vec<&str> = line.split(' ').collect();
        let name = words[0];
        assert_eq!(tool["inputSchema"], input_schema(name, &words[1..]), "{name}");
        let output = json!({
            "properties": {"result": {"title": "Result", "type": "string"}},
            "required": ["result"], "title": format!("{name}Output"), "type": "object",
        });
        assert_eq!(tool["outputSchema"], output, "{name}");
        assert!(tool["description"].as_str().is_some_and(|text| text.len() > 20), "{tool}");
    }
    for (list, of) in [("resources/list", "resources"), ("prompts/list", "prompts")] {
        assert_eq!(client.ask(list, json!({}))[of], json!([]), "{list}");
    }
}

#[test]
fn only_calls_that_are_no_calls_are_errors() {
    let msb = Msb::new();
    let mut mcp = SandboxMcpClient::open(&msb);
    let wrong = |mcp: &mut SandboxMcpClient, tool: &str, arguments: Value| {
        let result = mcp.client.call(tool, arguments);
        assert_eq!(result["isError"], true, "{result}");
        assert_eq!(result["structuredContent"], Value::Null, "{result}");
        result["content"][0]["text"].as_str().expect("text").to_owned()
    };
    assert_eq!(wrong(&mut mcp, "nosuchtool", json!({})), "Unknown tool: nosuchtool");
    let said = wrong(&mut mcp, "exec", json!({}));
    let begin = "Error executing tool exec: 1 validation error for execArguments\ncommand\n  \
                 Field required [type=missing, ";
    assert!(said.starts_with(begin), "{said}");
    let said = wrong(&mut mcp, "write_file", json!({}));
    assert!(said.contains("2 validation errors for write_fileArguments\n"), "{said}");
    assert!(said.contains("\npath\n") && said.contains("\ncontent\n"), "{said}");
    for (tool, arguments) in [
        ("exec", json!({"command": ["echo"]})),
        ("exec", json!({"command": "echo", "timeout": "soon"})),
        ("reset", json!({"wipe_workspace": "perhaps"})),
        ("logs", json!({"name": "x", "tail": 1.5})),
        ("expose", json!({"port": {}})),
    ] {
        let said = wrong(&mut mcp, tool, arguments.clone());
        let begin =
            format!("Error executing tool {tool}: 1 validation error for {tool}Arguments\n");
        assert!(said.starts_with(&begin), "{arguments}: {said}");
    }
    // Nothing of this has made a sandbox.
    let none = "No active sandboxes. Use any sandbox tool to auto-create 'default'.";
    assert_eq!(mcp.says("list_all", json!({})), none);
    assert_eq!(msb.words("ls -q").line(), "");
    // What is unknown among the arguments is ignored, and what fails is an answer.
    assert_eq!(mcp.masked("exec", json!({"command": "echo", "bogus": 1})), "(Nms)");
    let said = mcp.says("read_file", json!({"path": "/workspace/zz"}));
    assert!(said.starts_with("Error: ") && said.contains("/workspace/zz"), "{said}");
    assert!(said.contains("o such file or directory"), "{said}");
}

#[test]
fn names_that_are_none_are_answered_with_errors() {
    let msb = Msb::new();
    let mut mcp = SandboxMcpClient::open(&msb);
    for name in ["", "../up", "a b", "a/b", "-rf", "a\nb", "ä", &"x".repeat(300)] {
        let said = mcp.says("exec", json!({"command": "true", "sandbox": name}));
        assert!(said.starts_with("Error"), "{name}: {said}");
        // A snapshot may begin with anything: its image is called after it, not like it.
        if name != "-rf" {
            let said = mcp.says("snapshot", json!({"snapshot_name": name}));
            assert!(said.starts_with("Error"), "{name}: {said}");
        }
        let said = mcp.says("clone", json!({"source": "default", "target": name}));
        assert!(said.starts_with("Error"), "{name}: {said}");
    }
}

#[test]
fn masks_hide_what_changes_and_nothing_else() {
    let text = "Spawned 'a-0001': mcp-sb-170acc PID 12 (80.2ms) 512MB sync-31ef27 idle:0s 3/10 9s";
    let masked = "Spawned 'a-0001': mcp-sb-ID PID N (Nms) 512MB sync-ID idle:Ns 3/10 Ns";
    assert_eq!(mask(text), masked);
}
