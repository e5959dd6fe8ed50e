//! The sandbox or volume of a file Operation, and paths inside.

use crate::bytes::{escape_bytes, unescape_bytes};
use crate::files::Place;
use msb_spec::{Error, Name, Result, UserRef, VolumeName};
use serde::{Deserialize, Serialize};

/// A path inside a sandbox or volume. In text, a backslash is written twice and a byte that is not
/// UTF-8 as `\xNN`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct InsidePath(pub Vec<u8>);

impl TryFrom<String> for InsidePath {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        match unescape_bytes(&text) {
            Some(bytes) if !bytes.contains(&0) => Ok(Self(bytes)),
            _ => Err(Error::invalid(format!("not a path: `{}`", msb_spec::shown(&text)))
                .hint("a backslash is written twice, and a byte as `\\xNN`")),
        }
    }
}

impl From<InsidePath> for String {
    fn from(path: InsidePath) -> Self {
        escape_bytes(&path.0)
    }
}

/// A sandbox or a volume, as a request names it: exactly one of the two.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Where {
    /// The name of a running sandbox.
    pub sandbox: Option<Name>,
    /// The name of a volume.
    pub volume: Option<VolumeName>,
    /// The user in the sandbox; root by default.
    pub user: Option<UserRef>,
}

impl Where {
    /// The sandbox or volume; fails unless exactly one is named.
    pub fn place(self) -> Result<Place> {
        match (self.sandbox, self.volume, self.user) {
            (Some(name), None, user) => Ok(Place::Sandbox { name, user }),
            (None, Some(name), None) => Ok(Place::Volume(name)),
            (None, Some(_), Some(_)) => Err(Error::invalid("a volume has no `user`")),
            _ => Err(Error::invalid("one of `sandbox` and `volume` says where the files are")),
        }
    }
}

impl From<&Place> for Where {
    fn from(place: &Place) -> Self {
        match place.clone() {
            Place::Sandbox { name, user } => Self { sandbox: Some(name), volume: None, user },
            Place::Volume(name) => Self { volume: Some(name), ..Self::default() },
        }
    }
}
