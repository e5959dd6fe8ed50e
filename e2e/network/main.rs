//! The network through the real binary, in a world of the tests' own with real servers.
//!
//! The numbers in the doc comments are those of the list of attacks in `ESCAPES.md`.

mod builds;
mod clients;
mod domains;
mod ends;
mod events;
mod families;
mod flows;
mod hostile;
mod names;
mod neighbours;
mod office;
mod ports;
mod reach;
mod requests;
mod rules;
mod secrets;
mod world;
