//! Manipulations of an event log that the check has to find.

use super::*;
use std::path::PathBuf;

/// A log of `count` events as a worker writes it.
fn written(count: u64) -> (Vec<String>, Head) {
    let (mut head, mut lines) = (Head::first(), Vec::new());
    for number in 1..=count {
        head.append(Event::new(number, 7 * number, EventKind::Created), false, &mut lines);
    }
    let text = String::from_utf8(lines).unwrap();
    (text.lines().map(str::to_owned).collect(), head)
}

fn checked(lines: &[String], head: Option<&Head>) -> Audit {
    let mut check = ChainCheck::default();
    check.file(lines.iter().map(|line| format!("{line}\n")).collect::<String>().as_bytes());
    check.finish(&Name::parse("box").unwrap(), head, false)
}

fn damage(audit: &Audit) -> Vec<(u64, &str)> {
    audit.damage.iter().map(|it| (it.number, it.what.as_str())).collect()
}

#[test]
fn an_unchanged_log_is_intact() {
    let (lines, head) = written(5);
    let audit = checked(&lines, Some(&head));
    assert_eq!(damage(&audit), []);
    assert_eq!((audit.events, audit.from, audit.to), (5, Some(1), 5));
    assert_eq!(audit.head, Some(head));
    assert_eq!(damage(&checked(&[], None)), []);
}

#[test]
fn every_change_of_a_line_is_reported_with_its_number() {
    let (lines, head) = written(5);
    let done = |change: &dyn Fn(&mut Vec<String>)| {
        let mut lines = lines.clone();
        change(&mut lines);
        let audit = checked(&lines, Some(&head));
        audit.damage.iter().map(|it| (it.number, it.what.clone())).collect::<Vec<_>>()
    };
    let found = |number, what: &str| vec![(number, what.to_owned())];
    let changed = done(&|lines| lines[2] = lines[2].replace("created", "resumed"));
    assert_eq!(changed, found(3, "was changed, or what is before it"));
    assert_eq!(done(&|lines| drop(lines.remove(2))), found(3, "is missing"));
    assert_eq!(done(&|lines| drop(lines.drain(1..3))), found(2, "to 3 are missing"));
    assert_eq!(done(&|lines| drop(lines.pop())), found(5, "is missing"));
    assert_eq!(done(&|lines| lines.truncate(2)), found(3, "to 5 are missing"));
    assert_eq!(done(&Vec::clear), found(1, "to 5 are missing"));
    assert_eq!(done(&|lines| lines.swap(1, 2))[0], (2, "is missing".to_owned()));
    let cut = done(&|lines| lines[4].truncate(30));
    assert_eq!(cut[0], (5, "cannot be read".to_owned()));
    let stripped =
        done(&|lines| lines[3] = r#"{"number":4,"time":28,"event":"created"}"#.to_owned());
    assert_eq!(stripped[0], (4, "has no hash".to_owned()));
    let first = done(&|lines| drop(lines.remove(0)));
    assert_eq!(first[0], (1, "to 1 are missing".to_owned()));
    // An inserted line with a valid hash.
    let mut more = head.clone();
    let mut added = Vec::new();
    more.append(Event::new(3, 0, EventKind::Paused { idle: false }), false, &mut added);
    let added = String::from_utf8(added).unwrap().trim_end().to_owned();
    let inserted = done(&|lines| lines.insert(3, added.clone()));
    assert_eq!(inserted[0], (3, "is out of order".to_owned()));
}

#[test]
fn a_rewritten_log_without_its_head_is_detected() {
    let (_, head) = written(5);
    let (mut other, mut lines) = (Head::first(), Vec::new());
    for number in 1..=5 {
        other.append(Event::new(number, 8 * number, EventKind::Created), false, &mut lines);
    }
    let text = String::from_utf8(lines).unwrap();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let audit = checked(&lines, Some(&head));
    assert_eq!(damage(&audit), [(5, "is not the one that was written")]);
    let without = checked(&lines, None);
    assert_eq!(without.damage.len(), 1, "{without:?}");
}

#[test]
fn lines_after_the_head_come_from_a_killed_worker() {
    let (lines, _) = written(5);
    let (_, behind) = written(3);
    assert_eq!(damage(&checked(&lines, Some(&behind))), []);
}

#[test]
fn an_unchained_log_continues_with_a_chain() {
    let unchained_line: Vec<String> = (1..=2)
        .map(|number| format!("{{\"number\":{number},\"time\":1,\"event\":\"created\"}}"))
        .collect();
    let audit = checked(&unchained_line, None);
    assert_eq!((damage(&audit), audit.unchained, &audit.head), (vec![], 2, &None));
    let (mut head, mut more) = (Head { number: 2, chain: None }, Vec::new());
    head.append(Event::new(3, 1, EventKind::Paused { idle: false }), false, &mut more);
    head.append(Event::new(4, 1, EventKind::Resumed { by: None }), false, &mut more);
    let text = String::from_utf8(more).unwrap();
    let lines: Vec<String> =
        unchained_line.into_iter().chain(text.lines().map(str::to_owned)).collect();
    let audit = checked(&lines, Some(&head));
    assert_eq!((damage(&audit), audit.unchained, audit.to), (vec![], 2, 4));
    let removed = [&lines[..2], &lines[3..]].concat();
    assert_eq!(damage(&checked(&removed, Some(&head)))[0], (3, "is missing"));
}

#[test]
fn a_rotated_log_can_be_checked_alone() {
    let (mut head, mut first, mut second) = (Head::first(), Vec::new(), Vec::new());
    for number in 1..=8 {
        let begins = number == 3 || number == 6;
        let lines = if number < 6 { &mut first } else { &mut second };
        if number == 3 {
            // As if the first file had gone.
            lines.clear();
        }
        head.append(Event::new(number, 1, EventKind::Created), begins, lines);
    }
    let name = Name::parse("box").unwrap();
    let check = |first: &[u8], second: &[u8]| {
        let mut check = ChainCheck::default();
        check.file(first);
        check.file(second);
        check.finish(&name, Some(&head), true)
    };
    let audit = check(&first, &second);
    assert_eq!((damage(&audit), audit.from, audit.to), (vec![], Some(3), 8));
    let end = first.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    assert_eq!(damage(&check(&first[end..], &second))[0].0, 4);
    let end = second.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    assert_eq!(damage(&check(&first, &second[end..]))[0], (6, "is missing"));
}

#[test]
fn numbers_continue_from_the_head_file() {
    let directory = std::env::temp_dir().join(format!("msb-audit-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let log: PathBuf = directory.join(state::EVENTS);
    begin(&directory, EventKind::Created);
    append(&directory, [EventKind::Paused { idle: false }]);
    append(&directory, [EventKind::Resumed { by: None }]);
    let text = fs::read_to_string(&log).unwrap();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let (head, worker) = head_file(&directory).unwrap();
    assert_eq!((head.number, worker), (3, None));
    assert_eq!(damage(&checked(&lines, Some(&head))), []);
    // The last line is removed, then an event is appended.
    fs::write(&log, format!("{}\n{}\n", lines[0], lines[1])).unwrap();
    append(&directory, [EventKind::Repaired]);
    let text = fs::read_to_string(&log).unwrap();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let (head, _) = head_file(&directory).unwrap();
    assert_eq!(damage(&checked(&lines, Some(&head))), [(3, "is missing")]);
    fs::remove_dir_all(directory).unwrap();
}
