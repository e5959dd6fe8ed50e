//! Which host ids stand behind the ids inside a sandbox.

use serde::{Deserialize, Serialize};

/// A run of host ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// The first id on the host.
    pub start: u32,
    /// How many follow.
    pub count: u32,
}

/// How ids inside map to ids of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "map")]
pub enum Ids {
    /// Only root exists inside, and is this user outside. Changes of owner and user are answered
    /// with success and do nothing, so that package managers work.
    Single {
        /// The host user.
        uid: u32,
        /// The host group.
        gid: u32,
    },
    /// Root inside is this user; the other ids are the ones /etc/subuid and /etc/subgid grant.
    Subordinate {
        /// The host user.
        uid: u32,
        /// The host group.
        gid: u32,
        /// Host ids of users 1 and up.
        uids: IdRange,
        /// Host ids of groups 1 and up.
        gids: IdRange,
    },
    /// msb runs as root: every id inside, root too, is an unused id of the host.
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

    /// The host uid and gid behind root inside.
    pub fn root(&self) -> (u32, u32) {
        match *self {
            Self::Single { uid, gid } | Self::Subordinate { uid, gid, .. } => (uid, gid),
            Self::Shifted { range } => (range.start, range.start),
        }
    }
}
