//! The diagnostic log: what `MSB_LOG` enables, as lines on stderr or in a file.
//!
//! Crates emit events and spans with the macros of `tracing`. Without `MSB_LOG` no subscriber is
//! installed, and each macro costs one comparison. Only events of msb's own crates are written:
//! libraries log headers and bodies, which have values of Secrets.
//!
//! A forked child writes nothing until it calls [`write_to`]: its descriptors may be closed, and
//! their numbers taken by other files.

mod destination;
mod filter;
mod line_subscriber;

pub use filter::LogFilter;

use destination::Destination;
use line_subscriber::LineSubscriber;
use msb_spec::{Error, Result, env, state};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Bytes that one process writes into the log of a sandbox at each start. At trace level a busy
/// gateway fills this in minutes; at debug level it lasts for days.
const DIRECTORY_LIMIT: u64 = 8 << 20;

/// Installs the log that `MSB_LOG` and `MSB_LOG_FILE` ask for. Without `MSB_LOG` it does nothing.
///
/// The error says what is wrong with a value. Call it once, before the first thread.
pub fn init() -> Result<()> {
    let Some(text) = std::env::var_os(env::LOG) else { return Ok(()) };
    let filter = LogFilter::parse(&text.to_string_lossy())
        .map_err(|error| error.under(format!("cannot use the value of `{}`", env::LOG)))?;
    if filter.is_off() {
        return Ok(());
    }
    let destination = match std::env::var_os(env::LOG_FILE).map(PathBuf::from) {
        Some(path) => Destination::named_file(append_to(&path).map_err(|error| {
            Error::host(format!("cannot open `{}`", path.display()), error)
                .under(format!("cannot use the value of `{}`", env::LOG_FILE))
        })?),
        None => Destination::stderr(),
    };
    LineSubscriber::install(filter, destination);
    Ok(())
}

/// Makes this process, which was forked, write into `debug.log` of a sandbox's directory, or on
/// into the file of `MSB_LOG_FILE`. Does nothing without `MSB_LOG`.
///
/// The file is opened here: a process that confines itself calls this before.
pub fn write_to(directory: &Path) -> Result<()> {
    let Some(log) = LineSubscriber::installed() else { return Ok(()) };
    log.with_destination(|destination| {
        if !destination.is_named_file() {
            let file = open_in(directory)
                .map_err(|error| Error::host("cannot open the log of the sandbox", error))?;
            *destination = Destination::bounded(file, DIRECTORY_LIMIT);
        }
        destination.adopt();
        Ok(())
    })
}

/// Takes the file of the parent over, in a forked child that keeps its descriptor open. Each
/// process may write as many bytes as the parent could.
pub fn adopt() {
    if let Some(log) = LineSubscriber::installed() {
        log.with_destination(Destination::adopt);
    }
}

/// The descriptor of the log file, for a process that closes all others.
pub fn descriptor() -> Option<BorrowedFd<'static>> {
    LineSubscriber::installed()?.with_destination(|destination| destination.descriptor())
}

/// Opens `debug.log`. A full one of an earlier start is renamed first; one old file is kept.
fn open_in(directory: &Path) -> io::Result<File> {
    let path = directory.join(state::DEBUG);
    if path.metadata().is_ok_and(|file| file.len() >= DIRECTORY_LIMIT) {
        std::fs::rename(&path, directory.join(format!("{}{}", state::DEBUG, state::ROTATED)))?;
    }
    append_to(&path)
}

/// Whole lines of several processes do not mix, because each is one `write` with `O_APPEND`.
fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

#[doc(hidden)]
pub use tracing;

/// Logs the error of a result that decides nothing, at level `warn`: something of the host stays
/// behind, or a limit does not hold.
///
/// `warn_on_failure!(fs::remove_dir_all(&old), "cannot remove the old directory")`
#[macro_export]
macro_rules! warn_on_failure {
    ($result:expr, $($message:tt)+) => {
        if let Err(error) = $result {
            $crate::tracing::warn!(%error, $($message)+);
        }
    };
}

/// Logs the error of a result that decides nothing, at level `debug`: it may be usual.
///
/// `debug_on_failure!(socket.set_nodelay(true), "cannot send small packets at once")`
#[macro_export]
macro_rules! debug_on_failure {
    ($result:expr, $($message:tt)+) => {
        if let Err(error) = $result {
            $crate::tracing::debug!(%error, $($message)+);
        }
    };
}
