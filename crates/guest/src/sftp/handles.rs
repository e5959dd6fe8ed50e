//! Open files of a session. Closed handles are never reused.

use super::status::{SftpError, StatusCode};
use rustix::fs::Dir;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

/// Open handles at once. Clients copy a few files at a time, and a process may usually have 1,024
/// open files.
pub(super) const MAX_HANDLES: usize = 256;

/// An open file or directory.
#[derive(Debug)]
pub(super) enum OpenHandle {
    File(File),
    /// A directory, and whether it was listed to its end.
    Directory(Dir, bool),
}

#[derive(Debug, Default)]
pub(super) struct Handles {
    slots: Vec<(u32, Option<OpenHandle>)>,
}

impl Handles {
    /// Fails if the maximum is reached.
    pub(super) fn check_room(&self) -> Result<(), SftpError> {
        let open = self.slots.iter().filter(|(_, open)| open.is_some()).count();
        match open < MAX_HANDLES {
            true => Ok(()),
            false => Err(SftpError::new(StatusCode::Failure, "Too many open handles")),
        }
    }

    /// Adds it and returns its handle.
    pub(super) fn add(&mut self, open: OpenHandle) -> [u8; 8] {
        let free = self.slots.iter().position(|(_, open)| open.is_none());
        let index = free.unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        slot.0 = slot.0.wrapping_add(1);
        slot.1 = Some(open);
        let index = u32::try_from(index).expect("there are few places");
        let mut handle = [0; 8];
        handle[..4].copy_from_slice(&index.to_be_bytes());
        handle[4..].copy_from_slice(&slot.0.to_be_bytes());
        handle
    }

    fn slot(&mut self, handle: &[u8]) -> Result<&mut Option<OpenHandle>, SftpError> {
        let handle: [u8; 8] = handle.try_into().map_err(|_| SftpError::no_handle())?;
        let number = u64::from_be_bytes(handle);
        let slot = self.slots.get_mut((number >> 32) as usize);
        let slot = slot.filter(|(generation, open)| *generation == number as u32 && open.is_some());
        slot.map(|(_, open)| open).ok_or(SftpError::no_handle())
    }

    pub(super) fn remove(&mut self, handle: &[u8]) -> Result<OpenHandle, SftpError> {
        self.slot(handle)?.take().ok_or(SftpError::no_handle())
    }

    fn get(&mut self, handle: &[u8]) -> Result<&mut OpenHandle, SftpError> {
        self.slot(handle)?.as_mut().ok_or(SftpError::no_handle())
    }

    /// The open file; fails for a directory.
    pub(super) fn file(&mut self, handle: &[u8]) -> Result<&File, SftpError> {
        match self.get(handle)? {
            OpenHandle::File(file) => Ok(file),
            OpenHandle::Directory(..) => Err(SftpError::no_handle()),
        }
    }

    pub(super) fn directory(&mut self, handle: &[u8]) -> Result<(&mut Dir, &mut bool), SftpError> {
        match self.get(handle)? {
            OpenHandle::Directory(directory, at_end) => Ok((directory, at_end)),
            OpenHandle::File(_) => Err(SftpError::no_handle()),
        }
    }

    /// The descriptor of a file or directory.
    pub(super) fn descriptor(&mut self, handle: &[u8]) -> Result<BorrowedFd<'_>, SftpError> {
        match self.get(handle)? {
            OpenHandle::File(file) => Ok((*file).as_fd()),
            OpenHandle::Directory(directory, _) => Ok(directory.fd()?),
        }
    }
}
