//! Status replies of SFTP version 3.

use rustix::io::Errno;
use std::borrow::Cow;
use std::io;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum StatusCode {
    Ok = 0,
    Eof = 1,
    NoSuchFile = 2,
    PermissionDenied = 3,
    Failure = 4,
    BadMessage = 5,
    Unsupported = 8,
}

/// Why a request has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SftpError {
    pub(super) status: StatusCode,
    pub(super) text: Cow<'static, str>,
}

impl SftpError {
    pub(super) const fn new(status: StatusCode, text: &'static str) -> Self {
        Self { status, text: Cow::Borrowed(text) }
    }

    pub(super) const fn malformed() -> Self {
        Self::new(StatusCode::BadMessage, "Bad message")
    }

    pub(super) const fn eof() -> Self {
        Self::new(StatusCode::Eof, "End of file")
    }

    pub(super) const fn unsupported() -> Self {
        Self::new(StatusCode::Unsupported, "Operation unsupported")
    }

    pub(super) const fn no_handle() -> Self {
        Self::new(StatusCode::Failure, "No such handle")
    }
}

impl From<io::Error> for SftpError {
    fn from(error: io::Error) -> Self {
        let errno = error.raw_os_error().map(Errno::from_raw_os_error);
        errno.map_or(Self::new(StatusCode::Failure, "Failure"), Self::from)
    }
}

impl From<Errno> for SftpError {
    /// Maps an errno as OpenSSH does.
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::BADF | Errno::LOOP => {
                Self::new(StatusCode::NoSuchFile, "No such file")
            }
            Errno::PERM | Errno::ACCESS | Errno::FAULT => {
                Self::new(StatusCode::PermissionDenied, "Permission denied")
            }
            Errno::NAMETOOLONG | Errno::INVAL => Self::malformed(),
            Errno::NOSYS | Errno::OPNOTSUPP => Self::unsupported(),
            other => {
                let text = io::Error::from(other).to_string();
                let text = text.split(" (os error ").next().unwrap_or_default().to_owned();
                Self { status: StatusCode::Failure, text: Cow::Owned(text) }
            }
        }
    }
}
