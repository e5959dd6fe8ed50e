//! Interception as a whole: real TLS on both sides, over loopback.

mod http;
mod lab;
mod lasting;
mod latency;
mod proxied;
mod secret;
mod smuggling;
mod websocket;
