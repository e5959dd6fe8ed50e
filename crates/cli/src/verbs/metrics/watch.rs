//! The view of a terminal that stays: drawn over itself, without flicker, until a key ends it.

use super::MetricsArgs;
use super::history::{cpu, speed};
use super::order::{self, SortKey};
use crate::colour::{BOLD, CYAN, OutputStream};
use crate::output::{self, Outcome};
use crate::{clock, sparkline, terminal};
use msb_api::{Api, Metrics as SandboxMetrics, Sample};
use msb_spec::{Bytes, Name, Result, TermSize};
use msb_sys::signal::{self, Signals};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::BTreeMap;
use std::io::stdin;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// The other screen of the terminal, without its cursor; what was there before comes back.
struct Screen {
    _raw: terminal::Raw,
}

impl Screen {
    fn enter() -> Result<Self> {
        let raw = terminal::Raw::enter()?;
        output::write_stdout(b"\x1b[?1049h\x1b[?25l");
        Ok(Self { _raw: raw })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        output::write_stdout(b"\x1b[?25h\x1b[?1049l");
    }
}

/// A picture of the last minutes has so many letters.
const PICTURE: usize = 30;
/// So many in a terminal that is not wide.
const SHORT_PICTURE: usize = 10;
/// What is kept for an hour grows this often.
const LOOK_BACK: Duration = Duration::from_secs(10);

/// What is remembered of a sandbox between two looks.
struct Before {
    at: Instant,
    measured: SandboxMetrics,
}

/// What is known when a picture is drawn.
#[derive(Default)]
struct Known {
    before: BTreeMap<String, Before>,
    minutes: BTreeMap<String, Vec<f64>>,
    looked_back: Option<Instant>,
}

pub(super) fn show(asked: &MetricsArgs, api: &dyn Api) -> Outcome {
    // What cannot be measured is told on the screen where it can be read.
    let mut measured = asked.measure(api)?;
    let signals =
        Signals::collect(&[signal::SIGTERM, signal::SIGINT, signal::SIGHUP, signal::SIGWINCH])
            .map_err(|error| msb_spec::Error::host("cannot collect signals", error))?;
    let _screen = Screen::enter()?;
    let mut known = Known::default();
    let mut taken = Instant::now();
    let mut sort_key = SortKey::default();
    loop {
        sort_key.sort(&mut measured, |name| known.before.get(name).map(|one| &one.measured));
        known.look_back(api, &measured);
        let size = terminal::size();
        let total = order::total(&measured);
        let all: Vec<SandboxMetrics> = measured.iter().cloned().chain(total).collect();
        let mut lines = known.lines(&all, taken, size);
        if lines.len() + 2 <= usize::from(size.rows) {
            lines.extend([String::new(), order::HINTS.to_owned()]);
        }
        output::write_stdout(frame(&lines, size).as_bytes());
        match wait(&signals, asked.pause())? {
            Told::End => return Ok(0),
            // The same once more, in another size.
            Told::Resized => continue,
            Told::Sort(key) => {
                sort_key = key;
                continue;
            }
            Told::Time => {}
        }
        for one in all {
            known.before.insert(one.name.clone(), Before { at: taken, measured: one });
        }
        measured = asked.measure(api)?;
        taken = Instant::now();
    }
}

enum Told {
    End,
    Resized,
    Sort(SortKey),
    Time,
}

/// Waits for a key, a signal, or the time.
fn wait(signals: &Signals, pause: Duration) -> Result<Told> {
    const CTRL_C: u8 = 3;
    let until = Instant::now() + pause;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Told::Time);
        }
        let (input, fd) = (stdin(), signals.fd());
        let mut fds = [
            PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN),
        ];
        let limit = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match rustix::event::poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(msb_spec::Error::host("cannot wait for a key", error)),
        }
        let (typed, signalled) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
        if signalled {
            let mut end = false;
            while let Some(signal) = signals.take() {
                end |= signal != signal::SIGWINCH;
            }
            return Ok(if end { Told::End } else { Told::Resized });
        }
        if typed {
            let mut byte = [0];
            match rustix::io::read(&input, &mut byte) {
                // The terminal is closed.
                Ok(0) | Err(_) => return Ok(Told::End),
                Ok(_) if matches!(byte[0], b'q' | b'Q' | CTRL_C) => return Ok(Told::End),
                Ok(_) => {
                    if let Some(key) = SortKey::of_key(byte[0]) {
                        return Ok(Told::Sort(key));
                    }
                }
            }
        }
    }
}

/// What is written to have these lines on the screen and nothing else: each over what was there, and
/// none longer than a line.
fn frame(lines: &[String], size: TermSize) -> String {
    let (rows, cols) = (usize::from(size.rows).max(1), usize::from(size.cols).max(1));
    let mut text = String::from("\x1b[H");
    let room = if lines.len() > rows { rows - 1 } else { lines.len() };
    let left = lines.len() - room;
    let more = (left > 0).then(|| format!("… {left} more"));
    for (at, line) in lines[..room].iter().chain(&more).enumerate() {
        if at > 0 {
            text.push_str("\r\n");
        }
        text.push_str(&painted(&line.chars().take(cols).collect::<String>()));
        text.push_str("\x1b[K");
    }
    text.push_str("\x1b[J");
    text
}

/// The head, the sums and the keys stand out from the sandboxes.
fn painted(line: &str) -> String {
    let colour = match line {
        _ if line.starts_with("NAME ") || line.starts_with(order::TOTAL) => BOLD,
        "" => return String::new(),
        _ if order::HINTS.starts_with(line) => CYAN,
        _ => return line.to_owned(),
    };
    OutputStream::Stdout.paint(line, colour)
}

impl Known {
    /// Fetches what was kept of the last minutes, as often as something is added to it.
    fn look_back(&mut self, api: &dyn Api, measured: &[SandboxMetrics]) {
        if self.looked_back.is_some_and(|at| at.elapsed() < LOOK_BACK) {
            return;
        }
        self.looked_back = Some(Instant::now());
        self.minutes.clear();
        for one in measured {
            let samples = Name::parse(&one.name).and_then(|name| api.sandbox_history(&name));
            let samples: Vec<Sample> = samples.unwrap_or_default();
            let latest = &samples[samples.len().saturating_sub(PICTURE + 1)..];
            self.minutes.insert(one.name.clone(), cpu(latest));
        }
    }

    fn lines(&self, measured: &[SandboxMetrics], taken: Instant, size: TermSize) -> Vec<String> {
        let name = measured.iter().map(|one| one.name.len()).max().unwrap_or(0).max(4);
        let wide = size.cols >= WIDE;
        let columns = Columns::fitting(size, name, wide);
        let mut lines = vec![columns.line(&HEADS.map(str::to_owned))];
        let cells = |one| columns.line(&self.cells(one, taken, wide));
        lines.extend(measured.iter().map(cells));
        if measured.is_empty() {
            lines.push("nothing runs".to_owned());
        }
        lines
    }

    fn cells(&self, one: &SandboxMetrics, taken: Instant, wide: bool) -> Cells {
        let before = self.before.get(&one.name);
        let passed = before.map(|before| taken.duration_since(before.at).as_secs_f64().max(1e-3));
        let rate = |count: fn(&SandboxMetrics) -> Option<u64>| -> Option<f64> {
            let before = count(&before?.measured)?;
            Some(count(one)?.saturating_sub(before) as f64 / passed?)
        };
        let dash = || "-".to_owned();
        let fast = |count| rate(count).map_or_else(dash, speed);
        let minutes = self.minutes.get(&one.name).map_or(&[][..], Vec::as_slice);
        let picture = minutes.len().saturating_sub(if wide { PICTURE } else { SHORT_PICTURE });
        [
            one.name.clone(),
            rate(|it| Some(it.cpu_us)).map_or_else(dash, |us| format!("{:.0}%", us / 1e4)),
            sparkline::line(&minutes[picture..], 100.0),
            memory(one, wide),
            fast(|it| Some(it.net?.received)),
            fast(|it| Some(it.net?.sent)),
            one.guest.map_or(one.pids, |guest| guest.pids).to_string(),
            clock::whole_seconds(one.uptime_ms),
            fast(|it| Some(it.disk_traffic?.read)),
            fast(|it| Some(it.disk_traffic?.written)),
        ]
    }
}

/// What is shown of one sandbox; what matters less is further to the right.
type Cells = [String; 10];

const HEADS: [&str; 10] =
    ["NAME", "CPU", "MINUTES", "MEMORY", "NET IN", "NET OUT", "PIDS", "UP", "READ", "WRITTEN"];

/// The columns that a terminal has room for. One that does not fit is left out, with all to the
/// right of it, so that no number is cut.
struct Columns {
    widths: Vec<usize>,
}

impl Columns {
    fn fitting(size: TermSize, name: usize, wide: bool) -> Self {
        let (picture, memory) = if wide { (PICTURE, 27) } else { (SHORT_PICTURE, 14) };
        let all = [name, 5, picture, memory, 9, 9, 5, 7, 9, 9];
        let mut end = 0;
        let fits = |width: &&usize| {
            end += **width + GAP.len();
            end <= usize::from(size.cols) + GAP.len()
        };
        Self { widths: all.iter().take_while(fits).copied().collect() }
    }

    fn line(&self, cells: &Cells) -> String {
        let left = |at: usize| matches!(HEADS[at], "NAME" | "MINUTES" | "MEMORY");
        let pad = |(at, width): (usize, &usize)| match left(at) {
            true => format!("{:<width$}", cells[at]),
            false => format!("{:>width$}", cells[at]),
        };
        match self.widths.is_empty() {
            // Not even the names fit: the terminal shows what it can of them.
            true => cells[0].clone(),
            false => self.widths.iter().enumerate().map(pad).collect::<Vec<_>>().join(GAP),
        }
    }
}

/// The space between two columns; the last column has none.
const GAP: &str = "  ";

/// A terminal with so many columns has room for a longer picture and a bar of memory.
const WIDE: u16 = 140;

/// How much memory, and of how much; in a wide terminal also as a bar.
fn memory(one: &SandboxMetrics, wide: bool) -> String {
    let (used, most) = match one.guest {
        Some(guest) => (guest.memory, Some(guest.memory_total)),
        None => (one.memory, one.memory_limit),
    };
    match most {
        Some(most) if most > 0 => {
            let amount = format!("{}/{}", Bytes(used), Bytes(most));
            match wide {
                true => format!("{} {amount}", sparkline::bar(used as f64 / most as f64, 10)),
                false => amount,
            }
        }
        _ => Bytes(used).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_fits_whatever_the_size_is() {
        let lines = ["first line", "second", "third"].map(str::to_owned);
        let size = |rows, cols| TermSize { rows, cols };
        assert_eq!(
            frame(&lines, size(24, 5)),
            "\x1b[Hfirst\x1b[K\r\nsecon\x1b[K\r\nthird\x1b[K\x1b[J"
        );
        assert_eq!(frame(&lines, size(2, 80)), "\x1b[Hfirst line\x1b[K\r\n… 2 more\x1b[K\x1b[J");
        assert_eq!(frame(&lines, size(0, 0)), "\x1b[H…\x1b[K\x1b[J");
    }

    #[test]
    fn no_column_is_cut_whatever_the_width_is() {
        let widest = [
            "sandbox",
            "1600%",
            "▁▁▁▁▁▁▁▁▁▁",
            "1023.9M/999.9G",
            "1023.9M/s",
            "1023.9M/s",
            "99999",
            "23h59m",
            "1023.9M/s",
            "1023.9M/s",
        ];
        let widest = widest.map(str::to_owned);
        for cols in 1..=200 {
            let size = TermSize { rows: 24, cols };
            let columns = Columns::fitting(size, 7, cols >= WIDE);
            let line = columns.line(&widest);
            let shown = line.split_whitespace().count();
            assert!(line.chars().count() <= usize::from(cols).max(7), "{cols}: {line}");
            assert_eq!(shown, columns.widths.len().max(1), "{cols}: {line}");
            assert!(cols < 80 || shown >= 8, "{cols}: {line}");
            assert!(cols < WIDE || shown == 10, "{cols}: {line}");
        }
    }
}
