//! What a session has open. A handle that was closed is never one that was opened later.

use super::status::{Refused, Status};
use rustix::fs::Dir;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

/// Most that are open at once. Clients copy one file at a time or a few; the limit of open files
/// of a process is 1,024 nearly everywhere.
pub(super) const MOST: usize = 256;

/// Something that is open.
#[derive(Debug)]
pub(super) enum Open {
    File(File),
    /// A directory, and whether all of it was told.
    Directory(Dir, bool),
}

#[derive(Debug, Default)]
pub(super) struct Handles {
    places: Vec<(u32, Option<Open>)>,
}

impl Handles {
    /// Whether there is room for one more.
    pub(super) fn check_room(&self) -> Result<(), Refused> {
        let open = self.places.iter().filter(|(_, open)| open.is_some()).count();
        match open < MOST {
            true => Ok(()),
            false => Err(Refused::new(Status::Failure, "Too many open handles")),
        }
    }

    /// Its handle.
    pub(super) fn add(&mut self, open: Open) -> [u8; 8] {
        let free = self.places.iter().position(|(_, open)| open.is_none());
        let index = free.unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() - 1
        });
        let place = &mut self.places[index];
        place.0 = place.0.wrapping_add(1);
        place.1 = Some(open);
        let index = u32::try_from(index).expect("there are few places");
        let mut handle = [0; 8];
        handle[..4].copy_from_slice(&index.to_be_bytes());
        handle[4..].copy_from_slice(&place.0.to_be_bytes());
        handle
    }

    fn place(&mut self, handle: &[u8]) -> Result<&mut Option<Open>, Refused> {
        let handle: [u8; 8] = handle.try_into().map_err(|_| Refused::no_handle())?;
        let number = u64::from_be_bytes(handle);
        let place = self.places.get_mut((number >> 32) as usize);
        let place = place.filter(|(turn, open)| *turn == number as u32 && open.is_some());
        place.map(|(_, open)| open).ok_or(Refused::no_handle())
    }

    pub(super) fn remove(&mut self, handle: &[u8]) -> Result<Open, Refused> {
        self.place(handle)?.take().ok_or(Refused::no_handle())
    }

    fn get(&mut self, handle: &[u8]) -> Result<&mut Open, Refused> {
        self.place(handle)?.as_mut().ok_or(Refused::no_handle())
    }

    /// A file; a directory is none.
    pub(super) fn file(&mut self, handle: &[u8]) -> Result<&File, Refused> {
        match self.get(handle)? {
            Open::File(file) => Ok(file),
            Open::Directory(..) => Err(Refused::no_handle()),
        }
    }

    pub(super) fn directory(&mut self, handle: &[u8]) -> Result<(&mut Dir, &mut bool), Refused> {
        match self.get(handle)? {
            Open::Directory(directory, told) => Ok((directory, told)),
            Open::File(_) => Err(Refused::no_handle()),
        }
    }

    /// The descriptor of either.
    pub(super) fn descriptor(&mut self, handle: &[u8]) -> Result<BorrowedFd<'_>, Refused> {
        match self.get(handle)? {
            Open::File(file) => Ok((*file).as_fd()),
            Open::Directory(directory, _) => Ok(directory.fd()?),
        }
    }
}
