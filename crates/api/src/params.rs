//! The arguments of Operations: owned as a request has them, borrowed as a method takes them.
//!
//! The type of an argument decides everything about it: its schema, how it travels, and what a server
//! with namespaces does to it. Two names that are looked up differently have different types.

use crate::http::InsidePath;
use crate::operation_types::*;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// The type of an argument in the table of Operations.
pub trait Param: 'static {
    /// What a method takes for it.
    type Arg<'a>;

    /// Borrows the argument for a call.
    fn arg(&self) -> Self::Arg<'_>;

    /// Copies the argument of a call.
    fn of(arg: Self::Arg<'_>) -> Self;
}

/// What a method takes for an argument of this type, such as `&Name` or `Duration`.
pub type Arg<'a, T> = <T as Param>::Arg<'a>;

macro_rules! by_reference {
    ($($type:ty),* $(,)?) => {$(
        impl Param for $type {
            type Arg<'a> = &'a Self;

            fn arg(&self) -> &Self {
                self
            }

            fn of(arg: &Self) -> Self {
                arg.clone()
            }
        }
    )*};
}

by_reference!(
    Attributes,
    ChildSpec,
    Create,
    Changes,
    Modify,
    Name,
    Place,
    PublishedPort,
    Reference,
    Registry,
    Selection,
    Spec,
    SyncSpec,
    VolumeName,
    VolumeSpec,
);

macro_rules! by_value {
    ($($type:ty),*) => {$(
        impl Param for $type {
            type Arg<'a> = Self;

            fn arg(&self) -> Self {
                *self
            }

            fn of(arg: Self) -> Self {
                arg
            }
        }
    )*};
}

by_value!(bool, i32, u64, Depth);

/// The schema of the type inside: clients do not see the difference.
macro_rules! schema_of {
    ($type:ty, $inside:ty) => {
        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                <$inside>::inline_schema()
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                <$inside>::schema_name()
            }

            fn schema_id() -> std::borrow::Cow<'static, str> {
                <$inside>::schema_id()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                <$inside>::json_schema(generator)
            }
        }
    };
}

/// Types that wrap another one and are borrowed as that.
macro_rules! wrapped {
    ($($(#[$about:meta])+ $type:ident($inside:ty) as $borrowed:ty;)*) => {$(
        $(#[$about])+
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $type(pub $inside);

        schema_of!($type, $inside);

        impl Param for $type {
            type Arg<'a> = &'a $borrowed;

            fn arg(&self) -> &$borrowed {
                &self.0
            }

            fn of(arg: &$borrowed) -> Self {
                Self(arg.to_owned())
            }
        }
    )*};
}

wrapped! {
    /// A name or the id of an existing snapshot.
    SnapshotName(Name) as Name;
    /// A name that a snapshot is to get.
    NewSnapshotName(Name) as Name;
    /// The id of a directory sync.
    SyncId(String) as str;
}

/// A span of time, in milliseconds over HTTP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

schema_of!(Millis, u64);

impl Param for Millis {
    type Arg<'a> = Duration;

    fn arg(&self) -> Duration {
        Duration::from_millis(self.0)
    }

    fn of(time: Duration) -> Self {
        Self(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }
}

impl Param for String {
    type Arg<'a> = &'a str;

    fn arg(&self) -> &str {
        self
    }

    fn of(text: &str) -> Self {
        text.to_owned()
    }
}

impl Param for InsidePath {
    type Arg<'a> = &'a [u8];

    fn arg(&self) -> &[u8] {
        &self.0
    }

    fn of(path: &[u8]) -> Self {
        Self(path.to_vec())
    }
}

impl Param for PathBuf {
    type Arg<'a> = &'a Path;

    fn arg(&self) -> &Path {
        self
    }

    fn of(path: &Path) -> Self {
        path.to_owned()
    }
}

impl<T: Clone + 'static> Param for Vec<T> {
    type Arg<'a> = &'a [T];

    fn arg(&self) -> &[T] {
        self
    }

    fn of(list: &[T]) -> Self {
        list.to_vec()
    }
}

impl<T: Param> Param for Option<T> {
    type Arg<'a> = Option<T::Arg<'a>>;

    fn arg(&self) -> Option<T::Arg<'_>> {
        self.as_ref().map(T::arg)
    }

    fn of(arg: Option<T::Arg<'_>>) -> Self {
        arg.map(T::of)
    }
}
