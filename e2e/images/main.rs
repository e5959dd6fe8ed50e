//! OCI images through the real binary, with real registries, and with other tools beside us.

mod archives;
mod build;
mod cache;
mod config;
mod disk;
mod languages;
mod names;
mod parts;
mod people;
mod pull;
mod registries;
mod secrets;
mod together;
mod trees;
