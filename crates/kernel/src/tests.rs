//! Tests with malformed kernels.

use super::elf::ElfFile;
use super::flat::{self, KernelLayout, KernelMeta, Origin};
use super::*;
use std::os::unix::fs::FileExt;

/// A small ELF kernel: two segments with a gap and trailing zeroes.
struct Forged {
    bytes: Vec<u8>,
}

const TEXT: u64 = 0x100_0000;
const BANNER: &[u8] = b"\0Linux version 6.12.7-test (user@host) #1\n\0";

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

    fn flatten(&self) -> Result<(KernelLayout, Vec<u8>)> {
        let (file, image) = (memory(&self.bytes), memory(&[]));
        let layout = flat::flatten(&ElfFile::read(&file)?, &image)?;
        let mut bytes = vec![0; layout.size as usize];
        image.read_exact_at(&mut bytes, 0).unwrap();
        Ok((layout, bytes))
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

/// A temporary directory with kernels, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("msb-kernel-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("kernel")).unwrap();
        Self(path)
    }

    fn kernels(&self) -> PathBuf {
        self.0.join("kernel")
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn segments_lie_in_the_image_as_in_memory() {
    let (layout, image) = Forged::new().flatten().unwrap();
    assert_eq!(layout, KernelLayout { load: TEXT, entry: TEXT + 0x10, size: 0x3_0000 });
    assert_eq!(&image[..BANNER.len()], BANNER);
    assert_eq!(image[0x4000], 0xaa);
    assert!(image[0x4001..].iter().all(|byte| *byte == 0));
}

#[test]
fn an_entry_as_the_kernel_sees_it_becomes_physical() {
    let mut forged = Forged::new();
    let (layout, _) = forged.u64(24, 0xffff_ffff_8100_4008).flatten().unwrap();
    assert_eq!(layout.entry, TEXT + 0x4008);
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
fn overlapping_segments_are_refused() {
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
fn header_tables_over_the_limit_are_refused() {
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
    let kernel = from_path(&scratch.kernels(), &path).unwrap();
    assert_eq!((kernel.load, kernel.entry), (TEXT, TEXT + 0x10));
    assert_eq!(kernel.version, "6.12.7-test");
    let made = fs::metadata(&kernel.path).unwrap();
    assert_eq!(made.len(), 0x3_0000);
    assert_eq!(from_path(&scratch.kernels(), &path).unwrap(), kernel);
    assert_eq!(fs::metadata(&kernel.path).unwrap().ino(), made.ino());
    // Its directory can be named as well.
    assert_eq!(from_path(&scratch.kernels(), kernel.path.parent().unwrap()).unwrap(), kernel);
    // It was not built, so it is used only if it is named.
    assert!(built(&scratch.kernels()).is_none());
}

#[test]
fn a_refused_kernel_leaves_no_files() {
    let scratch = Scratch::new("refused");
    let mut forged = Forged::new();
    forged.bytes[0x1000..0x1000 + BANNER.len()].fill(0);
    let path = scratch.file("vmlinux", &forged.bytes);
    let error = from_path(&scratch.kernels(), &path).unwrap_err();
    assert!(error.to_string().contains("says no version"), "{error}");
    assert_eq!(fs::read_dir(scratch.kernels()).unwrap().count(), 0);
}

#[test]
fn the_newest_built_kernel_is_used() {
    let scratch = Scratch::new("newest");
    for (inputs, version) in [("a", "6.12.9"), ("b", "6.12.115"), ("c", "6.1.200")] {
        let mut forged = Forged::new();
        let banner = format!("\0Linux version {version} (x)");
        forged.bytes[0x1000..0x1000 + banner.len()].copy_from_slice(banner.as_bytes());
        let file = memory(&forged.bytes);
        let meta = KernelMeta { inputs, origin: Origin::Built, build: Some(build_source(version)) };
        let flatten = |image: &File| flat::flatten(&ElfFile::read(&file)?, image);
        flat::keep(&scratch.kernels(), meta, flatten).unwrap();
    }
    fs::create_dir(scratch.kernels().join("broken")).unwrap();
    let (kernel, record) = built(&scratch.kernels()).unwrap();
    assert_eq!(kernel.version, "6.12.115");
    assert_eq!(record.source.as_deref(), Some("linux-source 6.12.115"));
    let config = fs::read_to_string(kernel.path.with_file_name(flat::CONFIG)).unwrap();
    assert_eq!(config, "CONFIG_A=y\n");
}

fn build_source(version: &str) -> flat::BuildSource {
    flat::BuildSource {
        fragment: "f".to_owned(),
        source: format!("linux-source {version}"),
        config: b"CONFIG_A=y\n".to_vec(),
    }
}

#[test]
fn a_record_that_does_not_fit_its_image_is_refused() {
    let scratch = Scratch::new("record");
    let path = scratch.file("vmlinux", &Forged::new().bytes);
    let kernel = from_path(&scratch.kernels(), &path).unwrap();
    let directory = kernel.path.parent().unwrap();
    let record = fs::read_to_string(directory.join(flat::RECORD)).unwrap();
    let at = |field: &str, value: &str| {
        let mut changed: serde_json::Value = serde_json::from_str(&record).unwrap();
        changed[field] = serde_json::from_str(value).unwrap();
        fs::write(directory.join(flat::RECORD), changed.to_string()).unwrap();
        from_path(&scratch.kernels(), directory).unwrap_err().to_string()
    };
    assert!(at("load", "4096").contains("cannot be loaded at 0x1000"));
    assert!(at("load", "16777217").contains("cannot be loaded at 0x1000001"));
    assert!(at("entry", "0").contains("entered outside of itself"));
    assert!(at("entry", "-1").contains("makes no sense"));
    assert!(at("arch", "\"sparc\"").contains("another machine: `sparc`"));
    assert!(at("version", "\"6.12\\u001b[2J\"").contains("no version"));
    fs::write(directory.join(flat::RECORD), &record).unwrap();
    File::options().write(true).open(&kernel.path).unwrap().set_len(0x2_0001).unwrap();
    let error = from_path(&scratch.kernels(), directory).unwrap_err();
    assert!(error.to_string().contains("its image has 131073 bytes"), "{error}");
}

#[test]
fn a_library_without_a_kernel_is_refused() {
    let scratch = Scratch::new("library");
    let mut forged = Forged::new();
    let path = scratch.file("libkrunfw.so.5", &forged.u16(16, 3).bytes);
    let error = from_library(&scratch.kernels(), &path).unwrap_err();
    assert!(error.to_string().contains("not a libkrunfw with a kernel in it"), "{error}");
}
