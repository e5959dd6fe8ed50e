//! The origin of a request: the surface that it came by and the key that was shown.
//!
//! The surface sets it, never the client: the server overwrites what it receives over HTTP. It
//! names the key, not the person that holds it.

use crate::{Error, Name, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Interface that a request came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Surface {
    /// The `msb` command on this host.
    Cli,
    /// A program that embeds the SDK.
    Sdk,
    /// The server's HTTP API.
    Rest,
    /// An MCP dialect of the server.
    Mcp,
    /// The JSON-RPC API of the microsandbox server.
    Rpc,
    /// A session over the SSH server.
    Ssh,
    /// The parent sandbox, from inside.
    Parent,
    /// The health check of the sandbox.
    Health,
    /// The server itself, without a client.
    Server,
}

impl Surface {
    /// Its name in JSON and logs.
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

/// Origin of a request. Boxed, because it travels with every command and is seldom read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallOrigin(Box<OriginFields>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct OriginFields {
    surface: Surface,
    dialect: Option<String>,
    key: Option<String>,
    namespace: Option<String>,
    sandbox: Option<Name>,
}

/// Longest text of one part, in bytes: an SSH fingerprint has 50, the id of a key 32.
const MAX_LENGTH: usize = 128;

impl CallOrigin {
    /// An origin of which only the surface is known.
    pub fn new(surface: Surface) -> Self {
        let (dialect, key, namespace, sandbox) = (None, None, None, None);
        Self(Box::new(OriginFields { surface, dialect, key, namespace, sandbox }))
    }

    /// The `msb` command on this host.
    pub fn cli() -> Self {
        Self::new(Surface::Cli)
    }

    /// An MCP dialect, by its name.
    pub fn mcp(dialect: &str) -> Self {
        let mut origin = Self::new(Surface::Mcp);
        origin.0.dialect = Some(sanitize(dialect));
        origin
    }

    /// A session over SSH, by the fingerprint of its key.
    pub fn ssh(fingerprint: &str) -> Self {
        Self::new(Surface::Ssh).with_key(fingerprint)
    }

    /// A parent sandbox, from inside.
    pub fn parent(name: &Name) -> Self {
        let mut origin = Self::new(Surface::Parent);
        origin.0.sandbox = Some(name.clone());
        origin
    }

    /// Adds the id of the key that was shown.
    #[must_use]
    pub fn with_key(mut self, id: &str) -> Self {
        self.0.key = Some(sanitize(id));
        self
    }

    /// Adds the namespace of the key.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.0.namespace = Some(sanitize(namespace));
        self
    }

    /// Interface that the request came by.
    pub fn surface(&self) -> Surface {
        self.0.surface
    }

    /// Id or fingerprint of the key that was shown.
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }
}

/// Replaces unprintable characters by `?` and cuts the text: it goes to logs and terminals.
fn sanitize(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_graphic() { c } else { '?' }).take(MAX_LENGTH).collect()
}

fn is_printable(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_LENGTH && text.bytes().all(|b| b.is_ascii_graphic())
}

/// Written as `cli`, `mcp:core key:0123 in team`, `ssh:SHA256:…` or `parent:box`.
impl fmt::Display for CallOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OriginFields { surface, dialect, key, namespace, sandbox } = &*self.0;
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

/// Origin of a request, without the parts that are not known.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Asker"))]
#[serde(deny_unknown_fields)]
struct OriginJson {
    /// Interface that the request came by.
    surface: Surface,
    /// Name of the MCP dialect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dialect: Option<String>,
    /// Id of the key that was shown, or fingerprint of an SSH key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Namespace that the key is limited to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    /// Parent sandbox that sent the request from inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sandbox: Option<Name>,
}

/// Form in postcard frames, where each field has a fixed position.
type OriginTuple = (Surface, Option<String>, Option<String>, Option<String>, Option<Name>);

impl Serialize for CallOrigin {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        let OriginFields { surface, dialect, key, namespace, sandbox } = *self.0.clone();
        match to.is_human_readable() {
            true => OriginJson { surface, dialect, key, namespace, sandbox }.serialize(to),
            false => (surface, dialect, key, namespace, sandbox).serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for CallOrigin {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let (surface, dialect, key, namespace, sandbox) = match from.is_human_readable() {
            true => {
                let it = OriginJson::deserialize(from)?;
                (it.surface, it.dialect, it.key, it.namespace, it.sandbox)
            }
            false => OriginTuple::deserialize(from)?,
        };
        let parts = OriginFields { surface, dialect, key, namespace, sandbox };
        Self(Box::new(parts)).validate().map_err(serde::de::Error::custom)
    }
}

impl CallOrigin {
    fn validate(self) -> Result<Self> {
        let texts = [&self.0.dialect, &self.0.key, &self.0.namespace];
        let printable = texts.into_iter().flatten().all(|text| is_printable(text));
        match printable {
            true => Ok(self),
            false => Err(Error::invalid(
                "the origin of a request has a part that is empty, too long or not printable ASCII",
            )),
        }
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for CallOrigin {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        OriginJson::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        OriginJson::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_parts_are_left_out() {
        let key = CallOrigin::mcp("core").with_key("0123").in_namespace("team");
        for (origin, text, json) in [
            (CallOrigin::cli(), "cli", r#"{"surface":"cli"}"#),
            (
                key,
                "mcp:core key:0123 in team",
                r#"{"surface":"mcp","dialect":"core","key":"0123","namespace":"team"}"#,
            ),
            (
                CallOrigin::ssh("SHA256:ab"),
                "ssh:SHA256:ab",
                r#"{"surface":"ssh","key":"SHA256:ab"}"#,
            ),
            (
                CallOrigin::parent(&Name::parse("box").unwrap()),
                "parent:box",
                r#"{"surface":"parent","sandbox":"box"}"#,
            ),
        ] {
            assert_eq!(origin.to_string(), text);
            assert_eq!(serde_json::to_string(&origin).unwrap(), json);
            assert_eq!(serde_json::from_str::<CallOrigin>(json).unwrap(), origin);
        }
    }

    #[test]
    fn unprintable_text_is_refused_or_replaced() {
        let replaced = CallOrigin::mcp("a b\x1b[2J\u{e4}").with_key(&"k".repeat(500));
        assert!(replaced.to_string().starts_with("mcp:a?b?[2J? key:kkk"), "{replaced}");
        assert_eq!(replaced.key().unwrap().len(), MAX_LENGTH);
        for wrong in [
            r#"{"surface":"mcp","dialect":"a b"}"#,
            r#"{"surface":"mcp","dialect":""}"#,
            r#"{"surface":"rest","key":"\u001b"}"#,
            r#"{"surface":"parent","sandbox":"../x"}"#,
            r#"{"surface":"nobody"}"#,
            r#"{"surface":"cli","more":1}"#,
        ] {
            assert!(serde_json::from_str::<CallOrigin>(wrong).is_err(), "{wrong}");
        }
    }
}
