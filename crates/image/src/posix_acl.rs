//! POSIX ACLs name users and groups by id. A copy with an id mapping needs mapped ACLs.

use crate::build::{Attributes, chosen_attributes};
use std::io;
use std::os::fd::BorrowedFd;

/// Extended attributes with ACLs: of a file, and the default of a directory.
const ACL_XATTRS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// Layout of an ACL: a version, then entries of tag, permissions and id.
const HEADER: usize = 4;
const ENTRY: usize = 8;
/// Tags of entries for a named user or group. Others are the owner, the group, others and the mask.
const NAMED_TAGS: [u16; 2] = [0x02, 0x08];

/// `user.` attributes and ACLs of an open file, with every id in an ACL mapped by `map_id`.
pub(crate) fn xattrs_with_acls(
    file: BorrowedFd<'_>,
    map_id: impl Fn(u32) -> u32,
) -> io::Result<Attributes> {
    let wanted = |name: &str| name.starts_with("user.") || ACL_XATTRS.contains(&name);
    let mut attributes = chosen_attributes(file, wanted)?;
    for (_, list) in attributes.iter_mut().filter(|(name, _)| ACL_XATTRS.contains(&name.as_str())) {
        map_ids(list, &map_id);
    }
    Ok(attributes)
}

fn map_ids(list: &mut [u8], map_id: impl Fn(u32) -> u32) {
    let entries = list.get_mut(HEADER..).unwrap_or_default().chunks_exact_mut(ENTRY);
    for entry in entries {
        let kind = u16::from_le_bytes([entry[0], entry[1]]);
        if NAMED_TAGS.contains(&kind) {
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            entry[4..].copy_from_slice(&map_id(id).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_users_and_groups_are_mapped() {
        let entry = |kind: u16, id: u32| {
            [&kind.to_le_bytes()[..], &6u16.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let list = |user: u32, group: u32| {
            let entries = [entry(1, u32::MAX), entry(2, user), entry(8, group), entry(16, 7)];
            [&2u32.to_le_bytes()[..], &entries.concat()].concat()
        };
        let mut value = list(33, 44);
        map_ids(&mut value, |id| id + 1000);
        assert_eq!(value, list(1033, 1044));
        // Values of any length are safe.
        for odd in [&[][..], &[2], &[2, 0, 0, 0, 2, 0, 1]] {
            let mut value = odd.to_vec();
            map_ids(&mut value, |id| id + 1);
            assert_eq!(value, odd);
        }
    }
}
