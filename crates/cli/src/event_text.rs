//! Events as people read them.

use crate::clock;
use msb_spec::{Exit, Kind};
use msb_wire::record::{CommandRecord, Event, EventKind, WakeReason};

/// So many letters of a command are shown; all that is kept of it is in the JSON.
const SHOWN: usize = 100;

/// What happened, without when.
pub(crate) fn what(event: &Event) -> String {
    match &event.happened {
        EventKind::Started { worker } => format!("started, worker {worker}"),
        EventKind::Created => "made as asked".to_owned(),
        EventKind::Draining => "takes no new commands".to_owned(),
        EventKind::Paused { idle: false } => "paused".to_owned(),
        EventKind::Paused { idle: true } => "paused, because nothing happened".to_owned(),
        EventKind::Resumed { by: None | Some(WakeReason::Asked) } => "resumed".to_owned(),
        EventKind::Resumed { by: Some(WakeReason::Exec) } => "resumed for a command".to_owned(),
        EventKind::Resumed { by: Some(WakeReason::Files) } => "resumed for its files".to_owned(),
        EventKind::Resumed { by: Some(WakeReason::Traffic) } => "resumed by its network".to_owned(),
        EventKind::Resumed { by: Some(WakeReason::Clock) } => "resumed by a clock".to_owned(),
        EventKind::Restarted { count, exit } => {
            let why = exit.reason().map_or(String::new(), |reason| format!(" ({reason})"));
            format!("begun again, time {count}, after {}{why}", exit.status())
        }
        EventKind::Health { status, output } => match output.lines().last() {
            Some(line) => format!("{}: {}", status.as_str(), msb_spec::shown(line)),
            None => status.as_str().to_owned(),
        },
        EventKind::Modified { what } => format!("changed: {}", what.join(", ")),
        EventKind::Renamed { from } => format!("renamed, before `{from}`"),
        EventKind::Renewed { ends: Some(ends) } => format!("to end at {}", clock::written(*ends)),
        EventKind::Renewed { ends: None } => "not to end by itself".to_owned(),
        EventKind::Disconnected => "its gateway ended: there is no way out any more".to_owned(),
        EventKind::Stopped { ending, .. } => {
            format!("stopped: {}", ending.reason().unwrap_or("by itself"))
        }
        EventKind::Repaired => "cleaned up behind its worker".to_owned(),
        EventKind::ExecStarted { exec, ran, tty } => {
            let terminal = if *tty { " (terminal)" } else { "" };
            format!("exec {exec} began{terminal}: {}", command(ran))
        }
        EventKind::ExecFailed { ran, reason } => {
            format!("exec did not begin ({}): {}", word(*reason), command(ran))
        }
        EventKind::ExecEnded { exec, exit, duration_ms } => {
            format!("exec {exec} ended: {} after {}", end(exit), clock::duration(*duration_ms))
        }
        EventKind::CodeStarted { exec, ran } => {
            format!("code in exec {exec} began: {}", command(ran))
        }
        EventKind::CodeEnded { exec, status, duration_ms } => {
            let how = status.map_or_else(|| "interrupted".to_owned(), |status| status.to_string());
            format!("code in exec {exec} ended: {how} after {}", clock::duration(*duration_ms))
        }
    }
}

/// A kind of failure, as it is written in JSON.
fn word(kind: Kind) -> String {
    let text = serde_json::to_value(kind).ok();
    let text = text.as_ref().and_then(|text| text.as_str()).unwrap_or_default();
    text.replace('_', " ")
}

/// The origin of a command (client, key, namespace) and its argv.
fn command(ran: &CommandRecord) -> String {
    let by = ran.by.as_ref().map_or_else(|| "unknown".to_owned(), ToString::to_string);
    let user = ran.user.as_ref().map(|user| format!(" as {user}")).unwrap_or_default();
    let words: Vec<String> = ran.argv.iter().map(|word| quoted(word)).collect();
    let words = msb_spec::shown(&words.join(" "));
    let cut = ran.cut.is_some() || words.chars().count() > SHOWN;
    let words: String = words.chars().take(SHOWN).collect();
    format!("{by}{user}, {words}{}", if cut { "…" } else { "" })
}

/// A word as a shell would take it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=,+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

fn end(exit: &Exit) -> String {
    let how = match (exit.code, exit.signal) {
        (Some(code), _) => code.to_string(),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".to_owned(),
    };
    exit.reason().map_or(how.clone(), |reason| format!("{how} ({reason})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::{CallOrigin, Ending};

    #[test]
    fn commands_are_told_with_who_asked_and_how_they_ended() {
        let argv = ["python3", "-c", "print(1)\x1b[2J"].map(str::to_owned);
        let ran = |argv: &[String]| CommandRecord::new(argv, None, Some(CallOrigin::cli()));
        let told = |happened| what(&Event::new(1, 0, happened));
        assert_eq!(
            told(EventKind::ExecStarted { exec: 3, ran: ran(&argv), tty: false }),
            "exec 3 began: cli, python3 -c 'print(1)\\u{1b}[2J'"
        );
        let long = vec!["x".repeat(300)];
        let failed = EventKind::ExecFailed { ran: ran(&long), reason: Kind::CommandNotFound };
        let text = format!("exec did not begin (command not found): cli, {}…", "x".repeat(100));
        assert_eq!(told(failed), text);
        let exit = Exit { code: Some(0), signal: None, ending: Ending::Own, reached: None };
        let ended = |exit, duration_ms| told(EventKind::ExecEnded { exec: 3, exit, duration_ms });
        assert_eq!(ended(exit, 1234), "exec 3 ended: 0 after 1.2s");
        let killed = Exit { code: None, signal: Some(9), ending: Ending::Timeout, ..exit };
        assert_eq!(
            ended(killed, 200_000),
            "exec 3 ended: signal 9 (its timeout passed) after 3m20s"
        );
    }
}
