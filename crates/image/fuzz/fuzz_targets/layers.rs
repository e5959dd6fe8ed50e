//! `cargo +nightly fuzz run layers` in `crates/image`.
#![no_main]

#[path = "../body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::exercise(bytes));
