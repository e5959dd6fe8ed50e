//! The tools of the microsandbox server's dialect on a real sandbox.

use msb_e2e::Msb;
use msb_e2e::mcp::Client;
use serde_json::{Value, json};

#[track_caller]
fn text(result: &Value) -> String {
    result["content"][0]["text"].as_str().expect("text").to_owned()
}

#[test]
fn an_interpreter_keeps_what_it_knows() {
    for msb in Msb::each() {
        let mut client = Client::start(&msb, &["--dialect", "server"]);
        let started = client.call("sandbox_start", json!({"sandbox": "py"}));
        assert!(text(&started).contains("started successfully"), "{started}");
        let code = |code: &str| json!({"sandbox": "py", "language": "python", "code": code});
        client.call("sandbox_run_code", code("x = 41"));
        let ran = client.call("sandbox_run_code", code("print(x + 1)"));
        let ran: Value = serde_json::from_str(&text(&ran)).expect("it is there");
        assert_eq!(ran["output"], json!([{"stream": "stdout", "text": "42"}]), "{ran}");
        let line = json!({"sandbox": "py", "command": "sh", "args": ["-c", "echo out; exit 3"]});
        let ran = client.call("sandbox_run_command", line);
        let ran: Value = serde_json::from_str(&text(&ran)).expect("it is there");
        assert_eq!((&ran["exit_code"], &ran["success"]), (&json!(3), &json!(false)));
        let metrics = client.call("sandbox_get_metrics", json!({"sandbox": "py"}));
        let metrics: Value = serde_json::from_str(&text(&metrics)).expect("it is there");
        assert_eq!(metrics["sandboxes"][0]["running"], true, "{metrics}");
        // The protocol between the interpreter and us does not show as output.
        let logged = msb.words("logs py").ok().stdout;
        assert_eq!(logged, "out\n");
        let stopped = client.call("sandbox_stop", json!({"sandbox": "py"}));
        assert!(text(&stopped).contains("stopped successfully"), "{stopped}");
        let prompts = client.ask("prompts/list", json!({}));
        assert_eq!(prompts["prompts"].as_array().expect("it is there").len(), 2);
        let wrong = client.call("sandbox_run_code", json!({"sandbox": "py"}));
        assert_eq!(wrong["isError"], true, "{wrong}");
    }
}

/// Clients of that server expect a microVM and an image of their own.
#[test]
fn a_sandbox_that_is_no_microvm_or_has_no_image_says_so() {
    let msb = Msb::new();
    let mut command = msb.command(["mcp", "--dialect", "server"]);
    command.env("MSB_ISOLATION", "auto");
    let mut client = Client::over(command);
    let started = text(&client.call("sandbox_start", json!({"sandbox": "one"})));
    assert!(started.contains("No image was given; `host` is used"), "{started}");
    let line = json!({"sandbox": "one", "command": "true"});
    let ran: Value =
        serde_json::from_str(&text(&client.call("sandbox_run_command", line))).expect("JSON");
    let metrics = text(&client.call("sandbox_get_metrics", json!({"sandbox": "one"})));
    let metrics: Value = serde_json::from_str(&metrics).expect("JSON");
    client.call("sandbox_stop", json!({"sandbox": "one"}));
    let again = text(&client.call("sandbox_start", json!({"sandbox": "one"})));
    let plan = msb.words("inspect one --json").ok().stdout;
    let plan: Value = serde_json::from_str(&plan).expect("JSON");
    let reason = &plan["plan"]["isolation_reason"];
    assert_eq!(ran["isolation_reason"], *reason, "{ran}");
    assert_eq!(metrics["sandboxes"][0]["isolation_reason"], *reason, "{metrics}");
    for said in [started, again] {
        match reason.as_str() {
            Some(reason) => assert!(said.contains(&format!("not a microVM: {reason}")), "{said}"),
            None => assert!(!said.contains("not a microVM"), "{said}"),
        }
    }
    client.call("sandbox_stop", json!({"sandbox": "one"}));
}
