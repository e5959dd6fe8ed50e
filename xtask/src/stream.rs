//! Runs a program, hands over its output line by line as it comes, and ends it when its time
//! is up.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How a program ended.
#[derive(Debug)]
pub(crate) enum End {
    Exited(ExitStatus),
    /// It exited, but something it started still holds its output open.
    LeftBehind(ExitStatus),
    TimedOut,
    /// It said nothing for so long that nothing more was to be expected.
    Silent,
}

/// Between two looks at whether the program still runs while it is silent.
const LOOK: Duration = Duration::from_millis(100);

/// For children that are just being reaped when their parent exits.
const GRACE: Duration = Duration::from_secs(10);

pub(crate) fn lines(command: &mut Command, limit: Duration, each: impl FnMut(&str)) -> Result<End> {
    lines_unless_silent(command, limit, limit, each)
}

/// Reads the lines of a program, and ends it after a long silence.
pub(crate) fn lines_unless_silent(
    command: &mut Command,
    limit: Duration,
    silence: Duration,
    mut each: impl FnMut(&str),
) -> Result<End> {
    let deadline = Instant::now() + limit;
    let mut heard = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run `{}`", command.get_program().display()))?;
    let output = read(child.stdout.take().expect("stdout is piped"));

    let mut exited: Option<(ExitStatus, Instant)> = None;
    loop {
        match output.recv_timeout(LOOK) {
            Ok(line) => {
                heard = Instant::now();
                each(&line);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if exited.is_none() => thread::sleep(LOOK),
            Err(RecvTimeoutError::Disconnected) => {}
        }
        if exited.is_none() {
            exited = child.try_wait()?.map(|status| (status, Instant::now()));
        }
        match exited {
            Some((status, _)) if closed(&output, &mut each) => return Ok(End::Exited(status)),
            Some((status, when)) if when.elapsed() > GRACE => return Ok(End::LeftBehind(status)),
            None if Instant::now() > deadline => {
                end(&mut child)?;
                closed(&output, &mut each);
                return Ok(End::TimedOut);
            }
            None if heard.elapsed() > silence => {
                end(&mut child)?;
                closed(&output, &mut each);
                return Ok(End::Silent);
            }
            _ => {}
        }
    }
}

fn read(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned();
            if sender.send(text).is_err() {
                return;
            }
            line.clear();
        }
    });
    receiver
}

/// Hands over the lines that are already there and says whether they were the last.
fn closed(output: &Receiver<String>, each: &mut impl FnMut(&str)) -> bool {
    loop {
        match output.try_recv() {
            Ok(line) => each(&line),
            Err(mpsc::TryRecvError::Empty) => return false,
            Err(mpsc::TryRecvError::Disconnected) => return true,
        }
    }
}

/// Kills the program and all below it. Not by process group: in a group of its own it would
/// not be reached by the developer's Ctrl-C.
fn end(child: &mut Child) -> Result<()> {
    let mut doomed = vec![child.id()];
    let mut next = 0;
    while let Some(&parent) = doomed.get(next) {
        doomed.extend(children(parent));
        next += 1;
    }
    let pids: Vec<String> = doomed.iter().map(u32::to_string).collect();
    // The shell's own `kill`: the program of that name is not everywhere. It complains of a
    // process that ended just now, which is what we want.
    Command::new("sh")
        .args(["-c", "kill -KILL \"$@\" 2>/dev/null", "sh"])
        .args(pids)
        .status()
        .context("cannot run `sh`")?;
    child.wait()?;
    Ok(())
}

fn children(parent: u32) -> Vec<u32> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // The name comes second, in parentheses, and may hold anything; state and parent
            // follow the last one.
            let parent_of = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1));
            parent_of == Some(parent.to_string().as_str())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn every_line_arrives_in_order_without_its_end() {
        let mut seen = Vec::new();
        let end = lines(&mut shell("printf 'a\\r\\nb\\nc'"), GRACE, |line| {
            seen.push(line.to_owned());
        });

        assert!(matches!(end.unwrap(), End::Exited(status) if status.success()));
        assert_eq!(seen, ["a", "b", "c"]);
    }

    #[test]
    fn a_program_past_its_limit_is_ended_with_its_children() {
        let script = "sh -c 'echo $$; sleep 600; :'; :";
        let mut pids = Vec::new();
        let end = lines(&mut shell(script), Duration::from_secs(1), |line| {
            pids.push(line.to_owned());
        });

        assert!(matches!(end.unwrap(), End::TimedOut));
        // A killed process takes a moment to go, and its new parent may leave a zombie.
        let runs = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", pids[0])).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        let deadline = Instant::now() + GRACE;
        while runs() && Instant::now() < deadline {
            thread::sleep(LOOK);
        }
        assert!(!runs());
    }

    #[test]
    fn a_program_that_falls_silent_is_ended() {
        let mut seen = 0;
        let script = "for i in 1 2 3; do echo $i; sleep 0.2; done; sleep 600";
        let silence = Duration::from_secs(1);
        let end = lines_unless_silent(&mut shell(script), silence * 600, silence, |_| seen += 1);

        assert!(matches!(end.unwrap(), End::Silent));
        assert_eq!(seen, 3);
    }

    #[test]
    fn a_program_that_closes_its_output_is_still_waited_for() {
        let end = lines(&mut shell("exec >&-; sleep 0.5; exit 3"), GRACE, |_| {});

        assert!(matches!(end.unwrap(), End::Exited(status) if status.code() == Some(3)));
    }
}
