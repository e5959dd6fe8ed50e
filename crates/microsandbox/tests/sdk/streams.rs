//! Commands that are followed and talked to while they run.

use crate::scratch::{Scratch, eventually};
use microsandbox::{Ending, Exec, ExecEvent, Kind, Sandbox, Stdin};
use std::time::Duration;

const SIGTERM: i32 = 15;

/// The next bytes of stdout.
async fn heard(exec: &mut Exec) -> String {
    loop {
        match exec.next().await.expect("the worker lives") {
            Some(ExecEvent::Stdout(bytes)) => return String::from_utf8_lossy(&bytes).into_owned(),
            // A shell may remark on a signal.
            Some(ExecEvent::Started { .. } | ExecEvent::Stderr(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn running(sandbox: &Sandbox) -> u32 {
    sandbox.inspect().await.expect("it runs").worker.map_or(0, |worker| worker.execs)
}

#[tokio::test]
async fn events_come_in_order_and_end() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let mut exec = sandbox
        .exec_stream("sh", ["-c", "echo out; sleep 0.2; echo err >&2; exit 5"])
        .await
        .unwrap();
    let started = ExecEvent::Started { id: exec.id(), pid: exec.pid() };
    let mut events = Vec::new();
    while let Some(event) = exec.next().await.unwrap() {
        events.push(event);
    }
    let [first, out, err, ExecEvent::Exited(exit)] = events.as_slice() else {
        panic!("{events:?}");
    };
    assert_eq!(first, &started);
    assert_eq!(out, &ExecEvent::Stdout(b"out\n".to_vec()));
    assert_eq!(err, &ExecEvent::Stderr(b"err\n".to_vec()));
    assert_eq!(exit.code, Some(5));
    assert_eq!(exec.next().await.unwrap(), None);
    assert_eq!(exec.wait().await.unwrap_err().kind(), Kind::State);
}

#[tokio::test]
async fn output_comes_while_the_command_runs_and_stdin_is_answered() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let mut exec = sandbox.exec_stream("cat", [""; 0]).await.unwrap();
    for word in ["one", "two"] {
        exec.write_stdin(word).await.unwrap();
        assert_eq!(heard(&mut exec).await, word);
    }
    exec.write_stdin("").await.unwrap();
    exec.write_stdin("three").await.unwrap();
    assert_eq!(heard(&mut exec).await, "three");
    exec.close_stdin().await.unwrap();
    assert!(exec.wait().await.unwrap().success());
    assert_eq!(exec.write_stdin("four").await.unwrap_err().kind(), Kind::State);
}

#[tokio::test]
async fn much_is_written_from_one_task_while_another_takes_the_events() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let mut exec = sandbox.exec_stream("wc", ["-c"]).await.unwrap();
    let input = exec.input();
    let writing = tokio::spawn(async move {
        for _ in 0..20 {
            input.write(vec![b'x'; 1 << 20]).await?;
        }
        input.close().await
    });
    assert_eq!(heard(&mut exec).await.trim(), (20 << 20).to_string());
    writing.await.unwrap().unwrap();
    assert!(exec.wait().await.unwrap().success());
}

#[tokio::test]
async fn a_write_that_was_given_up_does_not_garble_the_next() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let mut exec = sandbox.exec_stream("sh", ["-c", "sleep 1; wc -c"]).await.unwrap();
    // The command does not read yet, so this cannot end; a part of it is on its way.
    let large = vec![b'x'; 4 << 20];
    let given_up = tokio::time::timeout(Duration::from_millis(200), exec.write_stdin(&large)).await;
    assert!(given_up.is_err());
    exec.close_stdin().await.unwrap();
    let counted: usize = heard(&mut exec).await.trim().parse().unwrap();
    assert!(counted > 0 && counted < large.len() && counted.is_multiple_of(64 << 10), "{counted}");
    assert!(exec.wait().await.unwrap().success());
}

#[tokio::test]
async fn bytes_for_a_streamed_command_are_fed_while_events_are_taken() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let bytes = vec![b'x'; 2 << 20];
    let mut exec = sandbox.exec_stream_with("wc", |c| c.arg("-c").stdin(bytes)).await.unwrap();
    assert_eq!(exec.write_stdin("more").await.unwrap_err().kind(), Kind::State);
    assert_eq!(heard(&mut exec).await.trim(), (2 << 20).to_string());
    let mut closed = sandbox.exec_stream_with("cat", |c| c.stdin(Stdin::Closed)).await.unwrap();
    assert!(closed.wait().await.unwrap().success());
}

#[tokio::test]
async fn a_signal_reaches_the_command() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let script = "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let mut exec = sandbox.exec_stream("sh", ["-c", script]).await.unwrap();
    assert_eq!(heard(&mut exec).await, "ready\n");
    assert_eq!(exec.signal(65).await.unwrap_err().kind(), Kind::Invalid);
    exec.signal(SIGTERM).await.unwrap();
    assert_eq!(heard(&mut exec).await, "caught\n");
    assert_eq!(exec.wait().await.unwrap().code, Some(3));

    let mut exec = sandbox.exec_stream("sleep", ["60"]).await.unwrap();
    exec.kill().await.unwrap();
    assert_eq!(exec.wait().await.unwrap().signal, Some(9));
}

#[tokio::test]
async fn a_terminal_is_resized() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let mut exec = sandbox
        .exec_stream_with("sh", |command| {
            command.args(["-c", "stty -echo; stty size; read line; stty size"]).tty(10, 20)
        })
        .await
        .unwrap();
    assert_eq!(heard(&mut exec).await, "10 20\r\n");
    exec.resize(30, 40).await.unwrap();
    exec.write_stdin("\n").await.unwrap();
    assert_eq!(heard(&mut exec).await, "30 40\r\n");
    assert!(exec.wait().await.unwrap().success());
}

#[tokio::test]
async fn dropping_an_exec_kills_its_command_even_if_an_input_lives() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let exec = sandbox.exec_stream("sleep", ["60"]).await.unwrap();
    let input = exec.input();
    assert_eq!(running(&sandbox).await, 1);
    drop(exec);
    eventually("no Exec runs", async || running(&sandbox).await == 0).await;
    assert_eq!(input.write("x").await.unwrap_err().kind(), Kind::State);
    let entries = sandbox.execs().await.unwrap();
    assert_eq!(entries.last().unwrap().exit.unwrap().ending, Ending::Stopped);
}

#[tokio::test]
async fn dropping_an_exec_that_does_not_read_kills_it() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let exec = sandbox.exec_stream("sleep", ["60"]).await.unwrap();
    let write = exec.write_stdin(vec![b'x'; 1 << 20]);
    assert!(tokio::time::timeout(Duration::from_millis(200), write).await.is_err());
    drop(exec);
    eventually("no Exec runs", async || running(&sandbox).await == 0).await;
}

#[tokio::test]
async fn giving_up_a_captured_command_kills_it() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let given_up =
        tokio::time::timeout(Duration::from_millis(300), sandbox.exec("sleep", ["60"])).await;
    assert!(given_up.is_err());
    eventually("no Exec runs", async || running(&sandbox).await == 0).await;
}

#[tokio::test]
async fn a_detached_exec_goes_on_and_can_be_joined_again() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let mut exec =
        sandbox.exec_stream("sh", ["-c", "echo first; read x; echo got $x"]).await.unwrap();
    assert_eq!(heard(&mut exec).await, "first\n");
    let id = exec.detach().await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(running(&sandbox).await, 1);

    let mut exec = sandbox.attach(id).await.unwrap();
    assert_eq!(exec.id(), id);
    assert_eq!(heard(&mut exec).await, "first\n");
    exec.write_stdin("it\n").await.unwrap();
    assert_eq!(heard(&mut exec).await, "got it\n");
    assert!(exec.wait().await.unwrap().success());
    assert_eq!(sandbox.attach(id).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(sandbox.signal_exec(id, SIGTERM).await.unwrap_err().kind(), Kind::NotFound);
}

#[tokio::test]
async fn a_slow_taker_makes_the_command_wait_and_loses_nothing() {
    let scratch = Scratch::new();
    let sandbox = scratch.create().await;
    let mut exec = sandbox.exec_stream("seq", ["1", "2000000"]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut all = Vec::new();
    while let Some(event) = exec.next().await.unwrap() {
        if let ExecEvent::Stdout(bytes) = event {
            all.extend(bytes);
        }
    }
    assert!(all.ends_with(b"\n2000000\n"));
    assert_eq!(all.iter().filter(|byte| **byte == b'\n').count(), 2_000_000);
}
