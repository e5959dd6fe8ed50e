//! An SFTP server, version 3 (draft-ietf-secsh-filexfer-02), for `sftp`, `scp` and `sshfs`, with
//! the extensions of OpenSSH.
//!
//! It runs in a child that has switched to the user, inside the sandbox and under its rules, so no
//! path can lead out of it. Input is untrusted, and packets, open files and memory are bounded.
//! Names are bytes.

mod attributes;
mod extensions;
mod handles;
mod owners;
mod packet;
mod paths;
mod session;
mod status;
#[cfg(test)]
mod tests;

use packet::{MAX_PACKET, ReplyBuffer};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use session::SftpSession;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

/// Two packets of maximum length, so that one always fits behind the end of another.
const INPUT_BUFFER: usize = 2 * (MAX_PACKET + 4);
/// Bytes of replies that are buffered: about as much as a socket takes at once.
const FLUSH: usize = 192 << 10;

/// Serves until the client disconnects or violates the protocol. Writes have at most `max_write`
/// bytes.
pub(crate) fn serve(socket: BorrowedFd<'_>, max_write: usize, home: PathBuf) {
    let mut connection = SftpConnection { socket, max_write, out: ReplyBuffer::default() };
    let mut session = SftpSession::new(home, socket);
    // The client has disconnected.
    let _ = connection.run(&mut session);
}

struct SftpConnection<'a> {
    socket: BorrowedFd<'a>,
    max_write: usize,
    out: ReplyBuffer,
}

impl SftpConnection<'_> {
    fn run(&mut self, session: &mut SftpSession<'_>) -> rustix::io::Result<()> {
        let mut input = vec![0; INPUT_BUFFER];
        let (mut start, mut end) = (0, 0);
        loop {
            while let Some(packet) = match first_packet(&input[start..end]) {
                Ok(packet) => packet,
                Err(PacketTooLong) => return self.flush(),
            } {
                start += 4 + packet.len();
                if !session.answer(packet, &mut self.out) {
                    return self.flush();
                }
                if self.out.len() >= FLUSH {
                    self.flush()?;
                }
            }
            if start == end {
                (start, end) = (0, 0);
            } else if input.len() - start < MAX_PACKET + 4 {
                input.copy_within(start..end, 0);
                (start, end) = (0, end - start);
            }
            match self.receive(&mut input[end..])? {
                0 => return self.flush(),
                n => end += n,
            }
        }
    }

    /// Reads more input; sends buffered replies before it blocks.
    fn receive(&mut self, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        let mut flags = RecvFlags::DONTWAIT;
        loop {
            match rustix::net::recv(self.socket, &mut *buffer, flags) {
                Ok((n, _)) => return Ok(n),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if flags.contains(RecvFlags::DONTWAIT) => {
                    self.flush()?;
                    flags = RecvFlags::empty();
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn flush(&mut self) -> rustix::io::Result<()> {
        for piece in self.out.bytes().chunks(self.max_write) {
            let mut rest = piece;
            while !rest.is_empty() {
                match rustix::net::send(self.socket.as_fd(), rest, SendFlags::NOSIGNAL) {
                    Ok(n) => rest = &rest[n..],
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        self.out.clear();
        Ok(())
    }
}

/// A packet beyond the maximum length; the next one cannot be found.
struct PacketTooLong;

/// The first complete packet in these bytes.
fn first_packet(bytes: &[u8]) -> Result<Option<&[u8]>, PacketTooLong> {
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    match length {
        1..=MAX_PACKET => Ok(rest.get(..length)),
        _ => Err(PacketTooLong),
    }
}
