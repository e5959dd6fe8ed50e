//! Builds the guest that microVMs boot and packs it into the disk that they boot from, with the
//! program that sandboxes ask for children with.
//!
//! A cargo of its own, with a target directory of its own: the outer one holds the lock of its, and
//! what it was told (flags, profile, wrappers of clippy) is not meant for this program.

use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What the guest is made of.
const SOURCES: [&str; 6] = ["ctl", "erofs", "guest", "spec", "sys", "wire"];

/// The programs.
const GUEST: &str = "msb-guest";
const CTL: &str = "sandbox-ctl";

/// Mount points: the disk cannot be written.
const DIRECTORIES: [&str; 4] = ["dev", "mnt", "proc", "sys"];

/// Static, and without relocations that would have to be made at every boot.
const FLAGS: [&str; 4] = ["-C", "target-feature=+crt-static", "-C", "relocation-model=static"];

/// Variables of the outer cargo that hold for the inner one too.
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

/// Writes down a name that no other content has.
fn name(out: &Path, of: &str, content: &[u8]) -> Result<()> {
    let mut hasher = DefaultHasher::new();
    hasher.write(content);
    fs::write(out.join(format!("{of}.name")), format!("{:016x}", hasher.finish()))?;
    Ok(())
}

/// Builds the programs and returns where they are.
fn build(workspace: &Path, out: &Path) -> Result<PathBuf> {
    let target = env::var("TARGET")?;
    // Small takes half a minute, which is too long for what is only looked at or tried.
    let released = out.components().any(|part| part.as_os_str() == "release");
    let profile = if released { "guest" } else { "guest-quick" };
    // One for all outer profiles, beside theirs: they differ in nothing that counts here, and
    // checking, linting and testing would each build everything again.
    let directory = out.ancestors().nth(4).ok_or("no target directory")?.join("boot-disk");
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo
        .args(["build", "--package", "msb-guest", "--bin", GUEST, "--quiet"])
        .args(["--package", "msb-ctl", "--bin", CTL])
        // Whatever it needs, the outer one needed too and has fetched.
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

/// Puts the programs on a disk, the guest where the kernel wants to find it.
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
