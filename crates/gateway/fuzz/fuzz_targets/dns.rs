//! `cargo +nightly fuzz run dns` in `crates/gateway`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| msb_gateway::fuzz::dns(bytes));
