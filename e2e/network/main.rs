//! The network through the real binary, on a test network with real servers.
//!
//! The numbers in the doc comments are those of the list of attacks in `ESCAPES.md`.

mod builds;
mod children;
mod cleanup;
mod clients;
mod dns;
mod domains;
mod events;
mod flows;
mod hostile;
mod named_networks;
mod ports;
mod proxy;
mod reach;
mod requests;
mod rules;
mod secrets;
mod testnet;
