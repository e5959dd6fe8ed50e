//! A command on a server, over a WebSocket.

use crate::Client;
use crate::socket::{self, Order};
use msb_api::http::streams::{Heard, LARGEST_MESSAGE, STDERR, STDOUT, Started, Tell};
use msb_api::{Exec, ExecEvent, ExecInput, Watch};
use msb_spec::{Error, Kind, Name, Result, Stdin, TermSize};
use serde::Serialize;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

/// It runs there. Dropping it hangs up, which ends the command unless it is to go on.
pub(crate) struct RemoteExec {
    started: Started,
    messages: mpsc::Receiver<Result<Message>>,
    input: Arc<Speaks>,
    over: bool,
}

impl RemoteExec {
    /// Opens it; with the first message, which says what is to be started.
    pub(crate) fn open(
        client: &Client,
        path: &str,
        first: Option<&impl Serialize>,
        watch: &dyn Watch,
    ) -> Result<Self> {
        let (orders, mut messages) = socket::open(client, path)?;
        let input = Arc::new(Speaks(orders));
        if let Some(first) = first {
            let text = serde_json::to_string(first)
                .map_err(|error| Error::invalid("that cannot be asked for").cause(error))?;
            if text.len() > LARGEST_MESSAGE {
                let error = format!("more than {LARGEST_MESSAGE} bytes to start a command with");
                return Err(Error::new(Kind::Limit, error)
                    .hint("make the sandbox first, with `msb create`"));
            }
            input.send(Order::Text(text))?;
        }
        loop {
            match messages.blocking_recv() {
                Some(Ok(Message::Text(text))) => match crate::parsed(&text)? {
                    Heard::Progress(step) => watch.step(&step.what, step.part()),
                    Heard::Started(started) => {
                        return Ok(Self { started, messages, input, over: false });
                    }
                    Heard::Error(error) => return Err(error),
                    Heard::Stdout(_) | Heard::Stderr(_) | Heard::Exited(_) => {
                        return Err(Error::new(Kind::Protocol, "a command that was never started"));
                    }
                },
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Err(error)) => return Err(error),
                Some(Ok(_)) | None => return Err(hung_up()),
            }
        }
    }

    pub(crate) fn sandbox(&self) -> &Name {
        &self.started.sandbox
    }
}

/// A command that was asked for without stdin has none.
pub(crate) fn without_stdin(exec: &RemoteExec, stdin: Stdin) -> Result<()> {
    match stdin {
        Stdin::Closed => exec.input.close(),
        Stdin::Streamed => Ok(()),
    }
}

fn hung_up() -> Error {
    Error::new(Kind::Protocol, "the server hung up")
}

impl Exec for RemoteExec {
    fn id(&self) -> u64 {
        self.started.id
    }

    fn pid(&self) -> u32 {
        self.started.pid
    }

    fn next(&mut self) -> Result<Option<ExecEvent>> {
        while !self.over {
            match self.messages.blocking_recv() {
                Some(Ok(Message::Binary(bytes))) => match bytes.split_first() {
                    Some((&STDOUT, said)) => return Ok(Some(ExecEvent::Stdout(said.to_vec()))),
                    Some((&STDERR, said)) => return Ok(Some(ExecEvent::Stderr(said.to_vec()))),
                    _ => return Err(Error::new(Kind::Protocol, "output of no stream")),
                },
                Some(Ok(Message::Text(text))) => match crate::parsed(&text)? {
                    Heard::Exited(exit) => {
                        self.over = true;
                        return Ok(Some(ExecEvent::Exited(exit)));
                    }
                    Heard::Error(error) => return Err(error),
                    _ => {}
                },
                Some(Ok(Message::Close(_))) | None => {
                    // One that was let go of ends so.
                    self.over = true;
                    return if self.input.is_detached() { Ok(None) } else { Err(hung_up()) };
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
            }
        }
        Ok(None)
    }

    fn input(&self) -> Arc<dyn ExecInput> {
        Arc::clone(&self.input) as Arc<dyn ExecInput>
    }
}

impl Drop for RemoteExec {
    fn drop(&mut self) {
        let _ = self.input.0.orders.try_send(Order::HangUp);
    }
}

struct Speaks(socket::Orders);

impl Speaks {
    fn send(&self, order: Order) -> Result<()> {
        self.0.orders.blocking_send(order).map_err(|_| hung_up())
    }

    fn tell(&self, tell: &Tell) -> Result<()> {
        let text = serde_json::to_string(tell).unwrap_or_default();
        self.send(Order::Text(text))
    }

    fn is_detached(&self) -> bool {
        self.0.detached.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl ExecInput for Speaks {
    fn write(&self, bytes: &[u8]) -> Result<()> {
        // In pieces, so that other orders come between.
        bytes.chunks(32 << 10).try_for_each(|piece| self.send(Order::Bytes(piece.to_vec())))
    }

    fn close(&self) -> Result<()> {
        // A command that is over needs no end of its stdin; how it ended was told before the server hung up.
        let _ = self.tell(&Tell::CloseStdin);
        Ok(())
    }

    fn signal(&self, signal: i32) -> Result<()> {
        self.tell(&Tell::Signal(signal))
    }

    fn resize(&self, size: TermSize) -> Result<()> {
        self.tell(&Tell::Resize(size))
    }

    fn detach(&self) -> Result<()> {
        self.0.detached.store(true, std::sync::atomic::Ordering::Relaxed);
        self.tell(&Tell::Detach)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NOBODY;
    use msb_spec::{Ending, Exit};
    use std::net::TcpListener;
    use std::time::Duration;
    use tokio_tungstenite::tungstenite::accept;

    #[test]
    fn a_command_that_ends_before_its_stdin_is_closed_tells_how() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let client = Client::connect(&address, None).unwrap();
        let exit = Exit { code: Some(7), signal: None, ending: Ending::Own, reached: None };
        let server = std::thread::spawn(move || {
            let mut socket = accept(listener.accept().unwrap().0).unwrap();
            let started = Started { id: 1, pid: 2, sandbox: "box".parse().unwrap() };
            for heard in [Heard::Started(started), Heard::Exited(exit)] {
                socket.send(Message::text(serde_json::to_string(&heard).unwrap())).unwrap();
            }
            socket.close(None).unwrap();
            while socket.read().is_ok() {}
        });
        let mut exec = RemoteExec::open(&client, "/", None::<&()>, NOBODY).unwrap();
        while !exec.input.0.orders.is_closed() {
            std::thread::sleep(Duration::from_millis(1));
        }
        without_stdin(&exec, Stdin::Closed).unwrap();
        assert_eq!(exec.next().unwrap(), Some(ExecEvent::Exited(exit)));
        server.join().unwrap();
    }
}
