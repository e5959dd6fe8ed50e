//! The life of a sandbox in the worker's loop: its main command, restarts, stops and deadlines.

use super::rig::{CommandState, Rig, command, plan};
use crate::client::HELLO_LIMIT;
use msb_spec::{Ending, Exit, Health, HealthStatus, Kind, Plan, Restart, Span};
use msb_sys::signal;
use msb_wire::{ClientMessage, FromGuest, Reply, Request, StopResult, WorkerEvent, WorkerStatus};
use std::time::Duration;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn with_main(restart: Restart) -> Plan {
    Plan { command: Some(command()), restart, ..plan() }
}

fn exited(code: i32) -> Exit {
    Exit { code: Some(code), signal: None, ending: Ending::Own, reached: None }
}

fn status(rig: &mut Rig) -> WorkerStatus {
    let client = rig.request(&Request::Status);
    rig.settle();
    match rig.clients[client].reply() {
        Some(Reply::Status(status)) => status.clone(),
        other => panic!("no status: {other:?}"),
    }
}

#[test]
fn a_sandbox_ends_with_its_main_command() {
    let mut rig = Rig::new(with_main(Restart::No));
    let waiting = rig.request(&Request::Wait);
    rig.guest.start(1);
    rig.settle();
    rig.guest.write(1, b"done");
    rig.guest.exit(1, 7, false);
    rig.settle();
    assert!(rig.is_over());
    let ended = rig.end();
    let outcome = StopResult { ending: Ending::Own, exit: Some(exited(7)) };
    assert_eq!(ended.outcome, outcome);
    let expected = [
        WorkerEvent::Ready,
        WorkerEvent::Started { id: 1, pid: 101 },
        WorkerEvent::Stdout(b"done".to_vec()),
        WorkerEvent::Exited(exited(7)),
    ];
    assert_eq!(ended.clients[0].events, expected);
    assert_eq!(ended.clients[waiting].reply(), Some(&Reply::Stopped(outcome)));
    assert_eq!(ended.ended, [(1, exited(7))]);
}

#[test]
fn a_main_command_that_cannot_be_started_ends_the_sandbox() {
    let mut rig = Rig::new(with_main(Restart::No));
    rig.guest.fail(1);
    rig.settle();
    assert!(rig.is_over());
    let ended = rig.end();
    assert_eq!(ended.clients[0].refused.as_ref().unwrap().kind(), Kind::CommandNotFound);
    assert_eq!(ended.outcome, StopResult { ending: Ending::Own, exit: None });
}

#[test]
fn a_failed_main_command_is_restarted_until_the_policy_gives_up() {
    let mut rig = Rig::new(with_main(Restart::OnFailure(Some(2))));
    for id in 1..=3 {
        rig.guest.start(id);
        rig.settle();
        rig.guest.exit(id, 1, false);
        rig.settle();
        assert_eq!(rig.is_over(), id == 3, "run {id}");
        if id < 3 {
            assert_eq!(rig.guest.ids(CommandState::Requested), [0; 0], "a delay comes first");
            rig.advance_by_timers(seconds(1));
            assert_eq!(rig.guest.ids(CommandState::Requested), [id + 1]);
        }
    }
    let ended = rig.end();
    // The first client is told of the first end; later runs have none.
    assert_eq!(ended.clients[0].exit(), Some(exited(1)));
    assert_eq!(ended.ended, [(1, exited(1)), (2, exited(1)), (3, exited(1))]);
}

#[test]
fn a_stop_cancels_a_pending_restart() {
    let mut rig = Rig::new(with_main(Restart::Always(None)));
    rig.guest.start(1);
    rig.settle();
    rig.guest.exit(1, 0, false);
    rig.settle();
    assert!(!rig.is_over());
    let stopper = rig.request(&Request::Stop { grace: 10_000 });
    rig.settle();
    assert!(rig.is_over(), "nothing runs that could need the grace period");
    let ended = rig.end();
    assert_eq!(ended.outcome.ending, Ending::Stopped);
    assert_eq!(ended.clients[stopper].reply(), Some(&Reply::Stopped(ended.outcome)));
}

#[test]
fn a_stop_signals_first_and_kills_after_the_grace_period() {
    let mut rig = Rig::new(plan());
    let client = rig.exec(command());
    rig.guest.start(1);
    rig.settle();
    rig.request(&Request::Stop { grace: 5_000 });
    rig.settle();
    assert_eq!(rig.guest.signals_to_all, [signal::SIGTERM]);
    let late = rig.exec(command());
    assert_eq!(rig.clients[late].refused.as_ref().unwrap().kind(), Kind::State);
    rig.advance_by_timers(seconds(4));
    assert!(!rig.is_over());
    rig.advance_by_timers(seconds(1));
    assert!(rig.is_over());
    let exit = rig.end().clients[client].exit().unwrap();
    assert_eq!((exit.signal, exit.ending), (Some(signal::SIGKILL), Ending::Stopped));
}

#[test]
fn a_command_that_ends_in_the_grace_period_keeps_its_exit_code() {
    let mut rig = Rig::new(plan());
    let client = rig.exec(command());
    rig.guest.start(1);
    rig.settle();
    rig.request(&Request::Stop { grace: 5_000 });
    rig.settle();
    rig.guest.exit(1, 143, false);
    rig.settle();
    assert!(rig.is_over(), "the last command has ended");
    let exit = rig.end().clients[client].exit().unwrap();
    assert_eq!((exit.code, exit.ending), (Some(143), Ending::Stopped));
}

#[test]
fn a_sandbox_ends_when_its_owner_disconnects() {
    let mut rig = Rig::new(plan());
    rig.clients[0].disconnect();
    rig.settle();
    assert!(rig.is_over());
    assert_eq!(rig.end().outcome.ending, Ending::Stopped);
}

#[test]
fn a_detached_owner_leaves_the_sandbox_running() {
    let mut rig = Rig::new(plan());
    rig.clients[0].send(&ClientMessage::Detach);
    rig.settle();
    assert!(rig.clients[0].closed && !rig.is_over());
}

#[test]
fn a_draining_sandbox_takes_no_commands_and_ends_with_the_last() {
    let mut rig = Rig::new(plan());
    let client = rig.exec(command());
    rig.guest.start(1);
    rig.settle();
    rig.request(&Request::Drain);
    rig.settle();
    assert!(status(&mut rig).draining && !rig.is_over());
    let refused = rig.exec(command());
    assert_eq!(rig.clients[refused].refused.as_ref().unwrap().kind(), Kind::State);
    rig.guest.exit(1, 0, false);
    rig.settle();
    assert_eq!(rig.clients[client].exit(), Some(exited(0)));
    assert!(rig.is_over());
    assert_eq!(rig.end().outcome.ending, Ending::Drained);
}

#[test]
fn the_maximum_duration_ends_a_busy_sandbox_and_can_be_renewed() {
    let mut rig = Rig::new(Plan { max_duration: Some(Span(seconds(60))), ..plan() });
    rig.exec(command());
    rig.guest.start(1);
    rig.settle();
    rig.advance_by_timers(seconds(50));
    rig.request(&Request::Renew { left: Some(30_000) });
    rig.advance_by_timers(seconds(29));
    assert!(!rig.is_over());
    rig.advance_by_timers(seconds(1));
    assert!(rig.is_over());
    assert_eq!(rig.end().outcome.ending, Ending::MaxDuration);
}

#[test]
fn the_idle_timeout_counts_from_the_end_of_the_last_command() {
    let mut rig = Rig::new(Plan { idle_timeout: Some(Span(seconds(10))), ..plan() });
    rig.advance_by_timers(seconds(9));
    rig.exec(command());
    rig.guest.start(1);
    rig.advance_by_timers(seconds(30));
    assert!(!rig.is_over(), "a command runs");
    rig.guest.exit(1, 0, false);
    rig.settle();
    rig.advance_by_timers(seconds(9));
    assert!(!rig.is_over());
    rig.advance_by_timers(seconds(1));
    assert!(rig.is_over());
    assert_eq!(rig.end().outcome.ending, Ending::Idle);
}

#[test]
fn a_silent_connection_is_closed_and_an_unknown_request_is_refused() {
    let mut rig = Rig::new(plan());
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let id = rig.worker.add_client(theirs.into());
    rig.advance_by_timers(HELLO_LIMIT - Duration::from_millis(1));
    assert!(rig.worker.clients.contains(id));
    rig.advance_by_timers(Duration::from_millis(1));
    assert!(!rig.worker.clients.contains(id));
    drop(ours);
    let client = rig.request(&Request::Status);
    rig.clients[client].send_raw(&[0, 0, 0, 0, 2]);
    let bad = rig.request(&Request::Wait);
    rig.clients[bad].send_raw(&[0xff; 5]);
    rig.settle();
    assert!(rig.clients[client].reply().is_some());
    assert_eq!(rig.clients[bad].refused.as_ref().unwrap().kind(), Kind::Protocol);
}

#[test]
fn health_checks_run_at_intervals_and_are_hidden() {
    let interval = Span(seconds(5));
    let health = Health { interval, retries: 2, ..Health::new("true") };
    let mut rig = Rig::new(Plan { health: Some(health), ..plan() });
    assert_eq!(status(&mut rig).health, Some(HealthStatus::Starting));
    for (code, expected) in [
        (0, HealthStatus::Healthy),
        (1, HealthStatus::Healthy),
        (1, HealthStatus::Unhealthy),
        (0, HealthStatus::Healthy),
    ] {
        rig.advance_by_timers(seconds(5));
        let check = rig.guest.ids(CommandState::Requested)[0];
        rig.guest.start(check);
        rig.settle();
        let list = rig.request(&Request::List);
        rig.settle();
        assert_eq!(rig.clients[list].reply(), Some(&Reply::Execs(Vec::new())));
        rig.guest.exit(check, code, false);
        rig.settle();
        assert_eq!(status(&mut rig).health, Some(expected));
    }
    let ended = rig.stop();
    assert!(ended.started.is_empty() && ended.exec_events.is_empty());
}

#[test]
fn an_unhealthy_main_command_is_killed_and_restarted() {
    let health = Health { interval: Span(seconds(5)), retries: 1, ..Health::new("false") };
    let mut rig = Rig::new(Plan { health: Some(health), ..with_main(Restart::Always(None)) });
    rig.guest.start(1);
    rig.advance_by_timers(seconds(5));
    let check = rig.guest.ids(CommandState::Requested)[0];
    rig.guest.start(check);
    rig.settle();
    rig.guest.exit(check, 1, false);
    rig.settle();
    assert!(rig.guest.signals.iter().any(|(id, _)| *id == 1), "{:?}", rig.guest.signals);
    let (code, signal, alone, hit) = (None, Some(signal::SIGTERM), true, None);
    rig.guest.send(&FromGuest::Exited { id: 1, code, signal, alone, hit }, &[]);
    rig.settle();
    assert_eq!(rig.clients[0].exit().unwrap().ending, Ending::Unhealthy);
    rig.advance_by_timers(seconds(1));
    assert_eq!(rig.guest.ids(CommandState::Requested), [2]);
}

#[test]
fn usage_is_sampled_every_ten_seconds_while_the_sandbox_runs() {
    let mut rig = Rig::new(plan());
    rig.advance_by_timers(seconds(35));
    let client = rig.request(&Request::History);
    rig.settle();
    let Some(Reply::History(samples)) = rig.clients[client].reply() else { panic!("none") };
    assert_eq!(samples.len(), 3);
}
