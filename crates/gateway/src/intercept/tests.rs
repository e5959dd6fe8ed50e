//! Tests of the Interceptor as a whole: real TLS on both sides, over loopback.

mod harness;
mod host_proxy;
mod http;
mod latency;
mod long_lived;
mod secrets;
mod smuggling;
mod websocket;
