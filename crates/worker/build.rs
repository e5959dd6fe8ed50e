//! Builds the guest as a small static program and hands its bytes to `launch.rs`.
//!
//! In its own target directory, because it has its own profile and cargo is already holding the
//! lock of the outer one.

use std::env;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let crates = manifest.parent().expect("crates/worker has a parent");
    for part in ["guest", "wire", "spec", "sys"] {
        println!("cargo::rerun-if-changed={}", crates.join(part).display());
    }
    println!("cargo::rerun-if-changed={}", crates.join("../Cargo.lock").display());

    let target = env::var("TARGET").expect("cargo sets it");
    let target_dir = out.join("guest-target");
    let status = Command::new(env::var_os("CARGO").expect("cargo sets it"))
        .args(["build", "--quiet", "--profile", "guest", "--package", "msb-guest", "--locked"])
        .args(["--target", &target])
        .arg("--target-dir")
        .arg(&target_dir)
        .current_dir(crates)
        // What the outer build was told is not meant for this one.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env("RUSTFLAGS", "-C target-feature=+crt-static -C relocation-model=static")
        .status()
        .expect("cargo can be run again");
    assert!(status.success(), "the guest could not be built");
    let built = target_dir.join(&target).join("guest").join("msb-guest");
    std::fs::copy(&built, out.join("msb-guest")).expect("the guest was just built");
    let mut hash = DefaultHasher::new();
    std::fs::read(&built).expect("the guest was just built").hash(&mut hash);
    println!("cargo::rustc-env=GUEST_HASH={:016x}", hash.finish());
}
