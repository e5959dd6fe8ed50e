//! Access control lists, which name users and groups by number: a copy for other ids has others.

use crate::build::{Attributes, chosen_attributes};
use std::io;
use std::os::fd::BorrowedFd;

/// The attributes that hold them, of a file and of what is made in a directory.
const NAMES: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// The version is the first number; each entry has a kind, its rights and an id.
const HEADER: usize = 4;
const ENTRY: usize = 8;
/// Entries that name somebody; the others are the owner, its group, the rest and the mask.
const NAMED: [u16; 2] = [0x02, 0x08];

/// What users have written about something that is open: attributes of theirs, and lists with every
/// id as `own` makes it.
pub(crate) fn with_lists(file: BorrowedFd<'_>, own: impl Fn(u32) -> u32) -> io::Result<Attributes> {
    let wanted = |name: &str| name.starts_with("user.") || NAMES.contains(&name);
    let mut attributes = chosen_attributes(file, wanted)?;
    for (_, list) in attributes.iter_mut().filter(|(name, _)| NAMES.contains(&name.as_str())) {
        renumber(list, &own);
    }
    Ok(attributes)
}

fn renumber(list: &mut [u8], own: impl Fn(u32) -> u32) {
    let entries = list.get_mut(HEADER..).unwrap_or_default().chunks_exact_mut(ENTRY);
    for entry in entries {
        let kind = u16::from_le_bytes([entry[0], entry[1]]);
        if NAMED.contains(&kind) {
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            entry[4..].copy_from_slice(&own(id).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_of_somebody_named_become_others() {
        let entry = |kind: u16, id: u32| {
            [&kind.to_le_bytes()[..], &6u16.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let list = |user: u32, group: u32| {
            let entries = [entry(1, u32::MAX), entry(2, user), entry(8, group), entry(16, 7)];
            [&2u32.to_le_bytes()[..], &entries.concat()].concat()
        };
        let mut value = list(33, 44);
        renumber(&mut value, |id| id + 1000);
        assert_eq!(value, list(1033, 1044));
        // Whatever is there, and however long.
        for odd in [&[][..], &[2], &[2, 0, 0, 0, 2, 0, 1]] {
            let mut value = odd.to_vec();
            renumber(&mut value, |id| id + 1);
            assert_eq!(value, odd);
        }
    }
}
