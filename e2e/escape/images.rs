//! Attacks with images: hostile layers, manifests, configs and registries.

mod configs;
mod disk_usage;
mod file_types;
mod fixture;
mod headers;
mod limits;
mod links;
mod manifests;
mod paths;
mod registries;
mod text;
mod whiteouts;
