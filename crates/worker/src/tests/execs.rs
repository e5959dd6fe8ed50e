//! Execs in the worker's loop: starting, output, signals, timeouts and ends.

use super::rig::{CommandState, Rig, command, plan};
use msb_spec::{Command, Ending, Exit, Kind, Span, Stdin, TermSize};
use msb_sys::signal;
use msb_wire::{ClientMessage, ExecStatus, FromGuest, Reply, Request, WorkerEvent};
use std::time::Duration;

fn exited(code: i32) -> Exit {
    Exit { code: Some(code), signal: None, ending: Ending::Own, reached: None }
}

fn killed(ending: Ending) -> Exit {
    Exit { code: None, signal: Some(signal::SIGKILL), ending, reached: None }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_command_is_started_heard_and_ended_in_order() {
    let mut rig = Rig::new(plan());
    let client = rig.exec(command());
    assert_eq!(rig.guest.ids(CommandState::Requested), [1]);
    rig.guest.start(1);
    rig.settle();
    rig.guest.write(1, b"hello");
    rig.guest.exit(1, 3, false);
    rig.settle();
    let expected = [
        WorkerEvent::Started { id: 1, pid: 101 },
        WorkerEvent::Stdout(b"hello".to_vec()),
        WorkerEvent::Exited(exited(3)),
    ];
    assert_eq!(rig.clients[client].events, expected);
    let ended = rig.stop();
    assert_eq!((ended.started, ended.ended), (vec![1], vec![(1, exited(3))]));
    assert_eq!(ended.exec_events, [(1, false), (1, true)]);
}

#[test]
fn a_command_that_cannot_be_started_is_refused_with_the_reason() {
    let mut rig = Rig::new(plan());
    let client = rig.exec(command());
    rig.guest.fail(1);
    rig.settle();
    let refused = rig.clients[client].refused.as_ref().unwrap();
    assert_eq!(refused.kind(), Kind::CommandNotFound);
    assert_eq!(refused.message(), "command not found: `/bin/true`");
    let ended = rig.stop();
    assert!(ended.started.is_empty() && ended.ended.is_empty());
}

#[test]
fn reports_about_unknown_commands_are_ignored() {
    let mut rig = Rig::new(plan());
    let client = rig.exec(command());
    let (code, alone, hit) = (Some(0), false, None);
    // Not started yet, so it cannot have ended; the others do not exist.
    rig.guest.send(&FromGuest::Exited { id: 1, code, signal: None, alone, hit }, &[]);
    rig.guest.send(&FromGuest::Exited { id: 9, code, signal: None, alone, hit }, &[]);
    rig.guest.start(1);
    rig.guest.send(&FromGuest::Started { id: 1, pid: 7 }, &[]);
    rig.guest.send(&FromGuest::Started { id: 9, pid: 7 }, &[]);
    rig.settle();
    assert_eq!(rig.clients[client].events, [WorkerEvent::Started { id: 1, pid: 101 }]);
    // A command without a client is killed.
    assert_eq!(rig.guest.signals, [(9, signal::SIGKILL)]);
    rig.guest.exit(1, 0, false);
    rig.guest.send(&FromGuest::Exited { id: 1, code: Some(9), signal: None, alone, hit }, &[]);
    rig.settle();
    assert_eq!(rig.clients[client].exit(), Some(exited(0)));
}

#[test]
fn a_running_command_cannot_fail_to_start() {
    let mut rig = Rig::new(plan());
    let client = rig.exec(command());
    rig.guest.start(1);
    rig.settle();
    let failure = msb_wire::SpawnFailure::User;
    rig.guest.send(&FromGuest::Failed { id: 1, failure, errno: 0 }, &[]);
    rig.settle();
    assert!(rig.clients[client].refused.is_none());
    let ended = rig.stop();
    assert_eq!((ended.started, ended.ended), (vec![1], vec![(1, killed(Ending::Stopped))]));
}

#[test]
fn a_command_ends_when_its_client_disconnects() {
    let mut rig = Rig::new(plan());
    let client = rig.exec(command());
    rig.guest.start(1);
    rig.settle();
    rig.clients[client].disconnect();
    rig.settle();
    assert_eq!(rig.guest.signals, [(1, signal::SIGKILL)]);
    let code = None;
    let (signal, alone, hit) = (Some(signal::SIGKILL), true, None);
    rig.guest.send(&FromGuest::Exited { id: 1, code, signal, alone, hit }, &[]);
    rig.settle();
    assert_eq!(rig.stop().ended, [(1, killed(Ending::Stopped))]);
}

#[test]
fn a_detached_command_outlives_its_client_and_others_attach_to_it() {
    let mut rig = Rig::new(plan());
    let first = rig.exec(command());
    rig.guest.start(1);
    rig.settle();
    rig.guest.write(1, b"early");
    rig.settle();
    rig.clients[first].send(&ClientMessage::Detach);
    rig.settle();
    rig.clients[first].disconnect();
    rig.settle();
    assert!(rig.guest.signals.is_empty());
    let second = rig.request(&Request::Attach { id: 1 });
    let unknown = rig.request(&Request::Attach { id: 2 });
    rig.settle();
    rig.guest.write(1, b" late");
    rig.settle();
    assert_eq!(rig.clients[second].output(), b"early late");
    assert_eq!(rig.clients[unknown].refused.as_ref().unwrap().kind(), Kind::NotFound);
    rig.guest.exit(1, 0, false);
    rig.settle();
    assert_eq!(rig.clients[second].exit(), Some(exited(0)));
}

#[test]
fn every_attached_client_gets_the_same_output_and_exit() {
    let mut rig = Rig::new(plan());
    let mut clients = vec![rig.exec(command())];
    rig.guest.start(1);
    rig.settle();
    clients.extend((0..3).map(|_| rig.request(&Request::Attach { id: 1 })));
    rig.settle();
    rig.guest.write(1, b"for all");
    rig.guest.exit(1, 1, false);
    rig.settle();
    for client in clients {
        assert_eq!(rig.clients[client].output(), b"for all");
        assert_eq!(rig.clients[client].exit(), Some(exited(1)));
    }
}

#[test]
fn input_reaches_the_command_and_its_end_closes_stdin() {
    let mut rig = Rig::new(plan());
    let client = rig.exec(Command { stdin: Stdin::Streamed, ..command() });
    rig.guest.start(1);
    rig.clients[client].send(&ClientMessage::Stdin(b"line\n"));
    rig.settle();
    assert_eq!(rig.guest.read_stdin(1), Some(b"line\n".to_vec()));
    assert_eq!(rig.guest.read_stdin(1), Some(Vec::new()));
    rig.clients[client].send(&ClientMessage::Stdin(b""));
    rig.settle();
    assert_eq!(rig.guest.read_stdin(1), None);
}

#[test]
fn a_client_is_not_read_while_its_command_does_not_read() {
    let mut rig = Rig::new(plan());
    let client = rig.exec(Command { stdin: Stdin::Streamed, ..command() });
    rig.guest.start(1);
    rig.settle();
    // The pipe takes 64 KiB and the queue as much; what is beyond stays in the client's socket.
    let mut frames = 0;
    while rig.worker.execs.get(1).unwrap().accepts_stdin() {
        rig.clients[client].send(&ClientMessage::Stdin(&[7; 8192]));
        rig.settle();
        frames += 1;
        assert!(frames < 100, "the queue has a limit");
    }
    assert!(frames >= 16, "{frames}");
    let mut read = 0;
    while let Some(bytes) = rig.guest.read_stdin(1).filter(|bytes| !bytes.is_empty()) {
        read += bytes.len();
        rig.settle();
    }
    assert_eq!(read, frames * 8192);
}

#[test]
fn a_terminal_is_used_or_its_absence_fails_the_command() {
    let mut rig = Rig::new(plan());
    let tty = Command { tty: Some(TermSize { rows: 24, cols: 80 }), ..command() };
    let (client, other) = (rig.exec(tty.clone()), rig.exec(tty));
    rig.guest.start(1);
    rig.settle();
    rig.guest.write(1, b"prompt");
    // No descriptor comes with it.
    rig.guest.send(&FromGuest::Started { id: 2, pid: 7 }, &[]);
    rig.settle();
    assert_eq!(rig.clients[client].output(), b"prompt");
    assert_eq!(rig.clients[other].refused.as_ref().unwrap().kind(), Kind::Limit);
    assert_eq!(rig.guest.signals, [(2, signal::SIGKILL)]);
}

#[test]
fn a_timeout_kills_the_command_and_is_its_reason() {
    let mut rig = Rig::new(plan());
    let client = rig.exec(Command { timeout: Some(Span(seconds(5))), ..command() });
    rig.guest.start(1);
    rig.advance(seconds(4));
    assert!(rig.guest.signals.is_empty());
    rig.advance(seconds(1));
    assert_eq!(rig.guest.signals, [(1, signal::SIGKILL)]);
    let (code, signal, alone, hit) = (None, Some(signal::SIGKILL), true, None);
    rig.guest.send(&FromGuest::Exited { id: 1, code, signal, alone, hit }, &[]);
    rig.settle();
    assert_eq!(rig.clients[client].exit(), Some(killed(Ending::Timeout)));
}

#[test]
fn output_of_a_background_process_is_waited_for_briefly() {
    let mut rig = Rig::new(plan());
    let client = rig.exec(command());
    rig.guest.start(1);
    rig.settle();
    rig.guest.exit(1, 0, true);
    rig.settle();
    assert_eq!(rig.clients[client].exit(), None, "its output may go on");
    rig.guest.write(1, b"from the background");
    rig.settle();
    rig.advance_by_timers(seconds(30));
    assert_eq!(rig.clients[client].output(), b"from the background");
    assert_eq!(rig.clients[client].exit(), Some(exited(0)));
}

#[test]
fn output_that_is_closed_ends_the_command_at_once() {
    let mut rig = Rig::new(plan());
    let client = rig.exec(command());
    rig.guest.start(1);
    rig.settle();
    rig.guest.exit(1, 0, true);
    rig.settle();
    rig.guest.close_streams(1);
    rig.settle();
    assert_eq!(rig.clients[client].exit(), Some(exited(0)));
}

#[test]
fn a_guest_that_does_not_start_a_command_is_killed_after_a_minute() {
    let mut rig = Rig::new(plan());
    let client = rig.exec(command());
    rig.advance_by_timers(seconds(59));
    assert!(rig.clients[client].refused.is_none() && !rig.is_over());
    rig.advance_by_timers(seconds(2));
    let refused = rig.clients[client].refused.as_ref().unwrap();
    assert_eq!(refused.kind(), Kind::Timeout);
    assert!(rig.is_over());
    assert_eq!(rig.end().outcome.ending, Ending::Crashed);
}

#[test]
fn kill_reaches_running_commands_only_and_checks_the_signal() {
    let mut rig = Rig::new(plan());
    rig.exec(command());
    rig.guest.start(1);
    rig.settle();
    let kill = |id, signal| Request::Kill { id, signal };
    let sent = rig.request(&kill(1, 15));
    let unknown = rig.request(&kill(2, 15));
    let invalid = rig.request(&kill(1, 65));
    rig.settle();
    assert_eq!(rig.clients[sent].reply(), Some(&Reply::Done));
    assert_eq!(rig.clients[unknown].refused.as_ref().unwrap().kind(), Kind::NotFound);
    assert_eq!(rig.clients[invalid].refused.as_ref().unwrap().kind(), Kind::Invalid);
    assert_eq!(rig.guest.signals, [(1, 15)]);
}

#[test]
fn a_list_has_started_commands_only() {
    let mut rig = Rig::new(plan());
    rig.exec(command());
    rig.exec(command());
    rig.guest.start(2);
    rig.settle();
    let client = rig.request(&Request::List);
    rig.settle();
    let Some(Reply::Execs(execs)) = rig.clients[client].reply() else { panic!("no list") };
    let ids: Vec<u64> = execs.iter().map(|ExecStatus { id, .. }| *id).collect();
    assert_eq!(ids, [2]);
}

#[test]
fn a_frame_after_the_last_reply_is_not_answered() {
    let mut rig = Rig::new(plan());
    let client = rig.exec(command());
    rig.guest.start(1);
    rig.settle();
    // Both are ready in the same turn of the loop, the guest first.
    rig.guest.exit(1, 0, false);
    rig.clients[client].send(&ClientMessage::Stdin(b"late"));
    rig.settle();
    assert_eq!(rig.clients[client].exit(), Some(exited(0)));
    assert!(rig.clients[client].refused.is_none() && rig.clients[client].closed);
}

#[test]
fn the_end_of_the_guest_ends_every_command_once() {
    let mut rig = Rig::new(plan());
    let clients = [rig.exec(command()), rig.exec(command()), rig.exec(command())];
    rig.guest.start(1);
    rig.guest.start(2);
    rig.settle();
    rig.guest.exit(2, 5, false);
    rig.settle();
    rig.guest.die();
    rig.settle();
    let ended = rig.end();
    assert_eq!(ended.outcome.ending, Ending::Crashed);
    let exits = clients.map(|client| ended.clients[client].exit());
    let crashed = Some(killed(Ending::Crashed));
    assert_eq!(exits, [crashed, Some(exited(5)), crashed]);
    assert_eq!(ended.ended, [(2, exited(5)), (1, killed(Ending::Crashed))]);
}

#[test]
fn a_malformed_message_of_the_guest_ends_the_sandbox() {
    let mut rig = Rig::new(plan());
    let client = rig.exec(command());
    rig.guest.start(1);
    rig.settle();
    rig.guest.send_raw(&[0xff; 16]);
    rig.settle();
    assert!(rig.is_over());
    let ended = rig.end();
    assert_eq!(ended.clients[client].exit(), Some(killed(Ending::Crashed)));
}
