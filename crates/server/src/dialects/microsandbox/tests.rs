//! Tests of results and calls, with a fake `Api` that records its calls.

mod golden;
mod properties;

use super::fake::FakeMicrosandbox;
use super::{Microsandbox, MicrosandboxSettings};
use crate::content::ResourceBody;
use crate::dialect::{Caller, Dialect, ToolCall, ToolResult};
use crate::dialects::ServerConfig;
use crate::paths::HostPaths;
use crate::recorder::NO_CALLS;
use msb_spec::Spec;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// The dialect over a fake, with an allowed host directory.
pub(super) struct Bench {
    pub(super) dialect: Microsandbox,
    pub(super) fake: FakeMicrosandbox,
    pub(super) directory: super::temp_dir::TempDir,
}

impl Bench {
    pub(super) fn new() -> Self {
        let secret_env = vec![msb_spec::Secret::parse("PATH@a.example").unwrap()];
        let default_timeout = Duration::from_millis(300);
        Self::with(MicrosandboxSettings {
            default_timeout,
            secret_env,
            ..MicrosandboxSettings::default()
        })
    }

    pub(super) fn with(settings: MicrosandboxSettings) -> Self {
        Self::over(FakeMicrosandbox::default(), settings)
    }

    fn over(fake: FakeMicrosandbox, settings: MicrosandboxSettings) -> Self {
        let directory = super::temp_dir::TempDir::new().unwrap();
        let paths = HostPaths::below([directory.path().to_owned()], "a test");
        let config = ServerConfig::new(fake.api(), Arc::new(paths), Spec::with_defaults());
        Self { dialect: Microsandbox::new(config, settings), fake, directory }
    }

    pub(super) fn answer(&self, tool: &str, arguments: Value) -> ToolResult {
        let Value::Object(arguments) = arguments else { panic!("{arguments}") };
        self.dialect.call(&ToolCall::new(tool, arguments))
    }

    /// The content of the envelope.
    fn call(&self, tool: &str, arguments: Value) -> Value {
        let answer = self.answer(tool, arguments);
        let envelope: Value = serde_json::from_str(&answer.text[0])
            .unwrap_or_else(|error| panic!("{tool}: {error}: {}", answer.text[0]));
        assert_eq!(answer.failed, envelope["ok"] == false, "{envelope}");
        envelope
    }

    #[track_caller]
    fn data(&self, tool: &str, arguments: Value) -> Value {
        let envelope = self.call(tool, arguments);
        assert_eq!(envelope["ok"], true, "{envelope}");
        envelope["data"].clone()
    }

    #[track_caller]
    fn error(&self, tool: &str, arguments: Value) -> (String, String) {
        let envelope = self.call(tool, arguments);
        let text = |key: &str| envelope["error"][key].as_str().unwrap().to_owned();
        (text("code"), text("message"))
    }
}

#[test]
fn known_messages_are_those_that_clients_know() {
    let bench = Bench::new();
    let failed = "operation_failed";
    for (tool, arguments, code, message) in [
        ("sandbox_inspect", json!({"name": "nope"}), failed, "sandbox not found: nope"),
        (
            "sandbox_exec",
            json!({"name": "nope", "command": "ls"}),
            failed,
            "sandbox not found: nope",
        ),
        (
            "sandbox_shell",
            json!({"name": "nope", "command": "ls"}),
            failed,
            "sandbox not found: nope",
        ),
        ("sandbox_metrics_stream", json!({"name": "no pe"}), failed, "sandbox not found: no pe"),
        ("sandbox_exec_poll", json!({"execSessionId": "x"}), failed, "exec session not found: x"),
        ("sandbox_stop", json!({}), failed, "at least one selector is required"),
        ("volume_remove", json!({}), failed, "volume_remove requires name or names"),
        ("volume_remove", json!({"name": "v1"}), failed, "volume not found: v1"),
        ("volume_create", json!({"name": "vol"}), failed, "volume already exists: vol"),
        ("image_remove", json!({}), failed, "image_remove requires reference or references"),
        (
            "snapshot_remove",
            json!({}),
            failed,
            "snapshot_remove requires pathOrName or pathOrNames",
        ),
        (
            "sandbox_restore",
            json!({"name": "x", "snapshot": "s"}),
            failed,
            "[SnapshotNotFound] snapshot not found: s",
        ),
        (
            "volume_fs_read",
            json!({"name": "vol", "path": "../../etc/passwd"}),
            failed,
            "sandbox fs error: path traversal outside volume root",
        ),
        (
            "volume_fs_read",
            json!({"name": "vol", "path": "/none"}),
            failed,
            "io error: No such file or directory (os error 2)",
        ),
        ("sandbox_logs_read", json!({"name": "on", "since": "soon"}), failed, "invalid date: soon"),
        (
            "sandbox_create",
            json!({"name": "x", "image": "/etc"}),
            "host_path_denied",
            "host path is outside MICROSANDBOX_MCP_HOST_PATHS",
        ),
        (
            "snapshot_save",
            json!({"pathOrName": "snap", "out": "/etc/x"}),
            "host_path_denied",
            "host path is outside MICROSANDBOX_MCP_HOST_PATHS",
        ),
        (
            "sandbox_run",
            json!({"command": "ls", "secrets": [{"envVar": "K", "allowedHost": "a.example"}]}),
            failed,
            "missing secret value for K",
        ),
    ] {
        assert_eq!(bench.error(tool, arguments), (code.to_owned(), message.to_owned()), "{tool}");
    }
    let denied = bench.call("sandbox_create", json!({"name": "x", "image": "/etc"}));
    assert_eq!(denied["error"]["details"]["path"], "/etc");
}

#[test]
fn destructive_tools_need_confirmation() {
    let bench = Bench::new();
    for (tool, arguments, what) in [
        ("image_remove", json!({"reference": "a", "force": true}), "image_remove with force"),
        (
            "snapshot_remove",
            json!({"pathOrName": "snap", "force": true}),
            "snapshot_remove with force",
        ),
        (
            "snapshot_create",
            json!({"name": "made", "fromSandbox": "on", "force": true}),
            "snapshot_create with force",
        ),
        ("image_prune", json!({"confirm": false}), "image_prune"),
    ] {
        let expected =
            ("dangerous_operation_disabled".to_owned(), format!("{what} requires confirm: true"));
        assert_eq!(bench.error(tool, arguments.clone()), expected);
        assert_eq!(bench.fake.changes(), NO_CALLS, "{tool}");
        let mut confirmed = arguments;
        confirmed["confirm"] = json!(true);
        bench.data(tool, confirmed);
        assert_ne!(bench.fake.changes(), NO_CALLS, "{tool}");
    }
}

#[test]
fn only_the_operator_allows_dangerous_operations() {
    let all = json!({"status": "all", "force": true});
    let keyed = |bench: &Bench| {
        let secrets = json!([{"envVar": "K", "valueEnv": "PATH", "allowedHost": "a.example"}]);
        let arguments = json!({"name": "on", "image": "host", "secrets": secrets});
        let mut call = ToolCall::new("sandbox_create", arguments.as_object().unwrap().clone());
        call.caller = Caller { key: Some("a key".to_owned()), ..Caller::default() };
        bench.dialect.call(&call).failed
    };
    let usual = Bench::new();
    for tool in ["sandbox_stop", "sandbox_remove"] {
        assert_eq!(usual.error(tool, all.clone()).0, "dangerous_operation_disabled");
        assert_eq!(usual.fake.changes(), NO_CALLS);
        usual.data(tool, json!({"labels": {"is": "off"}, "force": true}));
    }
    assert!(keyed(&usual));
    let dangerous =
        Bench::with(MicrosandboxSettings { dangerous: true, ..MicrosandboxSettings::default() });
    assert!(keyed(&dangerous), "no variable is listed");
    let listed = vec![msb_spec::Secret::parse("PATH@a.example").unwrap()];
    let settings = MicrosandboxSettings { secret_env: listed, ..MicrosandboxSettings::default() };
    assert!(keyed(&Bench::with(settings.clone())));
    let allowed = Bench::with(MicrosandboxSettings { dangerous: true, ..settings });
    for tool in ["sandbox_stop", "sandbox_remove"] {
        allowed.data(tool, all.clone());
    }
    assert!(!keyed(&allowed));
}

#[test]
fn selectors_add_names_to_labels_and_narrow_by_status() {
    let bench = Bench::new();
    let names = |arguments: Value| -> Vec<String> {
        let rows = bench.data("sandbox_list", arguments);
        let name = |row: &Value| row["name"].as_str().unwrap().to_owned();
        rows.as_array().unwrap().iter().map(name).collect()
    };
    assert_eq!(names(json!({})), ["off", "on"]);
    assert_eq!(names(json!({"name": "on"})), ["on"]);
    assert_eq!(names(json!({"names": ["on"], "name": "off"})), ["off", "on"]);
    assert_eq!(names(json!({"labels": {"is": "off"}})), ["off"]);
    assert_eq!(names(json!({"name": "on", "labels": {"is": "off"}})), ["off", "on"]);
    assert_eq!(names(json!({"status": "stopped"})), ["off"]);
    assert_eq!(names(json!({"name": "on", "status": "stopped"})), [""; 0]);
    let status = bench.data("sandbox_status", json!({}));
    assert_eq!(status[0]["name"], "on");
    assert_eq!(status.as_array().unwrap().len(), 1);
}

#[test]
fn one_failed_item_does_not_hide_the_others() {
    let bench = Bench::new();
    let envelope = bench.call("sandbox_remove", json!({"names": ["off", "on"]}));
    assert_eq!(envelope["error"]["message"], "it is running");
    let details = &envelope["error"]["details"];
    assert_eq!(details["results"], json!([{"name": "off", "removed": true}]));
    assert_eq!(details["failures"][0]["name"], "on");
}

#[test]
fn output_is_cut_and_says_so() {
    let bench =
        Bench::with(MicrosandboxSettings { max_output: 8, ..MicrosandboxSettings::default() });
    let params = json!({"name": "on", "command": "x"});
    assert_eq!(bench.call("sandbox_exec", params.clone())["truncated"], Value::Null);
    let mut small = params;
    small["maxBytes"] = json!(3);
    let envelope = bench.call("sandbox_exec", small);
    assert_eq!(envelope["data"]["stdout"], "hel");
    let cut = |field, total| json!({"field": field, "returnedBytes": 3, "totalBytes": total});
    assert_eq!(envelope["truncated"], json!([cut("stdout", 5), cut("stderr", 4)]));
    // The default applies to base64 as well.
    for encoding in ["utf8", "base64"] {
        let params = json!({"name": "on", "path": "/a", "encoding": encoding});
        let envelope = bench.call("sandbox_fs_read", params);
        assert_eq!(
            envelope["truncated"],
            json!([{"field": "content", "returnedBytes": 8, "totalBytes": 20}]),
        );
    }
    let logs = bench.call("sandbox_logs_read", json!({"name": "on", "maxBytes": 2}));
    assert_eq!(logs["data"]["entries"][0]["text"], "ou");
    assert_eq!(logs["truncated"][0]["field"], "entries.0.text");
}

#[test]
fn failure_and_timeout_have_different_results() {
    let bench = Bench::new();
    let fails = json!({"name": "on", "command": "fail", "treatNonZeroAsError": true});
    let envelope = bench.call("sandbox_exec", fails);
    assert_eq!(envelope["error"]["code"], "exec_failed");
    assert_eq!(envelope["error"]["details"]["exitCode"], 3);
    let late = bench.call("sandbox_exec", json!({"name": "on", "command": "late"}));
    assert_eq!(late["error"]["message"], "command timed out after 300 ms");
    assert_eq!(late["error"]["retryable"], true);
    assert_eq!(late["error"]["details"]["stdout"], "hello");
    let waits = bench.call("sandbox_wait", json!({"name": "on"}));
    assert_eq!(waits["error"]["message"], "sandbox on still runs after 300 ms");
}

#[test]
fn a_stopped_sandbox_is_started_for_one_command() {
    let bench = Bench::new();
    let (_, message) = bench.error("sandbox_exec", json!({"name": "off", "command": "x"}));
    assert_eq!(message, "sandbox off is not running: stopped");
    let envelope =
        bench.call("sandbox_exec", json!({"name": "off", "command": "x", "startIfStopped": true}));
    let warning = "sandbox was started for this command and will be stopped afterward";
    assert_eq!(envelope["warnings"], json!([warning]));
    assert!(bench.fake.calls().iter().any(|call| call.operation == "sandbox_stop"));
}

#[test]
fn a_session_is_polled_written_to_and_closed_by_its_own_client_alone() {
    let bench = Bench::new();
    let begun = bench.data("sandbox_exec_start", json!({"name": "on", "command": "wait"}));
    let id = begun["execSessionId"].as_str().unwrap().to_owned();
    assert_eq!(begun["stopSandboxOnExit"], Value::Null);
    let poll = |cursor: u64| {
        bench.data("sandbox_exec_poll", json!({"execSessionId": id, "cursor": cursor}))
    };
    while poll(0)["nextCursor"].as_u64() < Some(3) {
        std::thread::yield_now();
    }
    let polled = poll(1);
    assert_eq!(
        polled["events"][0],
        json!({"index": 1, "event": {"kind": "stdout", "data": "hello"}})
    );
    assert_eq!(polled["done"], false);
    let mut call = ToolCall::new(
        "sandbox_exec_poll",
        json!({"execSessionId": id}).as_object().unwrap().clone(),
    );
    call.caller = Caller { key: Some("another key".to_owned()), ..Caller::default() };
    assert!(bench.dialect.call(&call).failed);
    let written = bench
        .data("sandbox_exec_write_stdin", json!({"execSessionId": id, "data": "x", "close": true}));
    assert_eq!(written, json!({"execSessionId": id, "written": 1, "stdinClosed": true}));
    let (_, message) = bench.error("sandbox_exec_write_stdin", json!({"execSessionId": id}));
    assert_eq!(message, "stdin is not available for this exec session");
    bench.data("sandbox_exec_signal", json!({"execSessionId": id, "signal": "int"}));
    while poll(0)["done"] != true {
        std::thread::yield_now();
    }
    let over = poll(3);
    assert_eq!(over["exitStatus"], json!({"code": 0, "success": true}));
    assert_eq!(over["events"][0]["event"], json!({"kind": "exited", "code": 0}));
    bench.data("sandbox_exec_close", json!({"execSessionId": id}));
    let (_, message) = bench.error("sandbox_exec_poll", json!({"execSessionId": id}));
    assert_eq!(message, format!("exec session not found: {id}"));
}

#[test]
fn an_unpolled_session_is_killed_and_removed() {
    let bench = Bench::with(MicrosandboxSettings {
        session_ttl: Duration::from_millis(20),
        ..MicrosandboxSettings::default()
    });
    let begun = bench.data("sandbox_exec_start", json!({"name": "on", "command": "wait"}));
    let mut calls = Vec::new();
    // No call is made meanwhile.
    while !calls.iter().any(|call| *call == ("input_signal", json!(9))) {
        std::thread::sleep(Duration::from_millis(5));
        calls.extend(bench.fake.calls());
    }
    let id = &begun["execSessionId"];
    assert!(bench.answer("sandbox_exec_poll", json!({"execSessionId": id})).failed);
}

#[test]
fn cursors_of_logs_go_on_where_they_were() {
    let bench = Bench::new();
    let texts = |data: &Value| -> Vec<String> {
        let entries = data["entries"].as_array().unwrap();
        entries.iter().map(|it| it["text"].as_str().unwrap().trim().to_owned()).collect()
    };
    let first = bench.data("sandbox_logs_stream", json!({"name": "on", "limit": 2}));
    assert_eq!(texts(&first), ["out", "err"]);
    let cursor = &first["nextCursor"];
    let next = bench.data("sandbox_logs_stream", json!({"name": "on", "fromCursor": cursor}));
    assert_eq!(texts(&next), ["tty"]);
    assert_eq!(next["entries"][0]["source"], "output");
    // Its line was dropped, so reading continues after its time.
    let gone = json!({"name": "on", "fromCursor": "1500-stdout-9-0"});
    assert_eq!(texts(&bench.data("sandbox_logs_stream", gone)), ["err", "tty"]);
    let all = bench.data("sandbox_logs_read", json!({"name": "on", "sources": ["all"]}));
    assert_eq!(texts(&all), ["started, worker 7", "out", "err", "tty"]);
}

#[test]
fn internal_labels_are_not_shown() {
    let fake = FakeMicrosandbox::labelled("msb.mcp.metrics", "off");
    let bench = Bench::over(fake, MicrosandboxSettings::default());
    assert_eq!(bench.data("sandbox_list", json!({"name": "on"}))[0]["labels"], json!({"is": "on"}));
    let (_, message) = bench.error("sandbox_metrics", json!({"name": "on"}));
    assert_eq!(message, "metrics are disabled for sandbox on");
    assert_eq!(bench.data("sandbox_metrics_all", json!({})), json!({}));
    let fake = FakeMicrosandbox::labelled("msb.mcp.quiet", "1");
    let quiet = Bench::over(fake, MicrosandboxSettings::default());
    let system = json!({"name": "on", "sources": ["system"]});
    assert_eq!(quiet.data("sandbox_logs_read", system.clone())["entries"], json!([]));
    let fake = FakeMicrosandbox::labelled("msb.mcp.log-level", "debug");
    let more = Bench::over(fake, MicrosandboxSettings::default());
    assert_eq!(more.data("sandbox_logs_read", system)["entries"][1]["text"], "created\n");
}

#[test]
fn metrics_report_the_usage() {
    let bench = Bench::new();
    let metrics = bench.data("sandbox_metrics", json!({"name": "on"}));
    assert_eq!(metrics["cpuPercent"], 50.0);
    assert_eq!(metrics["memoryAvailableBytes"], 20);
    assert_eq!((&metrics["netRxBytes"], &metrics["netTxBytes"]), (&json!(6), &json!(5)));
    // Values that are not counted are present, as null.
    let uncounted = bench.data("sandbox_metrics", json!({"name": "off"}));
    for number in ["diskReadBytes", "diskWriteBytes", "netRxBytes", "netTxBytes"] {
        assert_eq!(uncounted.get(number), Some(&json!(null)), "{number}");
    }
    let stream = json!({"name": "on", "intervalMs": 1, "samples": 3});
    assert_eq!(
        bench.data("sandbox_metrics_stream", stream)["samples"].as_array().unwrap().len(),
        3
    );
    let slow = json!({"name": "on", "intervalMs": 100_000, "samples": 3});
    let cut = bench.call("sandbox_metrics_stream", slow);
    assert_eq!(cut["data"]["samples"].as_array().unwrap().len(), 1);
    assert!(cut["warnings"][0].is_string());
}

#[test]
fn a_null_is_nothing_and_nonsense_names_the_argument() {
    let bench = Bench::new();
    bench.data("sandbox_list", json!({"name": null, "status": null}));
    for (tool, arguments, wrong) in [
        ("sandbox_create", json!({}), "expected string, received nothing at name"),
        ("sandbox_create", json!({"name": "x", "cpus": 99}), "too big: expected <=16 at cpus"),
        (
            "sandbox_restore",
            json!({"name": "x", "snapshot": "s", "cpus": 1}),
            "unrecognized key `cpus`",
        ),
    ] {
        let answer = bench.answer(tool, arguments);
        let text = format!(
            "MCP error -32602: Input validation error: Invalid arguments for tool {tool}: {wrong}"
        );
        assert_eq!((answer.failed, answer.text), (true, vec![text]));
    }
    let answer = bench.answer("no_such_tool", json!({}));
    assert_eq!(answer.text, ["MCP error -32602: Tool no_such_tool not found"]);
    assert_eq!(bench.fake.changes(), NO_CALLS);
}

#[test]
fn attached_sandboxes_are_stopped_with_the_server() {
    let bench = Bench::new();
    let ask = json!({"name": "on", "image": "host", "lifecycle": {"detached": false}});
    bench.data("sandbox_create", ask);
    bench.fake.calls();
    let Bench { dialect, fake, .. } = bench;
    drop(dialect);
    assert_eq!(fake.calls(), [("sandbox_stop", json!({"name": "on", "grace_ms": 10_000}))]);
}

#[test]
fn older_names_are_there_on_request() {
    let bench =
        Bench::with(MicrosandboxSettings { older_names: true, ..MicrosandboxSettings::default() });
    assert_eq!(bench.dialect.tools().len(), 72);
    let archive = bench.directory.path().join("a.tar.zst");
    let saved = bench.data("snapshot_export", json!({"pathOrName": "snap", "out": archive}));
    assert_eq!(saved["exported"], true);
    assert_eq!(bench.data("snapshot_import", json!({"archive": archive}))["name"], "snap");
    let loaded = ("snapshot_load", json!({"name": null, "archive": b"archive"}));
    assert!(bench.fake.calls().iter().any(|call| *call == loaded));
    bench.data("snapshot_create", json!({"name": "made", "sourceSandbox": "on"}));
    assert!(Bench::new().answer("snapshot_export", json!({})).text[0].contains("not found"));
}

#[test]
fn an_archive_is_a_snapshot_by_its_path() {
    let bench = Bench::new();
    let archive = bench.directory.path().join("a.tar");
    let params = json!({"pathOrName": "snap", "out": archive, "plainTar": true});
    assert_eq!(bench.data("snapshot_save", params)["out"], json!(archive));
    assert_eq!(std::fs::read(&archive).unwrap(), b"archive");
    let shown = bench.data("snapshot_inspect", json!({"pathOrName": archive}));
    assert_eq!((&shown["referenceKind"], &shown["path"]), (&json!("path"), &json!(archive)));
    bench.fake.calls();
    bench.data("snapshot_remove", json!({"pathOrName": archive}));
    assert!(!archive.exists());
    let calls = bench.fake.changes();
    let name = &calls[0].arguments["name"];
    assert!(name.as_str().unwrap().starts_with("archive-"), "{name}");
    assert_eq!(
        calls,
        [
            ("snapshot_load", json!({"name": name, "archive": b"archive"})),
            ("snapshot_remove", json!({"name": name, "force": true})),
        ]
    );
    // A file that is not an archive is not removed as one.
    let link = bench.directory.path().join("link");
    std::os::unix::fs::symlink("/etc/hostname", &link).unwrap();
    let (code, _) = bench.error("snapshot_remove", json!({"pathOrName": link}));
    assert_eq!(code, "host_path_denied");
}

#[test]
fn resources_are_bare() {
    let bench = Bench::new();
    let read = |uri: &str| -> Value {
        let read = bench.dialect.read(uri, &Caller::default()).unwrap().unwrap();
        assert_eq!(read.mime_type, "application/json");
        let ResourceBody::Text(text) = read.body else { panic!("{read:?}") };
        serde_json::from_str(&text).unwrap()
    };
    for resource in bench.dialect.resources() {
        read(resource.uri);
    }
    assert_eq!(read("microsandbox://sandboxes")[0]["name"], "off");
    assert_eq!(read("microsandbox://policy")["defaultTimeoutMs"], 300);
    assert_eq!(read("microsandbox://runtime")["policy"]["hostPathPolicy"], "allowlist");
    let schema = read("microsandbox://schemas/sandbox-create");
    assert_eq!(schema["additionalProperties"], false);
    assert_eq!(schema["properties"]["resources"]["additionalProperties"], false);
    assert!(bench.dialect.read("microsandbox://nope", &Caller::default()).is_none());
    assert!(bench.dialect.read("file:///etc/passwd", &Caller::default()).is_none());
}
