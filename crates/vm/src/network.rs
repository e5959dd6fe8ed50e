//! The network device of a machine: every packet goes to its gateway as it is and comes from there.

use msb_krun::backends::net::{NetBackend, ReadError, WriteError};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// The socket to the gateway: a message is a packet, behind the header that guest and host share.
#[derive(Debug)]
pub(crate) struct Frames(pub(crate) OwnedFd);

impl NetBackend for Frames {
    fn read_frame(&mut self, buffer: &mut [u8]) -> Result<usize, ReadError> {
        match rustix::net::recv(&self.0, buffer, RecvFlags::DONTWAIT) {
            // An end is told once, because the VMM waits for changes: then nothing comes any more.
            Ok((0, _)) | Err(_) => Err(ReadError::NothingRead),
            Ok((length, _)) => Ok(length),
        }
    }

    fn write_frame(&mut self, _header: usize, frame: &mut [u8]) -> Result<(), WriteError> {
        match rustix::net::send(&self.0, frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => Ok(()),
            Err(Errno::AGAIN) => Err(WriteError::NothingWritten),
            // Too long, or nobody is there: a network may lose packets.
            Err(_) => Ok(()),
        }
    }

    fn has_unfinished_write(&self) -> bool {
        false
    }

    fn try_finish_write(&mut self, _header: usize, _frame: &[u8]) -> Result<(), WriteError> {
        Ok(())
    }

    fn raw_socket_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
