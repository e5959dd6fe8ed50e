//! The Operations over HTTP: one table for the server, its OpenAPI document and the client.
//!
//! A request is one struct. Members that the path template names are in the path. The others are in
//! the query of GET and DELETE requests, and in the JSON body of POST requests. Streams (files,
//! archives, commands, followed logs) have paths of their own, in [`streams`].

mod place;
mod requests;
mod responses;
pub mod streams;

pub use place::{InsidePath, Where};
pub use requests::*;
pub use responses::{
    Changed, Count, Done, Ended, Executed, Expires, FileMeta, Logged, RealPath, ResponseOf, Said,
    Waited,
};

use crate::{Api, Watch};
use msb_spec::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The HTTP method of an Operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Reads without changing anything.
    Get,
    /// Creates or changes something.
    Post,
    /// Removes or withdraws something.
    Delete,
}

impl Method {
    /// The method in upper case.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }

    /// Whether the members are in a JSON body instead of the query.
    pub fn has_body(self) -> bool {
        matches!(self, Self::Post)
    }
}

/// Method and path of an Operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The name of the Operation.
    pub name: &'static str,
    /// The HTTP method of the request.
    pub method: Method,
    /// The path. Members are in braces; a numeric one has `#` before its name.
    pub path: &'static str,
    /// A description, for the OpenAPI document.
    pub about: &'static str,
}

impl Route {
    /// The path template of the OpenAPI document: without `#`.
    pub fn template(&self) -> String {
        self.path.replace("{#", "{")
    }

    /// The members in the path, and whether each is a number.
    pub fn in_path(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let parts = self.path.split('/');
        let inside = parts.filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        inside.map(|name| match name.strip_prefix('#') {
            Some(name) => (name, true),
            None => (name, false),
        })
    }
}

/// A type with a JSON Schema; needed only to generate the OpenAPI document.
#[cfg(feature = "schema")]
pub use schemars::JsonSchema as SchemaBound;
/// A type with a JSON Schema; needed only to generate the OpenAPI document.
#[cfg(not(feature = "schema"))]
pub trait SchemaBound {}
#[cfg(not(feature = "schema"))]
impl<T> SchemaBound for T {}

/// A request over HTTP with one response.
pub trait HttpRequest: Serialize + DeserializeOwned + SchemaBound + Send + 'static {
    /// The type of the response.
    type Response: Serialize + DeserializeOwned + SchemaBound + Send + 'static;

    /// Method and path of the request.
    const ROUTE: Route;

    /// The values of secrets, if the request carries some.
    fn secrets(&mut self) -> Option<&mut SecretValues> {
        None
    }

    /// Calls the Operation of the Api.
    fn perform(&self, api: &dyn Api, watch: &dyn Watch) -> Result<Self::Response>;

    /// Calls the Operation of the Api with the values of secrets in the request.
    fn call(mut self, api: &dyn Api, watch: &dyn Watch) -> Result<Self::Response> {
        let values = self.secrets().map(std::mem::take).unwrap_or_default();
        if values.is_empty() {
            return self.perform(api, watch);
        }
        let values = values.into_iter().map(|(name, value)| (name, value.into_bytes()));
        self.perform(api.with_secrets(values.collect()).as_ref(), watch)
    }
}

/// Visits every type of request.
pub trait Visitor {
    /// Visits one type of request.
    fn visit<R: HttpRequest>(&mut self);
}
