//! Where the time of one start goes, as the lab's kernel saw it.
//!
//! The marks are what msb asks of the kernel anyway: forks, ioctls of KVM, the first connection of
//! the guest. So nothing has to be built into it, and nothing is measured that a user has not got.

use std::fmt;
use std::fs;
use std::io::Write;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

const TRACING: &str = "/sys/kernel/tracing";

/// Requests of KVM as the trace shows them; newer kernels write `0x` before the number.
const CREATE_VM: &str = "ae01, arg:";
const RUN: &str = "ae80, arg:";

/// Of a process of ours, not of the shell that starts it.
const FORK: &str = "sched_process_fork: comm=msb";

/// Written to the trace by us.
const BEGIN: &str = "bench begins";
const OUTPUT: &str = "bench has output";
const END: &str = "bench ends";

/// From the begin of one step to that of the next.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Step {
    name: &'static str,
    milliseconds: f64,
    /// Of the whole, in per cent.
    share: f64,
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Step { name, milliseconds, share } = self;
        write!(formatter, "{milliseconds:>9.2} ms  {share:>3.0} %  {name}")
    }
}

/// Watches one start. `start` calls what it is given when the first output is there.
pub(super) fn watch(start: impl FnOnce(&dyn Fn()) -> Result<()>) -> Result<Vec<Step>> {
    if !fs::exists(format!("{TRACING}/trace"))? {
        Command::new("mount").args(["-t", "tracefs", "tracefs", TRACING]).status()?;
    }
    set("trace", "")?;
    set("trace_clock", "mono")?;
    // All of a start: the first events count as much as the last.
    set("buffer_size_kb", "16384")?;
    set("events/syscalls/sys_enter_ioctl/filter", "cmd == 0xae01 || cmd == 0xae80")?;
    let events =
        ["sched/sched_process_fork", "syscalls/sys_enter_ioctl", "syscalls/sys_enter_sendmsg"];
    for event in events {
        set(&format!("events/{event}/enable"), "1")?;
    }
    mark(BEGIN)?;
    let done = start(&|| drop(mark(OUTPUT)));
    mark(END)?;
    for event in events {
        set(&format!("events/{event}/enable"), "0")?;
    }
    done?;
    steps(&fs::read_to_string(format!("{TRACING}/trace"))?)
}

fn set(file: &str, value: &str) -> Result<()> {
    let path = format!("{TRACING}/{file}");
    fs::write(&path, value).with_context(|| format!("cannot write `{path}`"))
}

fn mark(text: &str) -> Result<()> {
    let path = format!("{TRACING}/trace_marker");
    let mut file = fs::File::options().write(true).open(&path)?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write `{path}`"))
}

/// `  comm-123   [000] d..1.   12.345678: event: words`
fn time(line: &str) -> Option<f64> {
    let stamp = line.split(": ").next()?.split_whitespace().last()?;
    Some(stamp.parse::<f64>().ok()? * 1e3)
}

fn steps(trace: &str) -> Result<Vec<Step>> {
    let mut lines = trace.lines().filter(|line| !line.starts_with('#'));
    // Each is looked for behind the one before.
    let marks: [(&str, &str); 8] = [
        ("command line read, Plan made", BEGIN),
        ("worker prepares", FORK),
        ("machine process jails itself", FORK),
        ("VM is set up", CREATE_VM),
        ("kernel boots until the guest connects", RUN),
        ("guest makes the sandbox, command runs", "sys_sendmsg("),
        ("machine ends, all is removed", OUTPUT),
        ("", END),
    ];
    let mut times = Vec::new();
    for (name, sign) in marks {
        let line = lines.find(|line| line.contains(sign));
        let line = line.with_context(|| format!("the trace does not show: {name}"))?;
        times.push((name, time(line).with_context(|| format!("no time in `{line}`"))?));
    }
    let whole = times[times.len() - 1].1 - times[0].1;
    ensure!(whole > 0.0, "a start that took no time");
    let steps = times.windows(2).map(|two| {
        let milliseconds = two[1].1 - two[0].1;
        Step { name: two[0].0, milliseconds, share: milliseconds / whole * 100.0 }
    });
    Ok(steps.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "\
# tracer: nop
           xtask-9       [000] .....     1.000000: tracing_mark_write: bench begins
           xtask-9       [000] .....     1.010000: sched_process_fork: comm=msb pid=9 child_comm=msb child_pid=10
             msb-10      [000] .....     1.020000: sched_process_fork: comm=msb pid=10 child_comm=msb child_pid=11
             msb-11      [000] .....     1.030000: sys_ioctl(fd: 5, cmd: ae01, arg: 0)
             msb-11      [000] .....     1.035000: sys_sendmsg(fd: 3, msg: 7ff, flags: 0)
             msb-11      [000] .....     1.040000: sys_ioctl(fd: 9, cmd: 0xae80, arg: 0)
             msb-11      [000] .....     1.041000: sys_ioctl(fd: 9, cmd: ae80, arg: 0)
             msb-11      [000] .....     1.080000: sys_sendmsg(fd: 3, msg: 7ff, flags: 0)
           xtask-9       [000] .....     1.090000: tracing_mark_write: bench has output
           xtask-9       [000] .....     1.100000: tracing_mark_write: bench ends
";

    #[test]
    fn each_step_goes_from_its_mark_to_the_next() {
        let steps = steps(TRACE).unwrap();
        let times: Vec<f64> = steps.iter().map(|step| step.milliseconds.round()).collect();
        assert_eq!(times, [10.0, 10.0, 10.0, 10.0, 40.0, 10.0, 10.0]);
        assert_eq!(steps[4].share.round(), 40.0);
    }

    #[test]
    fn a_trace_without_a_machine_is_an_error() {
        let other: String = TRACE.lines().filter(|line| !line.contains("ae01")).collect();
        assert!(steps(&other).is_err());
    }
}
