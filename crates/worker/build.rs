//! Builds the guest program and `sandbox-ctl`, and packs both into the disk that microVMs boot.
//!
//! This runs a second cargo with its own target directory. The outer cargo holds the lock of its
//! own target directory, and its flags, profile and clippy wrapper do not apply to the guest.

use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Crates that the programs of the boot disk are built from.
const SOURCES: [&str; 6] = ["ctl", "erofs", "guest", "spec", "sys", "wire"];

/// Binary names of the two programs.
const GUEST: &str = "msb-guest";
const CTL: &str = "sandbox-ctl";

/// Mount points. The disk is read-only, so the guest cannot create them.
const DIRECTORIES: [&str; 4] = ["dev", "mnt", "proc", "sys"];

/// Static, without relocations: those would be applied again at every boot.
const FLAGS: [&str; 4] = ["-C", "target-feature=+crt-static", "-C", "relocation-model=static"];

/// The profile of the guest for each outer profile of executables for users.
const GUEST_PROFILES: [(&str, &str); 2] = [("release", "guest-release"), ("dist", "guest")];

/// The profile of the guest for checks and tests.
const QUICK: &str = "guest-quick";

/// Variables of the outer cargo that the inner one keeps.
const KEPT: [&str; 2] = ["CARGO_HOME", "CARGO_MAKEFLAGS"];

fn main() -> Result<()> {
    let workspace = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../..");
    println!("cargo::rerun-if-changed=build.rs");
    for file in ["Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", workspace.join(file).display());
    }
    for name in SOURCES {
        let path = workspace.join("crates").join(name);
        println!("cargo::rerun-if-changed={}", path.join("src").display());
        println!("cargo::rerun-if-changed={}", path.join("Cargo.toml").display());
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let programs = build(&workspace, &out)?;
    let disk = out.join("boot.erofs");
    pack(&programs, &disk)?;
    name(&out, "boot", &fs::read(&disk)?)?;
    let ctl = fs::read(programs.join(CTL))?;
    fs::write(out.join(CTL), &ctl)?;
    name(&out, "ctl", &ctl)
}

/// Writes a file name derived from a hash of the content.
fn name(out: &Path, of: &str, content: &[u8]) -> Result<()> {
    let mut hasher = DefaultHasher::new();
    hasher.write(content);
    fs::write(out.join(format!("{of}.name")), format!("{:016x}", hasher.finish()))?;
    Ok(())
}

/// Builds the programs. Returns the directory that holds them.
fn build(workspace: &Path, out: &Path) -> Result<PathBuf> {
    let target = env::var("TARGET")?;
    // OUT_DIR is PROFILE/build/PACKAGE/out.
    let outer = out.ancestors().nth(3).and_then(Path::file_name).unwrap_or_default();
    let profile = GUEST_PROFILES.iter().find(|(profile, _)| outer == *profile);
    let profile = profile.map_or(QUICK, |(_, guest)| guest);
    // One target directory for all outer profiles, beside theirs. They do not affect the guest, and
    // check, clippy and test would each build it again.
    let directory = out.ancestors().nth(4).ok_or("no target directory")?.join("boot-disk");
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo
        .args(["build", "--package", "msb-guest", "--bin", GUEST, "--quiet"])
        .args(["--package", "msb-ctl", "--bin", CTL])
        // The outer build has fetched every dependency already.
        .args(["--locked", "--offline", "--profile", profile, "--target", &target])
        .arg("--target-dir")
        .arg(&directory)
        .current_dir(workspace);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let told = text.starts_with("CARGO_") && !KEPT.contains(&text.as_ref());
        let flags = text.ends_with("RUSTFLAGS") || text.starts_with("CLIPPY_");
        if told || flags || text == "RUSTC_WORKSPACE_WRAPPER" {
            cargo.env_remove(&name);
        }
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f"));
    if !cargo.status()?.success() {
        return Err("the guest could not be built".into());
    }
    Ok(directory.join(target).join(profile))
}

/// Writes the disk image; the guest is `/init`, where the kernel looks for it.
fn pack(programs: &Path, disk: &Path) -> Result<()> {
    use msb_erofs::{Attributes, Writer};
    let file = File::options().read(true).write(true).create(true).truncate(true).open(disk)?;
    let mut writer = Writer::new(file)?;
    let root = writer.root();
    writer.file_of(root, b"init", Attributes::program(), &mut File::open(programs.join(GUEST))?)?;
    let mut ctl = File::open(programs.join(CTL))?;
    writer.file_of(root, b"ctl", Attributes::program(), &mut ctl)?;
    for name in DIRECTORIES {
        writer.directory(root, name.as_bytes(), Attributes::directory())?;
    }
    writer.finish([0; 16])?;
    Ok(())
}
