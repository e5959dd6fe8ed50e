//! Children: sandboxes that a sandbox may have made for itself, within a budget.

use crate::{Bytes, Cpus, DomainName, Error, ImageRef, Name, Result, Span};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Children of children have none.
pub const DEEPEST: u32 = 2;

/// What a sandbox may have made for it. Whoever has none has no children.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct SpawnPolicy {
    /// Children at once.
    pub max_concurrent: u32,
    /// Children over its whole life.
    pub max_total: u32,
    /// Processors of all its descendants together.
    pub cpus: Cpus,
    /// Memory of all its descendants together.
    pub memory: Bytes,
    /// Processors of each child.
    pub child_cpus: Cpus,
    /// Memory of each child.
    pub child_memory: Bytes,
    /// What children may start from, the usual one first; what their parent started from if none
    /// is named.
    pub images: Vec<ImageRef>,
    /// How long a child lives; as long as its parent if it is not said.
    pub ttl: Option<Span>,
    /// Whether children may have children, within half of this.
    pub child_can_spawn: bool,
    /// Who of its family reach each other.
    pub peers: Peers,
    /// How children get out.
    pub net: WayOut,
    /// Whether ports of children may be published.
    pub ports: bool,
}

/// Who of a family reach each other, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Peers {
    /// Nobody.
    None,
    /// A sandbox and all below it, and nobody else.
    #[default]
    Family,
    /// Whoever their parent reaches: its family, or where it has joined a network, all in that.
    All,
}

/// How a child gets out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WayOut {
    /// Not at all.
    #[default]
    None,
    /// By the rules that its parent was made with.
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

/// Less than this is no machine and hardly a shell.
const LEAST_MEMORY: Bytes = Bytes::mib(64);

impl SpawnPolicy {
    /// Parses `default`, or what differs from it: `max=5,ttl=10m,image=python,nested`.
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
                ("memory", _) => policy.memory = Bytes::parse(value)?,
                ("child-cpus", _) => policy.child_cpus = Cpus::parse(value)?,
                ("child-memory", _) => policy.child_memory = Bytes::parse(value)?,
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
                _ => return Err(unknown(word)),
            }
        }
        policy.check().map(|()| policy)
    }

    /// Checks what no single field can check.
    pub fn check(&self) -> Result<()> {
        let none = self.max_concurrent == 0 || self.max_total == 0;
        if none || self.child_memory < LEAST_MEMORY || self.memory < LEAST_MEMORY {
            return Err(Error::invalid("a spawn policy that allows no child").hint(format!(
                "leave it out, or allow one child at least, with {LEAST_MEMORY} of memory"
            )));
        }
        Ok(())
    }

    /// What a child of this policy gets of what it asks for; too much is cut down.
    pub fn share(&self, cpus: Option<Cpus>, memory: Option<Bytes>) -> Result<(Cpus, Bytes)> {
        if memory.is_some_and(|memory| memory < LEAST_MEMORY) {
            return Err(Error::invalid("too little memory for a sandbox")
                .hint(format!("{LEAST_MEMORY} is the least")));
        }
        let cpus = cpus.map_or(self.child_cpus, |cpus| cpus.min(self.child_cpus));
        Ok((cpus, memory.map_or(self.child_memory, |memory| memory.min(self.child_memory))))
    }

    /// What a child may have made in turn; none if it may not.
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

fn unknown(word: &str) -> Error {
    Error::invalid(format!("not a part of a spawn policy: `{word}`")).hint(
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

/// Whose child a sandbox is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Family {
    /// The sandbox that it was made for.
    pub parent: Name,
    /// What its parent calls it, if that chose a name from inside. It is known to the parent alone.
    #[serde(default)]
    pub alias: Option<Name>,
    /// Which life of that: one that was reset has another.
    pub life: String,
    /// How far it is from a sandbox that is nobody's child.
    pub generation: u32,
    /// The network that it shares with its family; none if they do not reach each other.
    #[serde(default)]
    pub network: Option<FamilyNetwork>,
    /// How it gets out.
    #[serde(default)]
    pub net: WayOut,
    /// Whether its ports may be published.
    #[serde(default)]
    pub ports: bool,
}

/// The network of a sandbox and all below it. Nobody else can join it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FamilyNetwork {
    /// The sandbox above all others.
    pub root: Name,
    /// When that was made, in milliseconds since 1970: one of the same name has another network.
    pub since: u64,
}

impl FamilyNetwork {
    /// What its directory is called, beside those of networks that are joined by name. No name
    /// begins like this.
    pub fn directory(&self) -> String {
        format!(".{}-{}", self.root, self.since)
    }

    /// Whether a sandbox can be reached by its name there. Names of children may come from inside:
    /// one with a dot would stand for a host of the internet.
    pub fn admits(name: &Name) -> bool {
        !name.as_str().contains('.') && DomainName::parse(name.as_str()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_said() {
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
    fn nobody_joins_a_family_by_its_name() {
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
