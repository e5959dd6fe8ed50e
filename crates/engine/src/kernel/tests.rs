//! Kernels that are not what they say they are.

use super::elf::Elf;
use super::flat::{self, Making, Origin, Place};
use super::*;
use std::os::unix::fs::FileExt;

/// A small kernel: two segments with a gap between them and zeros at the end.
struct Forged {
    bytes: Vec<u8>,
}

const TEXT: u64 = 0x100_0000;
const BANNER: &[u8] = b"\0Linux version 6.12.7-test (who@where) #1\n\0";

impl Forged {
    fn new() -> Self {
        let mut bytes = vec![0; 0x3000];
        bytes[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
        bytes[0x1000..0x1000 + BANNER.len()].copy_from_slice(BANNER);
        bytes[0x2000] = 0xaa;
        let mut forged = Self { bytes };
        forged.u16(16, 2).u16(18, if cfg!(target_arch = "x86_64") { 62 } else { 183 });
        forged.u64(24, TEXT + 0x10).u64(32, 64).u16(54, 56).u16(56, 2);
        forged.segment(0, [0x1000, 0xffff_ffff_8100_0000, TEXT, 0x1000, 0x1000]);
        forged.segment(1, [0x2000, 0xffff_ffff_8100_4000, TEXT + 0x4000, 0x1000, 0x2_0000]);
        forged
    }

    fn segment(&mut self, index: usize, fields: [u64; 5]) -> &mut Self {
        let at = 64 + index * 56;
        self.bytes[at..at + 4].copy_from_slice(&1u32.to_le_bytes());
        for (field, value) in fields.into_iter().enumerate() {
            self.u64(at + 8 + field * 8, value);
        }
        self
    }

    fn u64(&mut self, at: usize, value: u64) -> &mut Self {
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn u16(&mut self, at: usize, value: u16) -> &mut Self {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn flatten(&self) -> Result<(Place, Vec<u8>)> {
        let (file, image) = (memory(&self.bytes), memory(&[]));
        let place = flat::flatten(&Elf::read(&file)?, &image)?;
        let mut bytes = vec![0; place.size as usize];
        image.read_exact_at(&mut bytes, 0).unwrap();
        Ok((place, bytes))
    }

    fn refused(&self) -> String {
        self.flatten().unwrap_err().to_string()
    }
}

fn memory(bytes: &[u8]) -> File {
    let fd = rustix::fs::memfd_create("kernel", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(fd);
    file.write_all_at(bytes, 0).unwrap();
    file
}

/// A state directory that is gone afterwards.
struct Scratch(Home);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("msb-kernel-{name}-{}", std::process::id()));
        Self(Home::at(&path).unwrap())
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0.path());
    }
}

#[test]
fn segments_lie_in_the_image_as_in_memory() {
    let (place, image) = Forged::new().flatten().unwrap();
    assert_eq!(place, Place { load: TEXT, entry: TEXT + 0x10, size: 0x3_0000 });
    assert_eq!(&image[..BANNER.len()], BANNER);
    assert_eq!(image[0x4000], 0xaa);
    assert!(image[0x4001..].iter().all(|byte| *byte == 0));
}

#[test]
fn an_entry_as_the_kernel_sees_it_becomes_physical() {
    let mut forged = Forged::new();
    let (place, _) = forged.u64(24, 0xffff_ffff_8100_4008).flatten().unwrap();
    assert_eq!(place.entry, TEXT + 0x4008);
}

#[test]
fn a_file_that_is_cut_short_is_refused_wherever_it_ends() {
    let whole = Forged::new();
    for length in [0, 1, 63, 64, 100, 64 + 112, 0x1000, 0x2fff] {
        let forged = Forged { bytes: whole.bytes[..length].to_vec() };
        let error = forged.refused();
        let told = error.contains("cut short") || error.contains("not an ELF file");
        assert!(told, "{length}: {error}");
    }
}

#[test]
fn another_machine_or_another_kind_of_file_is_refused() {
    assert!(Forged::new().u16(18, 3).refused().contains("another kind of machine"));
    assert!(Forged::new().u16(16, 3).refused().contains("not a kernel as `vmlinux` is"));
    assert!(Forged { bytes: vec![b'x'; 4096] }.refused().contains("not an ELF file"));
}

#[test]
fn segments_over_each_other_are_refused() {
    let mut forged = Forged::new();
    forged.segment(1, [0x2000, 0, TEXT + 0xfff, 0x1000, 0x1000]);
    assert_eq!(forged.refused(), "two segments of it lie over each other");
    let mut forged = Forged::new();
    forged.segment(1, [0x2000, 0, TEXT, 1, 1]);
    assert_eq!(forged.refused(), "two segments of it lie over each other");
}

#[test]
fn sizes_that_no_kernel_has_are_refused() {
    let top = u64::MAX;
    for (fields, told) in [
        ([0x2000, 0, TEXT + 0x4000, 0x1000, top], "beyond all addresses"),
        ([0x2000, top, TEXT + 0x4000, 0x1000, 0x1000], "beyond all addresses"),
        ([0x2000, 0, top - 0xfff, 0x1000, 0x1001], "beyond all addresses"),
        ([top, 0, TEXT + 0x4000, 0x1000, 0x1000], "cut short"),
        ([0x2000, 0, TEXT + 0x4000, top, top], "cut short"),
        ([0x2000, 0, TEXT + 0x4000, 0x1001, 0x2000], "cut short"),
        ([0x2000, 0, TEXT + 0x4000, 0x1000, 0xfff], "more bytes than room"),
        ([0x2000, 0, TEXT + 0x4000, 0x1000, 1 << 40], "more than 268435456"),
        ([0x2000, 0, TEXT + (1 << 32), 0x1000, 0x1000], "more than 268435456"),
        ([0x2000, 0, 0x1000, 0x1000, 0x1000], "cannot be loaded at 0x1000"),
    ] {
        let error = Forged::new().segment(1, fields).refused();
        assert!(error.contains(told), "{fields:x?}: {error}");
    }
}

#[test]
fn lists_that_are_too_long_or_strange_are_refused() {
    assert!(Forged::new().u16(56, 65).refused().contains("65 segments"));
    assert!(Forged::new().u16(54, 32).refused().contains("not one we can read"));
    assert!(Forged::new().u64(32, u64::MAX - 8).refused().contains("cut short"));
    assert!(Forged::new().u16(56, 0).refused().contains("nothing of it is loaded"));
    assert!(Forged::new().u16(58, 64).u16(60, 5000).refused().contains("5000 sections"));
}

#[test]
fn an_entry_outside_of_the_kernel_is_refused() {
    for entry in [0, TEXT - 1, TEXT + 0x1000, TEXT + 0x5000, u64::MAX] {
        let error = Forged::new().u64(24, entry).refused();
        assert!(error.contains("entered outside of itself"), "{entry:#x}: {error}");
    }
}

#[test]
fn a_vmlinux_is_flattened_once() {
    let scratch = Scratch::new("once");
    let path = scratch.file("vmlinux", &Forged::new().bytes);
    let kernel = from_path(&scratch.0, &path).unwrap();
    assert_eq!((kernel.load, kernel.entry), (TEXT, TEXT + 0x10));
    assert_eq!(kernel.version, "6.12.7-test");
    let made = fs::metadata(&kernel.path).unwrap();
    assert_eq!(made.len(), 0x3_0000);
    assert_eq!(from_path(&scratch.0, &path).unwrap(), kernel);
    assert_eq!(fs::metadata(&kernel.path).unwrap().ino(), made.ino());
    // Its directory can be named itself.
    assert_eq!(from_path(&scratch.0, kernel.path.parent().unwrap()).unwrap(), kernel);
    // Nobody has built it, so nobody gets it without naming it.
    assert!(built(&scratch.0).is_none());
}

#[test]
fn nothing_is_left_of_a_kernel_that_was_refused() {
    let scratch = Scratch::new("refused");
    let mut forged = Forged::new();
    forged.bytes[0x1000..0x1000 + BANNER.len()].fill(0);
    let path = scratch.file("vmlinux", &forged.bytes);
    let error = from_path(&scratch.0, &path).unwrap_err();
    assert!(error.to_string().contains("says no version"), "{error}");
    assert_eq!(fs::read_dir(scratch.0.kernels()).unwrap().count(), 0);
}

#[test]
fn of_several_that_were_built_the_newest_is_taken() {
    let scratch = Scratch::new("newest");
    for (inputs, version) in [("a", "6.12.9"), ("b", "6.12.115"), ("c", "6.1.200")] {
        let mut forged = Forged::new();
        let banner = format!("\0Linux version {version} (x)");
        forged.bytes[0x1000..0x1000 + banner.len()].copy_from_slice(banner.as_bytes());
        let file = memory(&forged.bytes);
        let making = Making { inputs, origin: Origin::Built, fragment: None };
        let flatten = |image: &File| flat::flatten(&Elf::read(&file)?, image);
        flat::keep(&scratch.0.kernels(), making, flatten).unwrap();
    }
    fs::create_dir(scratch.0.kernels().join("broken")).unwrap();
    assert_eq!(built(&scratch.0).unwrap().0.version, "6.12.115");
}

#[test]
fn a_record_that_does_not_fit_its_image_is_refused() {
    let scratch = Scratch::new("record");
    let path = scratch.file("vmlinux", &Forged::new().bytes);
    let kernel = from_path(&scratch.0, &path).unwrap();
    let directory = kernel.path.parent().unwrap();
    let record = fs::read_to_string(directory.join(flat::RECORD)).unwrap();
    let at = |field: &str, value: &str| {
        let mut changed: serde_json::Value = serde_json::from_str(&record).unwrap();
        changed[field] = serde_json::from_str(value).unwrap();
        fs::write(directory.join(flat::RECORD), changed.to_string()).unwrap();
        from_path(&scratch.0, directory).unwrap_err().to_string()
    };
    assert!(at("load", "4096").contains("cannot be loaded at 0x1000"));
    assert!(at("load", "16777217").contains("cannot be loaded at 0x1000001"));
    assert!(at("entry", "0").contains("entered outside of itself"));
    assert!(at("entry", "-1").contains("makes no sense"));
    assert!(at("arch", "\"sparc\"").contains("another machine: `sparc`"));
    assert!(at("version", "\"6.12\\u001b[2J\"").contains("no version"));
    fs::write(directory.join(flat::RECORD), &record).unwrap();
    File::options().write(true).open(&kernel.path).unwrap().set_len(0x2_0001).unwrap();
    let error = from_path(&scratch.0, directory).unwrap_err();
    assert!(error.to_string().contains("its image has 131073 bytes"), "{error}");
}

#[test]
fn a_library_without_a_kernel_is_refused() {
    let scratch = Scratch::new("library");
    let mut forged = Forged::new();
    let path = scratch.file("libkrunfw.so.5", &forged.u16(16, 3).bytes);
    let error = from_library(&scratch.0, &path).unwrap_err();
    assert!(error.to_string().contains("not a libkrunfw with a kernel in it"), "{error}");
}
