//! Image references: the name of an image in a registry.
//!
//! The grammar is the one that Docker and the OCI distribution specification share; short names
//! mean the same as in Docker.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Registry of names that have none.
const DEFAULT_REGISTRY: &str = "docker.io";
/// Namespace of one-word names in the default registry.
const DEFAULT_NAMESPACE: &str = "library";
const DEFAULT_TAG: &str = "latest";
/// Longest repository name in bytes, in Docker and registries.
const REPOSITORY_LIMIT: usize = 255;
const TAG_LIMIT: usize = 128;

/// SHA-256 digest that identifies a blob.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct Digest {
    /// The 64 lower-case hexadecimal digits.
    hex: String,
}

impl Digest {
    /// Parses `sha256:` and 64 digits. Registries use no other algorithm.
    pub fn parse(text: &str) -> Result<Self> {
        let hex = text.strip_prefix("sha256:").unwrap_or_default();
        let digits = hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if hex.len() != 64 || !digits {
            return Err(Error::invalid(format!("not a digest: `{}`", crate::shown(text)))
                .hint("it is `sha256:` and 64 hexadecimal digits"));
        }
        Ok(Self { hex: hex.to_owned() })
    }

    /// The digest of these 32 bytes of hash.
    pub fn of_bytes(bytes: [u8; 32]) -> Self {
        Self { hex: crate::encoding::hex(bytes) }
    }

    /// The 64 digits alone, safe as a file name.
    pub fn hex(&self) -> &str {
        &self.hex
    }

    /// First 12 digits, for display.
    pub fn short(&self) -> &str {
        &self.hex[..12]
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex)
    }
}

/// An image in a registry: `registry/repository:tag@digest`, with defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Reference {
    /// Parses `python`, `ghcr.io/a/b:1`, `localhost:5000/x@sha256:…`.
    pub fn parse(text: &str) -> Result<Self> {
        Self::split(text).ok_or_else(|| {
            Error::invalid(format!("not the name of an image: `{}`", crate::shown(text)))
                .hint("it looks like `python`, `python:3.13` or `registry.example:5000/team/app:1`")
        })
    }

    fn split(text: &str) -> Option<Self> {
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(Digest::parse(digest).ok()?)),
            None => (text, None),
        };
        let (first, below) = rest.split_once('/').unwrap_or(("", rest));
        let (registry, path) =
            if looks_like_registry(first) { (first, below) } else { (DEFAULT_REGISTRY, rest) };
        let (path, tag) = match path.rsplit_once(':') {
            Some((path, tag)) if is_tag(tag) => (path, Some(tag.to_owned())),
            Some(_) => return None,
            None => (path, None),
        };
        let registry = canonical_registry(registry)?;
        let repository = match path.contains('/') {
            false if registry == DEFAULT_REGISTRY => format!("{DEFAULT_NAMESPACE}/{path}"),
            _ => path.to_owned(),
        };
        if repository.len() > REPOSITORY_LIMIT || !repository.split('/').all(is_component) {
            return None;
        }
        // A digest identifies the image; `latest` beside it would say nothing.
        let tag = tag.or_else(|| digest.is_none().then(|| DEFAULT_TAG.to_owned()));
        Some(Self { registry: registry.to_owned(), repository, tag, digest })
    }

    /// Host of the registry, with its port if given.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Path of the image in the registry.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Tag; `None` only if there is a digest.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Digest, if the reference has one.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// This reference with its digest replaced.
    #[must_use]
    pub fn at(&self, digest: &Digest) -> Self {
        Self { digest: Some(digest.clone()), ..self.clone() }
    }

    /// This reference without its digest, if it has a tag.
    #[must_use]
    pub fn without_digest(&self) -> Self {
        match self.tag {
            Some(_) => Self { digest: None, ..self.clone() },
            None => self.clone(),
        }
    }

    /// Short form for users, without default parts.
    pub fn short(&self) -> String {
        let full = self.to_string();
        let short = full.strip_prefix("docker.io/").unwrap_or(&full);
        let short = short.strip_prefix("library/").unwrap_or(short);
        match self.digest {
            None => short.strip_suffix(":latest").unwrap_or(short).to_owned(),
            Some(_) => short.to_owned(),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

/// Parses the name of a registry: `ghcr.io`, `localhost:5000`. Aliases of Docker Hub become
/// `docker.io`.
pub fn registry(text: &str) -> Result<String> {
    let found = Some(text).filter(|text| looks_like_registry(text)).and_then(canonical_registry);
    found.map(str::to_owned).ok_or_else(|| {
        Error::invalid(format!("not the name of a registry: `{}`", crate::shown(text)))
            .hint("write the host alone, as in `ghcr.io` or `localhost:5000`")
    })
}

/// Whether the first part of a name is a registry and not part of the repository.
fn looks_like_registry(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost"
}

/// Canonical name of a registry; `None` if it is no valid host.
fn canonical_registry(registry: &str) -> Option<&str> {
    match registry {
        "index.docker.io" | "registry-1.docker.io" => Some(DEFAULT_REGISTRY),
        registry => is_host(registry).then_some(registry),
    }
}

/// Whether this is a valid `host`, `host:port` or `[::1]:port`.
fn is_host(text: &str) -> bool {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (text, None),
    };
    let port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port != 0));
    let inner = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let name = match inner {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => name.split('.').all(|label| {
            let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
            ends(label.bytes().next())
                && ends(label.bytes().last())
                && label.len() <= 63
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        }),
    };
    name && port && text.len() <= 255
}

/// Whether this is lower-case letters and digits, with single separators between them: `.`, `_`,
/// `__`, any number of `-`.
fn is_component(text: &str) -> bool {
    let bytes = text.as_bytes();
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = bytes.first().is_some_and(plain) && bytes.last().is_some_and(plain);
    ends && bytes
        .split(plain)
        .filter(|run| !run.is_empty())
        .all(|run| matches!(run, b"." | b"_" | b"__") || run.iter().all(|byte| *byte == b'-'))
}

fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.len() <= TAG_LIMIT
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|byte| word(byte) || matches!(byte, b'.' | b'-'))
}

written_as_text!(Digest, Reference);

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn short_names_are_what_docker_users_expect() {
        for (typed, meant) in [
            ("alpine", "docker.io/library/alpine:latest"),
            ("alpine:3", "docker.io/library/alpine:3"),
            ("team/app", "docker.io/team/app:latest"),
            ("ghcr.io/app", "ghcr.io/app:latest"),
            ("localhost/app", "localhost/app:latest"),
            ("localhost:5000/a/b:1.2", "localhost:5000/a/b:1.2"),
            ("[::1]:5000/a", "[::1]:5000/a:latest"),
            ("index.docker.io/a", "docker.io/library/a:latest"),
            ("a__b/c-d.e", "docker.io/a__b/c-d.e:latest"),
        ] {
            assert_eq!(Reference::parse(typed).unwrap().to_string(), meant, "{typed}");
        }
        let fixed = Reference::parse(&format!("alpine@{DIGEST}")).unwrap();
        assert_eq!(fixed.to_string(), format!("docker.io/library/alpine@{DIGEST}"));
        let both = Reference::parse(&format!("r.io/a:1@{DIGEST}")).unwrap();
        assert_eq!((both.tag(), both.digest().unwrap().hex().len()), (Some("1"), 64));
        assert_eq!(both.short(), format!("r.io/a:1@{DIGEST}"));
        assert_eq!(Reference::parse("alpine").unwrap().short(), "alpine");
    }

    #[test]
    fn a_registry_is_a_host_and_nothing_else() {
        for (typed, meant) in [
            ("ghcr.io", "ghcr.io"),
            ("localhost", "localhost"),
            ("registry:5000", "registry:5000"),
            ("[::1]:5000", "[::1]:5000"),
            ("docker.io", "docker.io"),
            ("index.docker.io", "docker.io"),
            ("registry-1.docker.io", "docker.io"),
        ] {
            assert_eq!(registry(typed).unwrap(), meant, "{typed}");
        }
        for typed in [
            "",
            "word",
            "library",
            "ghcr.io/a",
            "ghcr.io/",
            "https://ghcr.io",
            "a b",
            "u@h.io",
            "é.io",
        ] {
            assert!(registry(typed).is_err(), "{typed:?}");
        }
    }

    #[test]
    fn names_that_are_no_plain_path_are_refused() {
        let long = "a".repeat(300);
        for typed in [
            "",
            "/",
            "a/",
            "/a",
            "a//b",
            "../a",
            "a/../b",
            "A",
            "a b",
            "a:",
            "a:b c",
            "a\n",
            "-a",
            "a.b:99999/x",
            "a.b:0/x",
            "a@b",
            "a@sha256:12",
            "a@sha512:00",
            "a___b",
            "a..b",
            "a?b",
            "a#b",
            "a%2e",
            "user@host/a",
            "http://a/b",
            "é",
            "a.-/x",
            &long,
        ] {
            assert!(Reference::parse(typed).is_err(), "{typed:?}");
        }
    }
}
