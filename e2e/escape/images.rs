//! Attacks with images: hostile layers, manifests, configs and registries.

mod bounds;
mod configs;
mod headers;
mod links;
mod manifests;
mod materials;
mod paths;
mod registries;
mod scene;
mod text;
mod watch;
mod whiteouts;
