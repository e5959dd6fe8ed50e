//! Writing side of a channel, for blocking threads.

use crate::flow_control::FlowControl;
use msb_spec::{Ending, Error, Exit};
use msb_sys::signal::NAMES;
use russh::server::{Handle, Msg};
use russh::{ChannelId, ChannelWriteHalf, Sig};
use std::sync::Arc;
use tokio::sync::watch;

/// Exit status of OpenSSH for its own failures, as opposed to those of the command.
pub(crate) const INTERNAL_FAILURE: u32 = 255;
/// Data type of stderr in SSH (RFC 4254, `SSH_EXTENDED_DATA_STDERR`).
const STDERR: u32 = 1;

/// The channel or connection is closed.
#[derive(Debug)]
pub(crate) struct ClientGone;

/// Sends data and requests on one channel; blocks while the window of the client is full.
pub(crate) struct ChannelWriter {
    pub(crate) write: ChannelWriteHalf<Msg>,
    pub(crate) handle: Handle,
    pub(crate) flow: Arc<FlowControl>,
    /// Changes when the channel is closed.
    pub(crate) closed: watch::Receiver<()>,
    pub(crate) runtime: tokio::runtime::Handle,
}

impl ChannelWriter {
    /// Number of this SSH channel.
    pub(crate) fn id(&self) -> ChannelId {
        self.write.id()
    }

    /// Sends bytes of the stdout.
    pub(crate) fn write_stdout(&self, bytes: Vec<u8>) -> Result<(), ClientGone> {
        self.send(async { self.write.data_bytes(bytes).await.map_err(drop) })
    }

    /// Sends bytes of the stderr.
    pub(crate) fn write_stderr(&self, bytes: Vec<u8>) -> Result<(), ClientGone> {
        self.send(async { self.write.extended_data_bytes(STDERR, bytes).await.map_err(drop) })
    }

    /// Sends an error of msb as text on stderr.
    pub(crate) fn write_error(&self, error: &Error, tty: bool) -> Result<(), ClientGone> {
        let mut text = format!("msb: {}", error.message());
        for cause in error.causes() {
            text.push_str(&format!(": {cause}"));
        }
        if let Some(hint) = error.advice() {
            text.push_str(&format!("\n     {hint}"));
        }
        let clean = |c: &char| *c == '\n' || !c.is_control();
        let text: String = text.chars().filter(clean).chain(['\n']).collect();
        // The client's terminal is in raw mode while the session has one.
        self.write_stderr(if tty { text.replace('\n', "\r\n") } else { text }.into_bytes())
    }

    /// Sends end of file: no more output follows.
    pub(crate) fn send_eof(&self) -> Result<(), ClientGone> {
        self.send(async { self.write.eof().await.map_err(drop) })
    }

    /// Sends the exit of a command: status or signal.
    pub(crate) fn send_exit(&self, exit: &Exit) -> Result<(), ClientGone> {
        match (exit.ending, exit.signal) {
            (Ending::Own | Ending::Stopped, Some(number)) => {
                let (signal, empty) = (signal_of(number), String::new);
                self.send(self.handle.exit_signal_request(
                    self.id(),
                    signal,
                    false,
                    empty(),
                    empty(),
                ))
            }
            _ => self.send_status(u32::try_from(exit.status()).unwrap_or(INTERNAL_FAILURE)),
        }
    }

    /// Sends the exit status of a command.
    pub(crate) fn send_status(&self, code: u32) -> Result<(), ClientGone> {
        self.send(async { self.write.exit_status(code).await.map_err(drop) })
    }

    /// Closes the channel in both directions.
    pub(crate) fn close(&self) {
        let _ = self.send(async { self.write.close().await.map_err(drop) });
    }

    /// Runs a send unless the channel is closed before.
    fn send(&self, sending: impl Future<Output = Result<(), ()>>) -> Result<(), ClientGone> {
        let mut closed = self.closed.clone();
        self.flow.set_writing(self.id(), true);
        let sent = self.runtime.block_on(async {
            tokio::select! {
                biased;
                sent = sending => sent.map_err(|()| ClientGone),
                _ = closed.changed() => Err(ClientGone),
            }
        });
        self.flow.set_writing(self.id(), false);
        sent
    }
}

fn signal_of(number: i32) -> Sig {
    match NAMES.iter().find(|(signal, _)| *signal == number) {
        Some((_, "ABRT")) => Sig::ABRT,
        Some((_, "ALRM")) => Sig::ALRM,
        Some((_, "FPE")) => Sig::FPE,
        Some((_, "HUP")) => Sig::HUP,
        Some((_, "ILL")) => Sig::ILL,
        Some((_, "INT")) => Sig::INT,
        Some((_, "KILL")) => Sig::KILL,
        Some((_, "PIPE")) => Sig::PIPE,
        Some((_, "QUIT")) => Sig::QUIT,
        Some((_, "SEGV")) => Sig::SEGV,
        Some((_, "TERM")) => Sig::TERM,
        Some((_, "USR1")) => Sig::USR1,
        Some((_, name)) => Sig::Custom((*name).to_owned()),
        None => Sig::Custom(format!("{number}@msb")),
    }
}

/// Number of a signal that a client names; `None` if it is unknown.
pub(crate) fn number_of(signal: &Sig) -> Option<i32> {
    let name = match signal {
        Sig::ABRT => "ABRT",
        Sig::ALRM => "ALRM",
        Sig::FPE => "FPE",
        Sig::HUP => "HUP",
        Sig::ILL => "ILL",
        Sig::INT => "INT",
        Sig::KILL => "KILL",
        Sig::PIPE => "PIPE",
        Sig::QUIT => "QUIT",
        Sig::SEGV => "SEGV",
        Sig::TERM => "TERM",
        Sig::USR1 => "USR1",
        Sig::Custom(name) => name.trim_start_matches("SIG"),
    };
    NAMES.iter().find(|(_, known)| *known == name).map(|(number, _)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_round_trip() {
        for (number, _) in NAMES {
            assert_eq!(number_of(&signal_of(number)), Some(number));
        }
        assert_eq!(number_of(&Sig::Custom("UNKNOWN".to_owned())), None);
        assert_eq!(number_of(&Sig::Custom("SIGBUS".to_owned())), Some(7));
    }
}
