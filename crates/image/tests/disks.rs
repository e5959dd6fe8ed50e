//! Cached disks of images: packed once, kept while needed, never incomplete.

use msb_image::{InUse, LoadOptions, NoProgress, Owners, Progress, ProgressEvent, Prune, Store};
use msb_spec::{Kind, Reference};
use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A state directory that is removed when dropped.
struct Home(PathBuf);

impl Home {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("msb-disks-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("its mode");
        Self(path)
    }

    fn store(&self) -> Store {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let owners = match uid.is_root() {
            true => Owners::All,
            false => Owners::Single { uid: uid.as_raw(), gid: gid.as_raw() },
        };
        self.store_of(owners)
    }

    fn store_of(&self, owners: Owners) -> Store {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_msb-image-helper"));
        Store::open(&self.0, owners, program).expect("a store")
    }

    fn files(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.0.join(directory)).into_iter().flatten();
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<String> =
            names.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A layer with one file.
fn layer(name: &str, contents: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_size(contents.len() as u64);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_data(&mut header, name, contents).expect("an entry");
    builder.into_inner().expect("a layer")
}

/// An archive in the format of `docker save`.
fn archive(layers: &[Vec<u8>]) -> Vec<u8> {
    let hex = |bytes: &[u8]| {
        let digest = Sha256::digest(bytes);
        digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let diff_ids: Vec<String> =
        layers.iter().map(|layer| format!("sha256:{}", hex(layer))).collect();
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = serde_json::json!({
        "architecture": architecture,
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    let names: Vec<String> = (0..layers.len()).map(|number| format!("{number}.tar")).collect();
    let manifest =
        serde_json::json!([{"Config": "config.json", "RepoTags": null, "Layers": names}]);
    let mut builder = tar::Builder::new(Vec::new());
    let mut add = |name: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, bytes).expect("an entry");
    };
    add("config.json", config.to_string().as_bytes());
    for (name, layer) in names.iter().zip(layers) {
        add(name, layer);
    }
    add("manifest.json", manifest.to_string().as_bytes());
    builder.into_inner().expect("an archive")
}

/// Loads an image with these layers.
fn load(store: &Store, name: &str, layers: &[Vec<u8>]) -> msb_image::Image {
    let name = Some(Reference::parse(name).expect("a name"));
    let load = LoadOptions { name, platform: None };
    let images = store.load_archive(&mut archive(layers).as_slice(), &load, &NoProgress);
    images.expect("an image").remove(0)
}

/// Counts the disks that are packed.
#[derive(Default)]
struct DiskCounter(AtomicU32);

impl Progress for DiskCounter {
    fn step(&self, step: ProgressEvent<'_>) {
        if let ProgressEvent::Disk { .. } = step {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl DiskCounter {
    fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

fn record(disk: &Path) -> serde_json::Value {
    let text = fs::read(disk.with_extension("json")).expect("a note");
    serde_json::from_slice(&text).expect("a note")
}

/// Makes a record look like that of an earlier boot.
fn pretend_other_boot(disk: &Path) {
    let mut record = record(disk);
    record["boot"] = "another".into();
    fs::write(disk.with_extension("json"), record.to_string()).expect("a note");
}

#[test]
fn a_disk_is_made_once_and_shared_by_images_of_the_same_layers() {
    let home = Home::new("once");
    let store = home.store();
    let layers = [layer("a", b"a"), layer("b", &[b'b'; 100_000])];
    let image = load(&store, "one", &layers);
    let other = load(&store, "other", &layers);
    let more = load(&store, "more", &[&layers[..], &[layer("c", b"c")]].concat());
    let made = DiskCounter::default();
    let disk = store.disk(&image.layers, &made).unwrap();
    assert_eq!(disk.parent().unwrap(), home.0.join("disks"));
    assert_eq!(store.disk(&image.layers, &made).unwrap(), disk);
    assert_eq!(store.disk(&other.layers, &made).unwrap(), disk);
    assert_eq!(made.count(), 1);
    assert_ne!(store.disk(&more.layers, &made).unwrap(), disk);
    assert_eq!(made.count(), 2);
    let meta = fs::metadata(&disk).unwrap();
    assert_eq!(meta.mode() & 0o777, 0o600);
    assert_eq!(store.space().disks, home_blocks(&home));
    assert_eq!((home.files("disks").len(), home.files("partial")), (4, Vec::<String>::new()));
}

fn home_blocks(home: &Home) -> u64 {
    let disks = home.files("disks");
    let disks = disks.iter().filter(|name| name.ends_with(".erofs"));
    let blocks = |name: &String| fs::metadata(home.0.join("disks").join(name)).map(|m| m.blocks());
    disks.map(|name| blocks(name).expect("a disk") * 512).sum()
}

#[test]
fn disk_bytes_do_not_depend_on_owners() {
    let layers = [layer("a", b"a"), layer("dir/b", &[7; 9000]), layer("a", b"second")];
    let mut disks = Vec::new();
    let single = Owners::Single {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    };
    for (name, owners) in [("first", None), ("single", Some(single))] {
        let home = Home::new(name);
        let store = owners.map_or_else(|| home.store(), |owners| home.store_of(owners));
        let image = load(&store, "image", &layers);
        disks.push(fs::read(store.disk(&image.layers, &NoProgress).unwrap()).unwrap());
    }
    assert!(disks[0] == disks[1]);
}

#[test]
fn concurrent_requests_make_a_disk_once() {
    let home = Home::new("several");
    let store = home.store();
    let image = load(&store, "image", &[layer("a", &vec![1; 3 << 20])]);
    let made = DiskCounter::default();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| store.disk(&image.layers, &made).unwrap());
        }
    });
    assert_eq!(made.count(), 1);
    assert_eq!(home.files("disks").len(), 2);
}

#[test]
fn a_disk_goes_when_neither_an_image_nor_a_sandbox_needs_it() {
    let home = Home::new("prune");
    let store = home.store();
    let image = load(&store, "image", &[layer("a", b"a")]);
    let disk = store.disk(&image.layers, &NoProgress).unwrap();
    let prune = Prune::default();
    assert_eq!(store.prune(&prune, &InUse::default()).unwrap().disks, 0);
    store.forget(&image.reference).unwrap();
    let used = InUse { disks: [disk.clone()].into(), ..InUse::default() };
    assert_eq!(store.prune(&prune, &used).unwrap().disks, 0);
    assert!(disk.is_file());
    let pruned = store.prune(&prune, &InUse::default()).unwrap();
    assert!(pruned.disks == 1 && pruned.failed.is_empty(), "{pruned:?}");
    assert_eq!(home.files("disks"), Vec::<String>::new());
}

#[test]
fn after_another_boot_a_disk_is_verified_and_rebuilt_if_damaged() {
    let home = Home::new("boot");
    let store = home.store();
    let image = load(&store, "image", &[layer("dir/a", &vec![b'a'; 1 << 20])]);
    let made = DiskCounter::default();
    let disk = store.disk(&image.layers, &made).unwrap();
    let whole = fs::read(&disk).unwrap();
    assert!(record(&disk)["boot"].is_string());

    pretend_other_boot(&disk);
    store.disk(&image.layers, &made).unwrap();
    assert_eq!((made.count(), &record(&disk)["boot"]), (1, &serde_json::Value::Null));

    // What a power loss can leave: truncation, holes, other bytes, no record, no file.
    let damages: [fn(&Path); 5] = [
        |disk| File::options().write(true).open(disk).unwrap().set_len(8192).unwrap(),
        |disk| {
            let file = File::options().write(true).open(disk).unwrap();
            let hole =
                rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, hole, 65_536, 65_536).unwrap();
        },
        |disk| {
            let mut file = File::options().write(true).open(disk).unwrap();
            file.seek(SeekFrom::End(-4096)).unwrap();
            file.write_all(&[0; 4096]).unwrap();
        },
        |disk| fs::remove_file(disk.with_extension("json")).unwrap(),
        |disk| fs::remove_file(disk).unwrap(),
    ];
    for (number, damage) in (2..).zip(damages) {
        if disk.with_extension("json").exists() {
            pretend_other_boot(&disk);
        }
        damage(&disk);
        store.disk(&image.layers, &made).unwrap();
        assert_eq!(made.count(), number);
        assert!(fs::read(&disk).unwrap() == whole, "damage {number}");
    }
}

#[test]
fn nothing_is_left_of_a_disk_that_cannot_be_made() {
    let home = Home::new("failed");
    let store = home.store();
    let image = load(&store, "image", &[layer("a", b"a"), layer("b", b"b")]);
    let mut changed = image.layers.clone();
    changed[1].diff_id = changed[0].diff_id.clone();
    changed[0].diff_id = image.layers[1].diff_id.clone();
    let error = store.disk(&changed, &NoProgress).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error:?}");

    let blob = home.0.join("blobs/sha256").join(image.layers[1].digest.hex());
    let mut bytes = Vec::new();
    File::open(&blob).unwrap().read_to_end(&mut bytes).unwrap();
    let last = bytes.len() / 2;
    bytes[last] ^= 1;
    fs::write(&blob, &bytes).unwrap();
    let error = store.disk(&image.layers, &NoProgress).unwrap_err();
    assert_eq!(error.kind(), Kind::State, "{error:?}");
    assert!(!blob.exists(), "a damaged blob is not read again");
    let error = store.disk(&image.layers, &NoProgress).unwrap_err();
    assert!(error.kind() == Kind::State && error.advice().is_some(), "{error:?}");

    fs::write(home.0.join("config.toml"), "[image_limits]\nbytes = '1K'\n").unwrap();
    let error = home.store().disk(&image.layers[..1], &NoProgress).unwrap_err();
    assert_eq!(error.kind(), Kind::Limit, "{error:?}");
    assert_eq!((home.files("disks"), home.files("partial")), (Vec::new(), Vec::new()));
}
