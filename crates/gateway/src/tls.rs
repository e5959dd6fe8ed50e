//! TLS on both sides of an intercepted flow, and the server name in a ClientHello.

pub(crate) mod ca;
pub(crate) mod client;
pub(crate) mod client_hello;
