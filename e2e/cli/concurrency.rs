//! Fifty sandboxes at once.

use msb_e2e::{Msb, Process, ends, eventually};
use std::collections::BTreeSet;
use std::process::{Child, Stdio};

const MANY: usize = 50;

fn all(begin: impl FnMut(usize) -> Child) -> Vec<String> {
    let children: Vec<Child> = (0..MANY).map(begin).collect();
    children.into_iter().map(|child| ends(child).line()).collect()
}

#[test]
fn fifty_sandboxes_are_created_used_and_removed_at_once() {
    for msb in Msb::each() {
        let names: Vec<String> = (0..MANY).map(|number| format!("many-{number}")).collect();
        assert_eq!(all(|i| msb.spawn(["create", "-n", &names[i], "--memory", "64M"])), names);
        let said = all(|i| {
            let script = "echo $MSB_SANDBOX > /own; cat /own";
            msb.spawn(["exec", &names[i], "--", "sh", "-c", script])
        });
        assert_eq!(said, names);
        let listed = msb.words("ls -q").line();
        let listed: BTreeSet<&str> = listed.lines().collect();
        assert_eq!(listed, names.iter().map(String::as_str).collect());
        let before: Vec<Process> = names.iter().flat_map(|name| msb.processes(name)).collect();
        assert!(before.len() >= 2 * MANY);
        assert_eq!(all(|i| msb.spawn(["rm", "-f", &names[i]])), names);
        assert_eq!(msb.words("ls -q").line(), "");
        eventually("no process is left", || !before.iter().any(Process::is_alive));
    }
}

#[test]
fn fifty_runs_at_once_from_nothing_all_give_their_answer() {
    let msb = Msb::as_user().unwrap_or_default();
    let home = msb.scratch().join("fresh");
    let numbers: Vec<String> = (0..MANY).map(|number| number.to_string()).collect();
    let said = all(|i| {
        let mut command = msb.command(["run", "--", "sh", "-c", "echo $0", &numbers[i]]);
        command.env("MSB_HOME", &home).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    });
    assert_eq!(said, numbers);
    eventually("nothing is left", || {
        std::fs::read_dir(home.join("sandboxes")).unwrap().next().is_none()
    });
}
