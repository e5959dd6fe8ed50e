//! Children: sandboxes that are created on request of a sandbox, within a budget.

use crate::{Bytes, Cpus, DomainName, Error, ImageRef, Name, Result, Span};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Deepest generation of children: children of children have none.
pub const DEEPEST: u32 = 2;

/// Budget for the children of a sandbox. A sandbox without one has no children.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct SpawnPolicy {
    /// Limit of children at one time; default 3.
    pub max_concurrent: u32,
    /// Limit of children over its whole life; default 10.
    pub max_total: u32,
    /// CPUs of all descendants together; default 6.
    pub cpus: Cpus,
    /// Memory of all descendants together; default 1536 MiB.
    pub memory: Bytes,
    /// CPUs of each child; default 2.
    pub child_cpus: Cpus,
    /// Memory of each child; default 512 MiB.
    pub child_memory: Bytes,
    /// Images that children may start from, the default one first; empty allows the image of the
    /// parent.
    pub images: Vec<ImageRef>,
    /// Life time of a child; default 5 minutes. `None` is that of its parent.
    pub ttl: Option<Span>,
    /// Whether children may have children, with half of this budget.
    pub child_can_spawn: bool,
    /// Which members of the family reach each other.
    pub peers: Peers,
    /// Network access of children to the outside.
    pub net: WayOut,
    /// Whether ports of children may be published.
    pub ports: bool,
}

/// Which members of a family reach each other, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Peers {
    /// No members reach each other.
    None,
    /// A sandbox and all its descendants reach each other.
    #[default]
    Family,
    /// All peers of the parent: its family, or the members of the named network that it joined.
    All,
}

/// Network access of a child to the outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WayOut {
    /// No access to the outside.
    #[default]
    None,
    /// The rules with which its parent was created.
    Parent,
}

impl Default for SpawnPolicy {
    fn default() -> Self {
        Self {
            max_concurrent: 3,
            max_total: 10,
            cpus: Cpus::whole(6),
            memory: Bytes::mib(1536),
            child_cpus: Cpus::whole(2),
            child_memory: Bytes::mib(512),
            images: Vec::new(),
            ttl: Some(Span(Duration::from_secs(300))),
            child_can_spawn: false,
            peers: Peers::Family,
            net: WayOut::None,
            ports: false,
        }
    }
}

/// Least memory of a sandbox: with less, hardly a shell runs.
const MIN_MEMORY: Bytes = Bytes::mib(64);

impl SpawnPolicy {
    /// Parses `default`, or the differences from it: `max=5,ttl=10m,image=python,nested`.
    pub fn parse(text: &str) -> Result<Self> {
        let mut policy = Self::default();
        for word in text.split(',').map(str::trim).filter(|word| *word != "default") {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let number =
                || value.parse().map_err(|_| Error::invalid(format!("not a number: `{value}`")));
            match (key, value) {
                ("max", _) => policy.max_concurrent = number()?,
                ("total", _) => policy.max_total = number()?,
                ("cpus", _) => policy.cpus = Cpus::parse(value)?,
                ("memory", _) => policy.memory = Bytes::parse_size(value)?,
                ("child-cpus", _) => policy.child_cpus = Cpus::parse(value)?,
                ("child-memory", _) => policy.child_memory = Bytes::parse_size(value)?,
                ("image", _) => policy.images.push(ImageRef::parse(value)?),
                ("ttl", "none") => policy.ttl = None,
                ("ttl", _) => policy.ttl = Some(Span::parse(value)?),
                ("nested", "") => policy.child_can_spawn = true,
                ("peers", "family") => policy.peers = Peers::Family,
                ("peers", "none") => policy.peers = Peers::None,
                ("peers", "all") => policy.peers = Peers::All,
                ("net", "parent") => policy.net = WayOut::Parent,
                ("net", "none") => policy.net = WayOut::None,
                ("ports", "") => policy.ports = true,
                _ => return Err(unknown_key(word)),
            }
        }
        policy.check().map(|()| policy)
    }

    /// Checks that at least one child is possible.
    pub fn check(&self) -> Result<()> {
        let none = self.max_concurrent == 0 || self.max_total == 0;
        if none || self.child_memory < MIN_MEMORY || self.memory < MIN_MEMORY {
            return Err(Error::invalid("the spawn policy allows no child").hint(format!(
                "leave it out, or allow at least one child with {MIN_MEMORY} of memory"
            )));
        }
        Ok(())
    }

    /// CPUs and memory of a child: the request, capped at the limits of the policy.
    pub fn share(&self, cpus: Option<Cpus>, memory: Option<Bytes>) -> Result<(Cpus, Bytes)> {
        if memory.is_some_and(|memory| memory < MIN_MEMORY) {
            return Err(Error::invalid("too little memory for a sandbox")
                .hint(format!("{MIN_MEMORY} is the least")));
        }
        let cpus = cpus.map_or(self.child_cpus, |cpus| cpus.min(self.child_cpus));
        Ok((cpus, memory.map_or(self.child_memory, |memory| memory.min(self.child_memory))))
    }

    /// Policy of a child: half of this one; `None` if it may have no children.
    pub fn for_child(&self, generation: u32) -> Option<Self> {
        let half = |number: u32| (number / 2).max(1);
        (self.child_can_spawn && generation < DEEPEST).then(|| Self {
            max_concurrent: half(self.max_concurrent),
            max_total: half(self.max_total),
            cpus: Cpus { millis: (self.cpus.millis / 2).max(1000) },
            memory: Bytes((self.memory.0 / 2).max(Bytes::mib(128).0)),
            child_can_spawn: false,
            ..self.clone()
        })
    }
}

fn unknown_key(word: &str) -> Error {
    Error::invalid(format!("not a setting of a spawn policy: `{word}`")).hint(
        "it has `max=`, `total=`, `cpus=`, `memory=`, `child-cpus=`, `child-memory=`, `image=`, \
         `ttl=`, `nested`, `peers=family|none`, `net=none|parent` and `ports`, with commas between",
    )
}

impl std::str::FromStr for SpawnPolicy {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

/// Relation of a child sandbox to its parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Family {
    /// Sandbox that it was created for.
    pub parent: Name,
    /// Name that its parent chose from inside, if any. Only the parent knows it.
    #[serde(default)]
    pub alias: Option<Name>,
    /// Id of the parent's incarnation: a reset parent has another one.
    pub life: String,
    /// Distance to a sandbox without a parent.
    pub generation: u32,
    /// Network that it shares with its family; `None` if members do not reach each other.
    #[serde(default)]
    pub network: Option<FamilyNetwork>,
    /// Network access of the child to the outside.
    #[serde(default)]
    pub net: WayOut,
    /// Whether its ports may be published.
    #[serde(default)]
    pub ports: bool,
}

/// Network of a sandbox and all its descendants. Other sandboxes cannot join it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FamilyNetwork {
    /// The topmost sandbox of the family.
    pub root: Name,
    /// Creation time of `root` in milliseconds since 1970: a later sandbox of that name has another
    /// network.
    pub since: u64,
}

impl FamilyNetwork {
    /// Name of its directory, beside those of named networks. No valid name begins with a dot.
    pub fn directory(&self) -> String {
        format!(".{}-{}", self.root, self.since)
    }

    /// Whether a sandbox gets a host name there. Names of children may come from inside: one with a
    /// dot could pose as a host of the internet.
    pub fn admits(name: &Name) -> bool {
        !name.as_str().contains('.') && DomainName::parse(name.as_str()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_parsed_from_its_differences() {
        assert_eq!(SpawnPolicy::parse("default").unwrap(), SpawnPolicy::default());
        let text = "max=5, total=50,cpus=1.5,memory=1G,child-cpus=1,child-memory=64M,image=host,\
                    image=python,ttl=2s,nested";
        let policy = SpawnPolicy::parse(text).unwrap();
        assert_eq!((policy.max_concurrent, policy.max_total), (5, 50));
        assert_eq!((policy.cpus, policy.memory), (Cpus { millis: 1500 }, Bytes(1 << 30)));
        assert_eq!(policy.images.len(), 2);
        assert_eq!(policy.ttl, Some(Span(Duration::from_secs(2))));
        assert!(policy.child_can_spawn);
        assert_eq!((policy.peers, policy.net, policy.ports), (Peers::Family, WayOut::None, false));
        let policy = SpawnPolicy::parse("peers=none,net=parent,ports").unwrap();
        assert_eq!((policy.peers, policy.net, policy.ports), (Peers::None, WayOut::Parent, true));
        for wrong in ["", "max", "max=x", "max=0", "nested=1", "child-memory=1M", "colour=red"] {
            assert!(SpawnPolicy::parse(wrong).is_err(), "{wrong}");
        }
        for wrong in ["peers", "peers=any", "net", "net=public", "ports=80"] {
            assert!(SpawnPolicy::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_family_network_has_no_valid_network_name() {
        let root = Name::parse("lead").unwrap();
        let directory = FamilyNetwork { root, since: 7 }.directory();
        assert_eq!(directory, ".lead-7");
        assert!(Name::parse(&directory).is_err());
    }

    #[test]
    fn no_child_stands_for_a_host_of_the_internet() {
        let admits = |name: &str| FamilyNetwork::admits(&Name::parse(name).unwrap());
        assert!(admits("lead-child-0001") && admits("team--Lead_2"));
        let long = "a".repeat(64);
        for name in ["pypi.org", "a.", "0001", &long] {
            assert!(!admits(name), "{name}");
        }
    }

    #[test]
    fn a_child_gets_no_more_than_there_is() {
        let policy = SpawnPolicy::default();
        let most = (Cpus::whole(2), Bytes::mib(512));
        assert_eq!(policy.share(None, None).unwrap(), most);
        assert_eq!(policy.share(Some(Cpus::whole(9)), Some(Bytes::mib(9999))).unwrap(), most);
        let less = (Cpus { millis: 500 }, Bytes::mib(64));
        assert_eq!(policy.share(Some(less.0), Some(less.1)).unwrap(), less);
        assert!(policy.share(None, Some(Bytes::mib(63))).is_err());
    }

    #[test]
    fn grandchildren_have_half_and_no_children() {
        assert_eq!(SpawnPolicy::default().for_child(1), None);
        let policy = SpawnPolicy { child_can_spawn: true, ..SpawnPolicy::default() };
        let half = policy.for_child(1).unwrap();
        assert_eq!((half.max_concurrent, half.max_total), (1, 5));
        assert_eq!((half.cpus, half.memory), (Cpus::whole(3), Bytes::mib(768)));
        assert_eq!(half.for_child(2), None);
        assert_eq!(policy.for_child(2), None);
    }
}
