//! OCI images through the real binary, with real registries, and with other tools beside us.

mod archives;
mod build;
mod cache;
mod concurrent_pulls;
mod config;
mod disk;
mod languages;
mod logins;
mod names;
mod pull;
mod registries;
mod test_images;
mod trees;
mod users;
