//! SFTP, version 3: what `sftp`, `scp`, `sshfs` and their like speak (draft-ietf-secsh-filexfer-02),
//! with the extensions that OpenSSH's own clients use.
//!
//! Runs in a process of its own that has become the user, inside the sandbox and under its rules,
//! so that no path can lead out of it. Nothing that arrives is believed, and everything is
//! bounded: packets, open files, what is kept in memory. Names are bytes.

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

use packet::{MAX_PACKET, Out};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use session::Session;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

/// Two packets of any length, so that there is always room for one behind the end of another.
const ROOM: usize = 2 * (MAX_PACKET + 4);
/// Answers are gathered up to here: about as much as a socket takes at once.
const FLUSH: usize = 192 << 10;

/// Speaks until the other side has gone or breaks the rules. The connection takes no more than
/// `most` bytes at once.
pub(crate) fn serve(socket: BorrowedFd<'_>, most: usize, home: PathBuf) {
    let mut connection = Connection { socket, most, out: Out::default() };
    let mut session = Session::new(home, socket);
    // It has gone: there is nobody left to tell.
    let _ = connection.run(&mut session);
}

struct Connection<'a> {
    socket: BorrowedFd<'a>,
    most: usize,
    out: Out,
}

impl Connection<'_> {
    fn run(&mut self, session: &mut Session<'_>) -> rustix::io::Result<()> {
        let mut input = vec![0; ROOM];
        let (mut start, mut end) = (0, 0);
        loop {
            while let Some(packet) = match whole(&input[start..end]) {
                Ok(packet) => packet,
                Err(TooLong) => return self.flush(),
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

    /// Waits for more, and answers first if there is nothing more yet.
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
        for piece in self.out.bytes().chunks(self.most) {
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

/// A packet that nobody may send; there is no way to find the next.
struct TooLong;

/// The packet that these bytes begin with, once it is there.
fn whole(bytes: &[u8]) -> Result<Option<&[u8]>, TooLong> {
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    match length {
        1..=MAX_PACKET => Ok(rest.get(..length)),
        _ => Err(TooLong),
    }
}
