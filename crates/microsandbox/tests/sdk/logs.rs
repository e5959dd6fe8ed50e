//! What is known about a sandbox: its log, its use of the host.

use crate::scratch::Scratch;
use microsandbox::{LogFilter, LogSource};

#[tokio::test]
async fn the_log_has_what_was_said_and_survives_the_end() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    sandbox.shell("echo one; sleep 0.1; echo two >&2").await.unwrap();
    sandbox.shell("echo three").await.unwrap();
    sandbox.kill().await.unwrap();
    let lines = sandbox.logs(LogFilter::default()).await.unwrap();
    let said: Vec<(u64, LogSource, &[u8])> =
        lines.iter().map(|line| (line.exec, line.source, line.bytes.as_slice())).collect();
    let expected: [(u64, LogSource, &[u8]); 3] = [
        (1, LogSource::Stdout, b"one\n"),
        (1, LogSource::Stderr, b"two\n"),
        (2, LogSource::Stdout, b"three\n"),
    ];
    assert_eq!(said, expected);
    let second = LogFilter { exec: Some(2), ..LogFilter::default() };
    assert_eq!(sandbox.logs(second).await.unwrap().len(), 1);
}

#[tokio::test]
async fn the_log_is_followed_until_the_sandbox_ends() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    sandbox.shell("echo before").await.unwrap();
    let mut log = sandbox.follow_logs(LogFilter::default()).await.unwrap();
    assert_eq!(log.next().await.unwrap().unwrap().bytes, b"before\n");
    sandbox.shell("echo after; printf unfinished").await.unwrap();
    assert_eq!(log.next().await.unwrap().unwrap().bytes, b"after\n");
    sandbox.kill().await.unwrap();
    assert_eq!(log.next().await.unwrap().unwrap().bytes, b"unfinished");
    assert_eq!(log.next().await.unwrap(), None);
}

#[tokio::test]
async fn metrics_tell_what_a_sandbox_uses_and_may() {
    let scratch = Scratch::new();
    let sandbox = scratch.box_named("box").memory(300).pids(77).create().await.unwrap();
    let _busy = sandbox.exec_stream("sleep", ["60"]).await.unwrap();
    let metrics = sandbox.metrics().await.unwrap();
    assert_eq!(metrics.name, "box");
    assert_eq!(metrics.memory_limit, Some(300 << 20));
    assert_eq!(metrics.pids_limit, Some(77));
    assert!(metrics.memory > 0 && metrics.pids >= 2, "{metrics:?}");
}

#[tokio::test]
async fn an_inspection_tells_what_was_decided_and_what_ran() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    sandbox.exec("sh", ["-c", "exit 4"]).await.unwrap();
    let entries = sandbox.execs().await.unwrap();
    assert_eq!(entries[0].argv, ["sh", "-c", "exit 4"]);
    assert_eq!(entries[0].exit.unwrap().code, Some(4));
    let inspection = sandbox.inspect().await.unwrap();
    assert_eq!(inspection.plan.name.as_str(), "box");
    assert!(inspection.worker.is_some());
}
