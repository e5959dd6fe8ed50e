//! The network device of a microVM: packets go to the gateway and come from it unchanged.

use msb_krun::backends::net::{NetBackend, ReadError, WriteError};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Socket to the gateway: one message is one packet behind its `virtio_net_hdr`.
#[derive(Debug)]
pub(crate) struct GatewaySocket(pub(crate) OwnedFd);

impl NetBackend for GatewaySocket {
    fn read_frame(&mut self, buffer: &mut [u8]) -> Result<usize, ReadError> {
        match rustix::net::recv(&self.0, buffer, RecvFlags::DONTWAIT) {
            // The VMM polls edge-triggered: after an end of file nothing more is read.
            Ok((0, _)) | Err(_) => Err(ReadError::NothingRead),
            Ok((length, _)) => Ok(length),
        }
    }

    fn write_frame(&mut self, _header: usize, frame: &mut [u8]) -> Result<(), WriteError> {
        match rustix::net::send(&self.0, frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => Ok(()),
            Err(Errno::AGAIN) => Err(WriteError::NothingWritten),
            // The packet is too long or the gateway has gone: networks may lose packets.
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
