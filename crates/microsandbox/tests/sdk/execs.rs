//! Commands with captured output.

use crate::scratch::Scratch;
use microsandbox::{Ending, Kind, Stdin};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

#[tokio::test]
async fn a_command_gives_its_output_and_its_end() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let output = sandbox.exec("sh", ["-c", "echo out; echo err >&2; exit 7"]).await.unwrap();
    assert_eq!(output.stdout().unwrap(), "out\n");
    assert_eq!(output.stderr().unwrap(), "err\n");
    assert_eq!(output.status(), 7);
    assert!(!output.success());
    assert_eq!(output.exit().ending, Ending::Own);
    sandbox.stop_and_wait().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_runs_in_the_shell_of_the_sandbox() {
    let scratch = Scratch::new();
    let sandbox = scratch.box_named("box").shell("/bin/bash").create().await.unwrap();
    let output = sandbox.shell("echo ${BASH_VERSION:+bash} | tr a-z A-Z").await.unwrap();
    assert_eq!(output.stdout().unwrap(), "BASH\n");
    let again = scratch.get("box").await.unwrap();
    assert_eq!(
        again.shell("echo ${BASH_VERSION:+bash}").await.unwrap().stdout().unwrap(),
        "bash\n"
    );
}

#[tokio::test]
async fn everything_about_a_command_can_be_said() {
    let scratch = Scratch::new();
    let sandbox = scratch.box_named("box").env("A", "1").env("B", "1").create().await.unwrap();
    let script = "echo $A $B $C; pwd; ulimit -n; cat";
    let output = sandbox
        .exec_with("sh", |command| {
            command
                .args(["-c", script])
                .env("B", "2")
                .envs([("C", "3")])
                .cwd("/var/tmp")
                .rlimit("nofile=99:100")
                .stdin("read me")
        })
        .await
        .unwrap();
    assert_eq!(output.stdout().unwrap(), "1 2 3\n/var/tmp\n99\nread me");
}

#[tokio::test]
async fn a_command_can_have_a_terminal() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let script = "test -t 0 && test -t 1 && stty size && echo err >&2";
    let output =
        sandbox.exec_with("sh", |command| command.args(["-c", script]).tty(33, 99)).await.unwrap();
    assert_eq!(output.stdout().unwrap(), "33 99\r\nerr\r\n");
    assert!(output.stderr_bytes().is_empty());
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_killed_and_keeps_what_it_said() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let since = Instant::now();
    let output = sandbox
        .exec_with("sh", |command| {
            command.args(["-c", "echo begun; sleep 60"]).timeout(Duration::from_millis(300))
        })
        .await
        .unwrap();
    assert!(output.timed_out());
    assert_eq!(output.status(), 124);
    assert_eq!(output.stdout().unwrap(), "begun\n");
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
}

#[tokio::test]
async fn stdin_larger_than_any_buffer_goes_in_while_output_comes_out() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let bytes: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
    let output = sandbox.exec_with("cat", |command| command.stdin(bytes.clone())).await.unwrap();
    assert!(output.success());
    assert!(output.stdout_bytes() == bytes, "{} bytes came back", output.stdout_bytes().len());
}

#[tokio::test]
async fn stdin_that_nobody_reads_does_not_hang() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let bytes = vec![b'x'; 3_000_000];
    let output = sandbox.exec_with("true", |command| command.stdin(bytes)).await.unwrap();
    assert!(output.success());
}

#[tokio::test]
async fn a_captured_command_reads_nothing_unless_told() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    assert_eq!(sandbox.exec("cat", [""; 0]).await.unwrap().stdout().unwrap(), "");
    let streamed = sandbox.exec_with("cat", |command| command.stdin(Stdin::Streamed)).await;
    assert_eq!(streamed.unwrap_err().kind(), Kind::Invalid);
}

#[tokio::test]
async fn binary_output_comes_as_it_is_and_as_text_is_an_error() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let output = sandbox.exec("printf", [r"a\0b\377"]).await.unwrap();
    assert_eq!(output.stdout_bytes(), b"a\0b\xff");
    assert_eq!(output.stdout().unwrap_err().kind(), Kind::Invalid);
}

#[tokio::test]
async fn a_hundred_megabytes_of_output_are_captured() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let output = sandbox.exec("head", ["-c", "100000000", "/dev/zero"]).await.unwrap();
    assert_eq!(output.stdout_bytes().len(), 100_000_000);
    assert!(output.success());
}

#[tokio::test]
async fn output_over_the_limit_is_an_error_and_ends_the_command() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let endless = sandbox.exec_with("yes", |command| command.max_output(1 << 20)).await;
    assert_eq!(endless.unwrap_err().kind(), Kind::Limit);
    crate::scratch::eventually("the command is killed", async || {
        sandbox.inspect().await.unwrap().worker.unwrap().execs == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_commands_at_once_do_not_mix() {
    let scratch = Scratch::new();
    let sandbox = std::sync::Arc::new(scratch.create().await);
    let mut running = JoinSet::new();
    for number in 0..20 {
        let sandbox = sandbox.clone();
        running.spawn(async move {
            let script =
                format!("for i in 1 2 3 4 5; do echo {number}; sleep 0.0$i; done; exit {number}");
            (number, sandbox.shell(script).await.unwrap())
        });
    }
    for (number, output) in running.join_all().await {
        assert_eq!(output.stdout().unwrap(), format!("{number}\n").repeat(5));
        assert_eq!(output.status(), number);
    }
}

#[tokio::test]
async fn more_commands_at_once_than_the_worker_queues_all_end() {
    let scratch = Scratch::new();
    let sandbox = std::sync::Arc::new(scratch.create().await);
    let mut running = JoinSet::new();
    for _ in 0..300 {
        let sandbox = sandbox.clone();
        running.spawn(async move { sandbox.exec("true", [""; 0]).await.unwrap().success() });
    }
    assert_eq!(running.join_all().await, [true; 300]);
}

#[tokio::test]
async fn a_large_environment_reaches_the_command() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let value = "x".repeat(100_000);
    let output = sandbox
        .exec_with("sh", |command| {
            command.args(["-c", "echo ${#A} ${#B}"]).env("A", &value).env("B", &value)
        })
        .await
        .unwrap();
    assert_eq!(output.stdout().unwrap(), "100000 100000\n");
}

#[tokio::test]
async fn two_sandboxes_know_nothing_of_each_other() {
    let scratch = Scratch::new();
    let (one, two) =
        tokio::join!(scratch.box_named("one").create(), scratch.box_named("two").create());
    let (one, two) = (one.unwrap(), two.unwrap());
    one.fs().write("/tmp/mine", "one").await.unwrap();
    let (first, second) =
        tokio::join!(one.shell("hostname; cat /tmp/mine"), two.shell("hostname; cat /tmp/mine"));
    assert_eq!(first.unwrap().stdout().unwrap(), "one\none");
    let second = second.unwrap();
    assert_eq!((second.stdout().unwrap(), second.status()), ("two\n", 1));
}
