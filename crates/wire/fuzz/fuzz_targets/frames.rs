//! `cargo +nightly fuzz run frames` in `crates/wire`.
#![no_main]

#[path = "../body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::check_bytes(bytes));
