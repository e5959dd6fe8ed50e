//! The speaking side of a channel, for threads.

use crate::gate::Gate;
use msb_spec::{Ending, Error, Exit};
use russh::server::{Handle, Msg};
use russh::{ChannelId, ChannelWriteHalf, Sig};
use std::sync::Arc;
use tokio::sync::watch;

/// What OpenSSH says when it failed itself, and not the command.
pub(crate) const OUR_FAILURE: u32 = 255;
/// The number that SSH has for stderr.
const STDERR: u32 = 1;

/// The client does not listen any more.
#[derive(Debug)]
pub(crate) struct Gone;

/// Tells a client something on one channel; waits while the client takes nothing.
pub(crate) struct Out {
    pub(crate) write: ChannelWriteHalf<Msg>,
    pub(crate) handle: Handle,
    pub(crate) gate: Arc<Gate>,
    /// Changes when the channel is over.
    pub(crate) over: watch::Receiver<()>,
    pub(crate) runtime: tokio::runtime::Handle,
}

impl Out {
    /// Which channel it is.
    pub(crate) fn id(&self) -> ChannelId {
        self.write.id()
    }

    /// Output.
    pub(crate) fn say(&self, bytes: Vec<u8>) -> Result<(), Gone> {
        self.send(async { self.write.data_bytes(bytes).await.map_err(drop) })
    }

    /// Output of the other kind.
    pub(crate) fn complain(&self, bytes: Vec<u8>) -> Result<(), Gone> {
        self.send(async { self.write.extended_data_bytes(STDERR, bytes).await.map_err(drop) })
    }

    /// An error of ours, as a person reads it, on stderr.
    pub(crate) fn tell(&self, error: &Error, tty: bool) -> Result<(), Gone> {
        let mut text = format!("msb: {}", error.message());
        for cause in error.causes() {
            text.push_str(&format!(": {cause}"));
        }
        if let Some(hint) = error.advice() {
            text.push_str(&format!("\n     {hint}"));
        }
        let clean = |c: &char| *c == '\n' || !c.is_control();
        let text: String = text.chars().filter(clean).chain(['\n']).collect();
        // The client's terminal is raw while it has one with us.
        self.complain(if tty { text.replace('\n', "\r\n") } else { text }.into_bytes())
    }

    /// No more output will come.
    pub(crate) fn eof(&self) -> Result<(), Gone> {
        self.send(async { self.write.eof().await.map_err(drop) })
    }

    /// How the command ended.
    pub(crate) fn ended(&self, exit: &Exit) -> Result<(), Gone> {
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
            _ => self.status(u32::try_from(exit.status()).unwrap_or(OUR_FAILURE)),
        }
    }

    /// The exit code of the command.
    pub(crate) fn status(&self, code: u32) -> Result<(), Gone> {
        self.send(async { self.write.exit_status(code).await.map_err(drop) })
    }

    /// Nothing more will come or be taken.
    pub(crate) fn close(&self) {
        let _ = self.send(async { self.write.close().await.map_err(drop) });
    }

    /// Does it unless the channel is over before.
    fn send(&self, sending: impl Future<Output = Result<(), ()>>) -> Result<(), Gone> {
        let mut over = self.over.clone();
        self.gate.speaks(self.id(), true);
        let sent = self.runtime.block_on(async {
            tokio::select! {
                biased;
                sent = sending => sent.map_err(|()| Gone),
                _ = over.changed() => Err(Gone),
            }
        });
        self.gate.speaks(self.id(), false);
        sent
    }
}

/// Signals by their names in SSH, which are those of this system.
const SIGNALS: [(i32, &str); 16] = [
    (1, "HUP"),
    (2, "INT"),
    (3, "QUIT"),
    (4, "ILL"),
    (5, "TRAP"),
    (6, "ABRT"),
    (7, "BUS"),
    (8, "FPE"),
    (9, "KILL"),
    (10, "USR1"),
    (11, "SEGV"),
    (12, "USR2"),
    (13, "PIPE"),
    (14, "ALRM"),
    (15, "TERM"),
    (24, "XCPU"),
];

fn signal_of(number: i32) -> Sig {
    match SIGNALS.iter().find(|(signal, _)| *signal == number) {
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

/// The number of a signal that a client asks for.
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
    SIGNALS.iter().find(|(_, known)| *known == name).map(|(number, _)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_go_both_ways() {
        for (number, _) in SIGNALS {
            assert_eq!(number_of(&signal_of(number)), Some(number));
        }
        assert_eq!(number_of(&Sig::Custom("WINCH".to_owned())), None);
        assert_eq!(number_of(&Sig::Custom("SIGBUS".to_owned())), Some(7));
    }
}
