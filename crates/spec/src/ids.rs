//! Id mappings: host ids behind the ids inside a sandbox.

use serde::{Deserialize, Serialize};

/// A range of consecutive host ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// The first id on the host.
    pub start: u32,
    /// Number of ids in the range.
    pub count: u32,
}

/// Mapping of ids inside to host ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "map")]
pub enum Ids {
    /// Only root exists inside, mapped to this user. `chown` and `setuid` to other ids return
    /// success and do nothing, so that package managers work.
    Single {
        /// User id on the host.
        uid: u32,
        /// Group id on the host.
        gid: u32,
    },
    /// Root inside is mapped to this user; the other ids are those granted by /etc/subuid and
    /// /etc/subgid.
    Subordinate {
        /// User id on the host.
        uid: u32,
        /// Group id on the host.
        gid: u32,
        /// Host ids of users 1 and up.
        uids: IdRange,
        /// Host ids of groups 1 and up.
        gids: IdRange,
    },
    /// msb runs as root: all ids inside, root too, are mapped to unused host ids.
    Shifted {
        /// Host ids of users and groups 0 and up.
        range: IdRange,
    },
}

impl Ids {
    /// Whether users other than root can exist inside.
    pub fn many(&self) -> bool {
        !matches!(self, Self::Single { .. })
    }

    /// Host uid and gid of root inside.
    pub fn root(&self) -> (u32, u32) {
        match *self {
            Self::Single { uid, gid } | Self::Subordinate { uid, gid, .. } => (uid, gid),
            Self::Shifted { range } => (range.start, range.start),
        }
    }
}
