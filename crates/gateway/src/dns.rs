//! DNS for the sandbox: messages, the forwarder that decides queries, and the cache of names.

pub(crate) mod cache;
pub(crate) mod forwarder;
pub(crate) mod message;
