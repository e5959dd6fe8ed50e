//! A sandbox's log while it grows.

use crate::worker::Worker;
use msb_engine::Engine;
use msb_engine::logs::{Filter, Line, Reader};
use msb_spec::{Name, Result};
use std::time::Duration;
use tokio::sync::mpsc;

/// The lines of a log, from the oldest that is kept until the sandbox ends.
#[derive(Debug)]
pub struct LogStream {
    lines: mpsc::Receiver<Result<Line>>,
}

/// Often enough to feel immediate; a file has no better way to say that it grew.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Lines that wait for a slow reader; the rest waits in the file.
const AHEAD: usize = 256;

impl LogStream {
    pub(crate) async fn open(worker: &Worker, filter: Filter) -> Result<Self> {
        let reader = worker.blocking(move |engine, name| engine.logs(name, filter)).await?;
        let (sender, lines) = mpsc::channel(AHEAD);
        let (engine, name) = (worker.engine.clone(), worker.name.clone());
        tokio::task::spawn_blocking(move || follow(&engine, &name, reader, &sender));
        Ok(Self { lines })
    }

    /// The next line; none when the sandbox has ended and everything was taken.
    pub async fn next(&mut self) -> Result<Option<Line>> {
        self.lines.recv().await.transpose()
    }
}

/// Reads until the sandbox has ended, or until the receiver is dropped.
fn follow(engine: &Engine, name: &Name, mut reader: Reader, sender: &mpsc::Sender<Result<Line>>) {
    let send = |lines: Result<Vec<Line>>| -> Option<()> {
        match lines {
            Ok(lines) => lines.into_iter().try_for_each(|line| sender.blocking_send(Ok(line)).ok()),
            Err(error) => sender.blocking_send(Err(error)).ok().and(None),
        }
    };
    // Asked before reading, so that the last words of one that ends now are read.
    let mut running = engine.is_running(name);
    let mut lines = reader.all();
    while send(lines).is_some() {
        if !running {
            send(Ok(reader.rest()));
            return;
        }
        if sender.is_closed() {
            return;
        }
        std::thread::sleep(LOOK_INTERVAL);
        running = engine.is_running(name);
        lines = reader.more();
    }
}
