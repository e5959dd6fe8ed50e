//! A command on a server, over a WebSocket.

use crate::Client;
use crate::websocket::{self, SocketMessage};
use msb_api::http::streams::{ExecMessage, ExecStart, LARGEST_MESSAGE, STDERR, STDOUT, Tell};
use msb_api::{Exec, ExecEvent, ExecInput, Watch};
use msb_spec::{Error, Kind, Name, Result, Stdin, TermSize};
use serde::Serialize;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

/// A running command on a server. Dropping it closes the connection, which ends the command unless
/// it is detached.
pub(crate) struct RemoteExec {
    started: ExecStart,
    messages: mpsc::Receiver<Result<Message>>,
    input: Arc<ExecSender>,
    finished: bool,
}

impl RemoteExec {
    /// Opens the WebSocket, sends the start message if there is one, and waits for `started`.
    pub(crate) fn open(
        client: &Client,
        path: &str,
        first: Option<&impl Serialize>,
        watch: &dyn Watch,
    ) -> Result<Self> {
        let (sender, mut messages) = websocket::open(client, path)?;
        let input = Arc::new(ExecSender(sender));
        if let Some(first) = first {
            let text = serde_json::to_string(first)
                .map_err(|error| Error::invalid("the request cannot be serialised").cause(error))?;
            if text.len() > LARGEST_MESSAGE {
                let error =
                    format!("the request to start a command exceeds {LARGEST_MESSAGE} bytes");
                return Err(Error::new(Kind::Limit, error)
                    .hint("create the sandbox first, with `msb create`"));
            }
            input.send(SocketMessage::Text(text))?;
        }
        loop {
            match messages.blocking_recv() {
                Some(Ok(Message::Text(text))) => match crate::parse_json(&text)? {
                    ExecMessage::Progress(step) => watch.step(&step.what, step.part()),
                    ExecMessage::Started(started) => {
                        return Ok(Self { started, messages, input, finished: false });
                    }
                    ExecMessage::Error(error) => return Err(error),
                    ExecMessage::Stdout(_) | ExecMessage::Stderr(_) | ExecMessage::Exited(_) => {
                        return Err(Error::new(
                            Kind::Protocol,
                            "output of a command that was not started",
                        ));
                    }
                },
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Err(error)) => return Err(error),
                Some(Ok(_)) | None => return Err(disconnected()),
            }
        }
    }

    pub(crate) fn sandbox(&self) -> &Name {
        &self.started.sandbox
    }
}

/// Closes the stdin of a command that was requested without one.
pub(crate) fn close_unused_stdin(exec: &RemoteExec, stdin: Stdin) -> Result<()> {
    match stdin {
        Stdin::Closed => exec.input.close(),
        Stdin::Streamed => Ok(()),
    }
}

fn disconnected() -> Error {
    Error::new(Kind::Protocol, "the server closed the connection")
}

impl Exec for RemoteExec {
    fn id(&self) -> u64 {
        self.started.id
    }

    fn pid(&self) -> u32 {
        self.started.pid
    }

    fn next(&mut self) -> Result<Option<ExecEvent>> {
        while !self.finished {
            match self.messages.blocking_recv() {
                Some(Ok(Message::Binary(bytes))) => match bytes.split_first() {
                    Some((&STDOUT, output)) => return Ok(Some(ExecEvent::Stdout(output.to_vec()))),
                    Some((&STDERR, output)) => return Ok(Some(ExecEvent::Stderr(output.to_vec()))),
                    _ => return Err(Error::new(Kind::Protocol, "output without a stream number")),
                },
                Some(Ok(Message::Text(text))) => match crate::parse_json(&text)? {
                    ExecMessage::Exited(exit) => {
                        self.finished = true;
                        return Ok(Some(ExecEvent::Exited(exit)));
                    }
                    ExecMessage::Error(error) => return Err(error),
                    _ => {}
                },
                Some(Ok(Message::Close(_))) | None => {
                    // A detached command ends like this.
                    self.finished = true;
                    return if self.input.is_detached() { Ok(None) } else { Err(disconnected()) };
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
        let _ = self.input.0.messages.try_send(SocketMessage::Close);
    }
}

struct ExecSender(websocket::SocketSender);

impl ExecSender {
    fn send(&self, message: SocketMessage) -> Result<()> {
        self.0.messages.blocking_send(message).map_err(|_| disconnected())
    }

    fn send_control(&self, message: &Tell) -> Result<()> {
        let text = serde_json::to_string(message).unwrap_or_default();
        self.send(SocketMessage::Text(text))
    }

    fn is_detached(&self) -> bool {
        self.0.detached.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl ExecInput for ExecSender {
    fn write(&self, bytes: &[u8]) -> Result<()> {
        // In pieces, so that control messages can be sent between them.
        bytes.chunks(32 << 10).try_for_each(|piece| self.send(SocketMessage::Bytes(piece.to_vec())))
    }

    fn close(&self) -> Result<()> {
        // A command that has exited needs no end of its stdin; its exit was sent before the server
        // closed.
        let _ = self.send_control(&Tell::CloseStdin);
        Ok(())
    }

    fn signal(&self, signal: i32) -> Result<()> {
        self.send_control(&Tell::Signal(signal))
    }

    fn resize(&self, size: TermSize) -> Result<()> {
        self.send_control(&Tell::Resize(size))
    }

    fn detach(&self) -> Result<()> {
        self.0.detached.store(true, std::sync::atomic::Ordering::Relaxed);
        self.send_control(&Tell::Detach)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UNWATCHED;
    use msb_spec::{Ending, Exit};
    use std::net::TcpListener;
    use std::time::Duration;
    use tokio_tungstenite::tungstenite::accept;

    #[test]
    fn the_exit_of_a_command_is_read_although_its_stdin_cannot_be_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let client = Client::connect(&address, None).unwrap();
        let exit = Exit { code: Some(7), signal: None, ending: Ending::Own, reached: None };
        let server = std::thread::spawn(move || {
            let mut socket = accept(listener.accept().unwrap().0).unwrap();
            let started = ExecStart { id: 1, pid: 2, sandbox: "box".parse().unwrap() };
            for heard in [ExecMessage::Started(started), ExecMessage::Exited(exit)] {
                socket.send(Message::text(serde_json::to_string(&heard).unwrap())).unwrap();
            }
            socket.close(None).unwrap();
            while socket.read().is_ok() {}
        });
        let mut exec = RemoteExec::open(&client, "/", None::<&()>, UNWATCHED).unwrap();
        while !exec.input.0.messages.is_closed() {
            std::thread::sleep(Duration::from_millis(1));
        }
        close_unused_stdin(&exec, Stdin::Closed).unwrap();
        assert_eq!(exec.next().unwrap(), Some(ExecEvent::Exited(exit)));
        server.join().unwrap();
    }
}
