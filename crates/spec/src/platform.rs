//! Platforms of images, and pull policies.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Pull policy: when an image is fetched from its registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PullWhen {
    /// At each use; layers that are present are not fetched again.
    Always,
    /// When it is not in the store.
    #[default]
    IfMissing,
    /// Not at all: a missing image is an error.
    Never,
}

impl std::str::FromStr for PullWhen {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "always" => Ok(Self::Always),
            "if-missing" | "missing" => Ok(Self::IfMissing),
            "never" => Ok(Self::Never),
            other => Err(Error::invalid(format!("not a pull policy: `{}`", crate::shown(other)))
                .hint("it is `always`, `if-missing` or `never`")),
        }
    }
}

/// Operating system and CPU architecture of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Platform {
    /// Operating system, such as `linux`.
    pub os: String,
    /// Architecture as Go names it: `amd64`, `arm64`.
    pub architecture: String,
    /// Variant of the architecture: `v8`, `v7`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl Platform {
    /// The platform of this host.
    pub fn host() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            other => other,
        };
        Self { os: "linux".to_owned(), architecture: architecture.to_owned(), variant: None }
    }

    /// Parses `linux/arm64`, `linux/arm/v7` or `arm64`.
    pub fn parse(text: &str) -> Result<Self> {
        let word = |word: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
            !word.is_empty() && word.len() <= 32 && word.bytes().all(plain)
        };
        let parts: Vec<&str> = text.split('/').collect();
        let (os, architecture, variant) = match parts.as_slice() {
            [architecture] => ("linux", *architecture, None),
            [os, architecture] => (*os, *architecture, None),
            [os, architecture, variant] => (*os, *architecture, Some(*variant)),
            _ => ("", "", None),
        };
        if !parts.iter().all(|part| word(part)) || os.is_empty() {
            return Err(Error::invalid(format!("not a platform: `{}`", crate::shown(text)))
                .hint("it looks like `linux/amd64` or `linux/arm64/v8`"));
        }
        let architecture = match architecture {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Ok(Self {
            os: os.to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.map(str::to_owned),
        })
    }

    /// Whether programs for this platform run on this host.
    pub fn runs_here(&self) -> bool {
        let host = Self::host();
        let same = self.architecture == host.architecture;
        self.os == "linux" && (same || (host.architecture == "amd64" && self.architecture == "386"))
    }

    /// Whether an image for this platform fits a requested one.
    pub fn satisfies(&self, wanted: &Self) -> bool {
        // A request without a variant takes the first one.
        let variant = wanted.variant.is_none() || wanted.variant == self.variant;
        self.os == wanted.os && self.architecture == wanted.architecture && variant
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match &self.variant {
            Some(variant) => write!(f, "/{variant}"),
            None => Ok(()),
        }
    }
}

impl std::str::FromStr for Platform {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_platform_is_read_as_docker_writes_it() {
        for (typed, meant) in [
            ("linux/amd64", "linux/amd64"),
            ("arm64", "linux/arm64"),
            ("linux/arm/v7", "linux/arm/v7"),
            ("x86_64", "linux/amd64"),
        ] {
            assert_eq!(Platform::parse(typed).unwrap().to_string(), meant);
        }
        for typed in ["", "/", "linux/", "a/b/c/d", "linux/a b"] {
            assert!(Platform::parse(typed).is_err(), "{typed}");
        }
    }
}
