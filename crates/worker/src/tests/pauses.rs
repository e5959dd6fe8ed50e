//! Pauses in the worker's loop: by clients, by the idle timer and for copies.

use super::rig::{CommandState, Rig, command, plan};
use msb_spec::{Kind, Plan, Span};
use msb_wire::{Reply, Request, WorkerStatus};
use std::time::Duration;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn status(rig: &mut Rig) -> WorkerStatus {
    let client = rig.request(&Request::Status);
    rig.settle();
    match rig.clients[client].reply() {
        Some(Reply::Status(status)) => status.clone(),
        other => panic!("no status: {other:?}"),
    }
}

/// A request that the guest answers.
fn paused_by(rig: &mut Rig, request: &Request) -> usize {
    let client = rig.request(request);
    rig.settle();
    rig.guest.answer_pause(true);
    rig.settle();
    client
}

#[test]
fn a_pause_is_answered_when_the_guest_has_stopped_everything() {
    let mut rig = Rig::new(plan());
    let client = rig.request(&Request::Pause);
    rig.settle();
    assert_eq!(rig.clients[client].reply(), None);
    assert_eq!(rig.guest.pauses, [true]);
    rig.guest.answer_pause(true);
    rig.settle();
    assert_eq!(rig.clients[client].reply(), Some(&Reply::Done));
    assert!(status(&mut rig).paused);
    let refused = rig.exec(command());
    assert_eq!(rig.clients[refused].refused.as_ref().unwrap().kind(), Kind::State);
    let client = paused_by(&mut rig, &Request::Resume);
    assert_eq!(rig.clients[client].reply(), Some(&Reply::Done));
    assert!(!status(&mut rig).paused);
}

#[test]
fn a_pause_that_fails_is_an_error_and_leaves_the_sandbox_running() {
    let mut rig = Rig::new(plan());
    let client = rig.request(&Request::Pause);
    rig.settle();
    rig.guest.answer_pause(false);
    rig.settle();
    assert_eq!(rig.clients[client].refused.as_ref().unwrap().kind(), Kind::Host);
    assert!(!status(&mut rig).paused);
    rig.exec(command());
    assert_eq!(rig.guest.ids(CommandState::Requested), [1]);
}

#[test]
fn answers_to_pauses_that_were_not_requested_are_ignored() {
    let mut rig = Rig::new(plan());
    rig.guest.send(&msb_wire::FromGuest::Paused { paused: true }, &[]);
    rig.settle();
    assert!(!status(&mut rig).paused);
}

#[test]
fn a_copy_delays_commands_until_its_client_disconnects() {
    let mut rig = Rig::new(plan());
    let holder = paused_by(&mut rig, &Request::Hold);
    assert_eq!(rig.clients[holder].reply(), Some(&Reply::Done));
    let client = rig.exec(command());
    assert!(rig.clients[client].refused.is_none());
    assert_eq!(rig.guest.ids(CommandState::Requested), [0; 0]);
    rig.clients[holder].disconnect();
    rig.settle();
    assert_eq!(rig.guest.pauses, [false]);
    rig.guest.answer_pause(true);
    rig.settle();
    assert_eq!(rig.guest.ids(CommandState::Requested), [1]);
    rig.guest.start(1);
    rig.settle();
    assert_eq!(rig.clients[client].started(), Some(1));
}

#[test]
fn a_delayed_command_whose_client_disconnects_never_starts() {
    let mut rig = Rig::new(plan());
    let holder = paused_by(&mut rig, &Request::Hold);
    let client = rig.exec(command());
    rig.clients[client].disconnect();
    rig.settle();
    rig.clients[holder].disconnect();
    rig.settle();
    rig.guest.answer_pause(true);
    rig.settle();
    assert_eq!(rig.guest.ids(CommandState::Requested), [0; 0]);
}

#[test]
fn two_copies_hold_until_the_second_has_ended() {
    let mut rig = Rig::new(plan());
    let first = paused_by(&mut rig, &Request::Hold);
    let second = rig.request(&Request::Hold);
    rig.settle();
    assert_eq!(rig.clients[second].reply(), Some(&Reply::Done));
    rig.clients[first].disconnect();
    rig.settle();
    assert!(rig.guest.pauses.is_empty() && status(&mut rig).paused);
    rig.clients[second].disconnect();
    rig.settle();
    assert_eq!(rig.guest.pauses, [false]);
}

#[test]
fn a_pause_of_a_client_outlasts_a_copy() {
    let mut rig = Rig::new(plan());
    let holder = paused_by(&mut rig, &Request::Hold);
    let client = rig.request(&Request::Pause);
    rig.settle();
    assert_eq!(rig.clients[client].reply(), Some(&Reply::Done));
    rig.clients[holder].disconnect();
    rig.settle();
    assert!(rig.guest.pauses.is_empty() && status(&mut rig).paused);
}

#[test]
fn an_idle_sandbox_is_paused_and_a_command_wakes_it() {
    let mut rig = Rig::new(Plan { idle_pause: Some(Span(seconds(10))), ..plan() });
    rig.advance_by_timers(seconds(9));
    assert!(rig.guest.pauses.is_empty());
    rig.advance_by_timers(seconds(3));
    assert_eq!(rig.guest.pauses, [true]);
    rig.guest.answer_pause(true);
    rig.settle();
    let now = status(&mut rig);
    assert!(now.paused && now.asleep);
    let client = rig.exec(command());
    assert_eq!(rig.guest.pauses, [false]);
    assert_eq!(rig.guest.ids(CommandState::Requested), [0; 0], "it resumes first");
    rig.guest.answer_pause(true);
    rig.settle();
    rig.guest.start(1);
    rig.settle();
    assert_eq!(rig.clients[client].started(), Some(1));
    assert!(!status(&mut rig).asleep);
}

#[test]
fn a_sandbox_with_a_waiting_client_is_not_idle() {
    let mut rig = Rig::new(Plan { idle_pause: Some(Span(seconds(10))), ..plan() });
    let client = rig.exec(command());
    rig.guest.start(1);
    rig.advance_by_timers(seconds(60));
    assert!(rig.guest.pauses.is_empty());
    rig.guest.exit(1, 0, false);
    rig.settle();
    assert!(rig.clients[client].exit().is_some());
    rig.advance_by_timers(seconds(13));
    assert_eq!(rig.guest.pauses, [true]);
}

#[test]
fn a_command_that_arrives_while_the_idle_timer_pauses_is_started_after_the_resume() {
    let mut rig = Rig::new(Plan { idle_pause: Some(Span(seconds(10))), ..plan() });
    rig.advance_by_timers(seconds(13));
    assert_eq!(rig.guest.pauses, [true]);
    rig.exec(command());
    rig.guest.answer_pause(true);
    rig.settle();
    assert_eq!(rig.guest.pauses, [false]);
    rig.guest.answer_pause(true);
    rig.settle();
    assert_eq!(rig.guest.ids(CommandState::Requested), [1]);
}

#[test]
fn commands_for_a_sandbox_that_does_not_resume_are_refused() {
    let mut rig = Rig::new(Plan { idle_pause: Some(Span(seconds(10))), ..plan() });
    rig.advance_by_timers(seconds(13));
    rig.guest.answer_pause(true);
    rig.settle();
    let client = rig.exec(command());
    rig.guest.answer_pause(false);
    rig.settle();
    assert_eq!(rig.clients[client].refused.as_ref().unwrap().kind(), Kind::Host);
}

#[test]
fn a_stop_thaws_a_paused_sandbox() {
    let mut rig = Rig::new(plan());
    rig.exec(command());
    rig.guest.start(1);
    rig.settle();
    paused_by(&mut rig, &Request::Pause);
    rig.request(&Request::Stop { grace: 5_000 });
    rig.settle();
    assert_eq!(rig.guest.pauses, [false]);
}
