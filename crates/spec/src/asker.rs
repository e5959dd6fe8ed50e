//! Who asked for a command, as far as msb itself knows.
//!
//! Set by the surface that was asked, never by whoever asks: what comes over HTTP is overwritten by the
//! server. It says by which way a command came and with which key, not which person held that key.

use crate::{Error, Name, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// By which way something was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Surface {
    /// The `msb` command on this host.
    Cli,
    /// A program that uses the SDK.
    Sdk,
    /// The server's HTTP API.
    Rest,
    /// A dialect of MCP.
    Mcp,
    /// The other API of the microsandbox server.
    Rpc,
    /// A session of SSH.
    Ssh,
    /// The sandbox whose child it runs in, from inside.
    Parent,
    /// What looks after the sandbox's health.
    Health,
    /// The server by itself.
    Server,
}

impl Surface {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cli => "cli",
            Self::Sdk => "sdk",
            Self::Rest => "rest",
            Self::Mcp => "mcp",
            Self::Rpc => "rpc",
            Self::Ssh => "ssh",
            Self::Parent => "parent",
            Self::Health => "health",
            Self::Server => "server",
        }
    }
}

/// Who asks. In a box, because it goes along with every command and is seldom looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asker(Box<Parts>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Parts {
    surface: Surface,
    dialect: Option<String>,
    key: Option<String>,
    namespace: Option<String>,
    sandbox: Option<Name>,
}

/// Longest word about an asker: a fingerprint of SSH has 50 letters, the id of a key 32.
const LONGEST: usize = 128;

impl Asker {
    /// Somebody of whom only the way is known.
    pub fn new(surface: Surface) -> Self {
        let (dialect, key, namespace, sandbox) = (None, None, None, None);
        Self(Box::new(Parts { surface, dialect, key, namespace, sandbox }))
    }

    /// The `msb` command.
    pub fn cli() -> Self {
        Self::new(Surface::Cli)
    }

    /// A dialect of MCP.
    pub fn mcp(dialect: &str) -> Self {
        let mut asker = Self::new(Surface::Mcp);
        asker.0.dialect = Some(word(dialect));
        asker
    }

    /// A session of SSH, by the fingerprint of its key.
    pub fn ssh(fingerprint: &str) -> Self {
        Self::new(Surface::Ssh).with_key(fingerprint)
    }

    /// A sandbox, from inside.
    pub fn parent(name: &Name) -> Self {
        let mut asker = Self::new(Surface::Parent);
        asker.0.sandbox = Some(name.clone());
        asker
    }

    /// The same, who showed the key of this id.
    #[must_use]
    pub fn with_key(mut self, id: &str) -> Self {
        self.0.key = Some(word(id));
        self
    }

    /// The same, in this namespace.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.0.namespace = Some(word(namespace));
        self
    }

    /// By which way.
    pub fn surface(&self) -> Surface {
        self.0.surface
    }

    /// Which key was shown: its id, or its fingerprint.
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }
}

/// What can be shown of a text in one word: it goes to logs and terminals.
fn word(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_graphic() { c } else { '?' }).take(LONGEST).collect()
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.len() <= LONGEST && text.bytes().all(|b| b.is_ascii_graphic())
}

/// `cli`, `mcp:core key:0123 in team`, `ssh:SHA256:…`, `parent:box`.
impl fmt::Display for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { surface, dialect, key, namespace, sandbox } = &*self.0;
        f.write_str(surface.as_str())?;
        if let Some(dialect) = dialect {
            write!(f, ":{dialect}")?;
        }
        if let Some(sandbox) = sandbox {
            write!(f, ":{sandbox}")?;
        }
        match (key, surface) {
            (Some(key), Surface::Ssh) => write!(f, ":{key}")?,
            (Some(key), _) => write!(f, " key:{key}")?,
            (None, _) => {}
        }
        namespace.as_ref().map_or(Ok(()), |namespace| write!(f, " in {namespace}"))
    }
}

/// As people read it: without what is not known.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Asker"))]
#[serde(deny_unknown_fields)]
struct Written {
    /// By which way.
    surface: Surface,
    /// Which dialect of MCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dialect: Option<String>,
    /// Which key was shown: its id, or the fingerprint of one of SSH.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Which namespace that is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    /// Which sandbox asked from inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sandbox: Option<Name>,
}

/// As it travels between our processes, where every field has its place.
type Sent = (Surface, Option<String>, Option<String>, Option<String>, Option<Name>);

impl Serialize for Asker {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        let Parts { surface, dialect, key, namespace, sandbox } = *self.0.clone();
        match to.is_human_readable() {
            true => Written { surface, dialect, key, namespace, sandbox }.serialize(to),
            false => (surface, dialect, key, namespace, sandbox).serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Asker {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let (surface, dialect, key, namespace, sandbox) = match from.is_human_readable() {
            true => {
                let it = Written::deserialize(from)?;
                (it.surface, it.dialect, it.key, it.namespace, it.sandbox)
            }
            false => Sent::deserialize(from)?,
        };
        let parts = Parts { surface, dialect, key, namespace, sandbox };
        Self(Box::new(parts)).checked().map_err(serde::de::Error::custom)
    }
}

impl Asker {
    fn checked(self) -> Result<Self> {
        let said = [&self.0.dialect, &self.0.key, &self.0.namespace];
        let well = said.into_iter().flatten().all(|text| is_word(text));
        match well {
            true => Ok(self),
            false => Err(Error::invalid("what is said of who asks is not a word")),
        }
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Asker {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        Written::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Written::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_asker_says_only_what_is_known() {
        let key = Asker::mcp("core").with_key("0123").in_namespace("team");
        for (asker, text, json) in [
            (Asker::cli(), "cli", r#"{"surface":"cli"}"#),
            (
                key,
                "mcp:core key:0123 in team",
                r#"{"surface":"mcp","dialect":"core","key":"0123","namespace":"team"}"#,
            ),
            (Asker::ssh("SHA256:ab"), "ssh:SHA256:ab", r#"{"surface":"ssh","key":"SHA256:ab"}"#),
            (
                Asker::parent(&Name::parse("box").unwrap()),
                "parent:box",
                r#"{"surface":"parent","sandbox":"box"}"#,
            ),
        ] {
            assert_eq!(asker.to_string(), text);
            assert_eq!(serde_json::to_string(&asker).unwrap(), json);
            assert_eq!(serde_json::from_str::<Asker>(json).unwrap(), asker);
        }
    }

    #[test]
    fn what_cannot_be_shown_in_one_word_is_refused_or_replaced() {
        let odd = Asker::mcp("a b\x1b[2J\u{e4}").with_key(&"k".repeat(500));
        assert!(odd.to_string().starts_with("mcp:a?b?[2J? key:kkk"), "{odd}");
        assert_eq!(odd.key().unwrap().len(), LONGEST);
        for wrong in [
            r#"{"surface":"mcp","dialect":"a b"}"#,
            r#"{"surface":"mcp","dialect":""}"#,
            r#"{"surface":"rest","key":"\u001b"}"#,
            r#"{"surface":"parent","sandbox":"../x"}"#,
            r#"{"surface":"nobody"}"#,
            r#"{"surface":"cli","more":1}"#,
        ] {
            assert!(serde_json::from_str::<Asker>(wrong).is_err(), "{wrong}");
        }
    }
}
