//! Operations as they travel over HTTP: one table for the server, its OpenAPI document and the
//! client.
//!
//! What is asked for is one struct. Members that its path names are in the path; the others are in
//! the query of what only looks or removes, and in a JSON object otherwise. What streams (files,
//! archives, commands, logs that go on) has paths of its own, in [`streams`].

mod answers;
mod asks;
mod file_asks;
mod place;
pub mod streams;

pub use answers::{
    Changed, Count, Done, Ended, Executed, Expires, FileMeta, Logged, RealPath, Said, Waited,
};
pub use asks::*;
pub use file_asks::*;
pub use place::{InsidePath, Where};

use crate::{Api, Watch};
use msb_spec::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How something is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// It only looks.
    Get,
    /// It changes something.
    Post,
    /// It removes something.
    Delete,
}

impl Method {
    /// As HTTP writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }

    /// Whether what is asked for is a JSON object, and not in the query.
    pub fn has_body(self) -> bool {
        matches!(self, Self::Post)
    }
}

/// Where an Operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The Operation.
    pub name: &'static str,
    /// How it is asked for.
    pub method: Method,
    /// Where; members are in braces, and a number has `#` before its name.
    pub path: &'static str,
    /// What it does.
    pub about: &'static str,
}

impl Route {
    /// The path as others write it: without the marks of numbers.
    pub fn template(&self) -> String {
        self.path.replace("{#", "{")
    }

    /// The members that are in the path, and whether each is a number.
    pub fn in_path(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let parts = self.path.split('/');
        let inside = parts.filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        inside.map(|name| match name.strip_prefix('#') {
            Some(name) => (name, true),
            None => (name, false),
        })
    }
}

/// A JSON Schema is wanted of everything only where the document is made.
#[cfg(feature = "schema")]
pub trait Described: schemars::JsonSchema {}
#[cfg(feature = "schema")]
impl<T: schemars::JsonSchema> Described for T {}
/// A JSON Schema is wanted of everything only where the document is made.
#[cfg(not(feature = "schema"))]
pub trait Described {}
#[cfg(not(feature = "schema"))]
impl<T> Described for T {}

/// Something that can be asked for over HTTP and has one answer.
pub trait Ask: Serialize + DeserializeOwned + Described + Send + 'static {
    /// What comes back.
    type Answer: Serialize + DeserializeOwned + Described + Send + 'static;

    /// Where.
    const ROUTE: Route;

    /// Does it.
    fn perform(&self, api: &dyn Api, watch: &dyn Watch) -> Result<Self::Answer>;
}

/// Shown every kind of thing that can be asked for.
pub trait Visitor {
    /// One.
    fn visit<A: Ask>(&mut self);
}

/// Shows all.
pub fn each(visitor: &mut impl Visitor) {
    asks::each(visitor);
    file_asks::each(visitor);
}

/// Makes the table: what is asked for, where, what comes back and how it is done.
macro_rules! table {
    ($(
        $(#[doc = $about:literal])+
        $ask:ident = $name:literal $method:ident $path:literal
        { $( $(#[$meta:meta])+ $field:ident: $type:ty ),* $(,)? } -> $answer:ty
        = |$it:ident, $api:ident, $watch:ident| $done:expr;
    )*) => {
        $(
            $(#[doc = $about])+
            #[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
            #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
            #[serde(deny_unknown_fields)]
            pub struct $ask { $( $(#[$meta])+ pub $field: $type ),* }

            impl $crate::http::Ask for $ask {
                type Answer = $answer;

                const ROUTE: $crate::http::Route = $crate::http::Route {
                    name: $name,
                    method: $crate::http::Method::$method,
                    path: $path,
                    about: concat!($($about),+),
                };

                fn perform(
                    &self,
                    $api: &dyn $crate::Api,
                    $watch: &dyn $crate::Watch,
                ) -> msb_spec::Result<$answer> {
                    let $it = self;
                    $done
                }
            }
        )*

        pub(super) fn each(visitor: &mut impl $crate::http::Visitor) {
            $( visitor.visit::<$ask>(); )*
        }
    };
}
use table;
