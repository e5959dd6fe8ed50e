//! OCI images through the real binary, with real registries, and real tools beside us.

mod parts;
