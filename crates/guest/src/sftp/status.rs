//! How a request ended, in the few words that version 3 has.

use rustix::io::Errno;
use std::borrow::Cow;
use std::io;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Status {
    Ok = 0,
    Eof = 1,
    NoSuchFile = 2,
    PermissionDenied = 3,
    Failure = 4,
    BadMessage = 5,
    Unsupported = 8,
}

/// A request that was not done, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) status: Status,
    pub(super) text: Cow<'static, str>,
}

impl Refused {
    pub(super) const fn new(status: Status, text: &'static str) -> Self {
        Self { status, text: Cow::Borrowed(text) }
    }

    pub(super) const fn malformed() -> Self {
        Self::new(Status::BadMessage, "Bad message")
    }

    pub(super) const fn eof() -> Self {
        Self::new(Status::Eof, "End of file")
    }

    pub(super) const fn unsupported() -> Self {
        Self::new(Status::Unsupported, "Operation unsupported")
    }

    pub(super) const fn no_handle() -> Self {
        Self::new(Status::Failure, "No such handle")
    }
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        let errno = error.raw_os_error().map(Errno::from_raw_os_error);
        errno.map_or(Self::new(Status::Failure, "Failure"), Self::from)
    }
}

impl From<Errno> for Refused {
    /// As OpenSSH tells them apart.
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::BADF | Errno::LOOP => {
                Self::new(Status::NoSuchFile, "No such file")
            }
            Errno::PERM | Errno::ACCESS | Errno::FAULT => {
                Self::new(Status::PermissionDenied, "Permission denied")
            }
            Errno::NAMETOOLONG | Errno::INVAL => Self::malformed(),
            Errno::NOSYS | Errno::OPNOTSUPP => Self::unsupported(),
            other => {
                let text = io::Error::from(other).to_string();
                let text = text.split(" (os error ").next().unwrap_or_default().to_owned();
                Self { status: Status::Failure, text: Cow::Owned(text) }
            }
        }
    }
}
