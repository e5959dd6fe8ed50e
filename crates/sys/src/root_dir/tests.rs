use super::*;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, symlink};

/// xorshift64: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// A temporary directory with a `root` in it and a canary file beside the root.
struct TestRoot {
    dir: PathBuf,
    root: RootDir,
}

impl TestRoot {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("msb-root-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("root")).unwrap();
        fs::create_dir(dir.join("outside")).unwrap();
        fs::write(dir.join("outside/canary"), "canary").unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(dir.join("root"), flags, Mode::empty()).unwrap();
        Self { dir, root: RootDir::of(root) }
    }

    /// Whether a resolved path is the root or below it.
    fn contains(&self, found: &PathInRoot) -> bool {
        let link = format!("/proc/self/fd/{}", found.as_fd().as_raw_fd());
        fs::read_link(link).unwrap().starts_with(self.dir.join("root"))
    }

    fn outside(&self) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> =
            fs::read_dir(&self.dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        all.extend(fs::read_dir(self.dir.join("outside")).unwrap().map(|e| e.unwrap().path()));
        all.sort();
        all
    }
}

impl Drop for TestRoot {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Random trees of symbolic links: absolute, with `..`, through each other, and magic links to
/// descriptors of this process that lead outside. What is opened, created or read below the root is
/// in the root.
#[test]
fn no_tree_of_links_leads_out_of_its_root() {
    let test = TestRoot::new("links");
    let (root, outside) = (test.dir.join("root"), test.dir.join("outside"));
    let outside_dir = fs::File::open(&outside).unwrap();
    // A magic link does not depend on where /proc is mounted: the root has a link to the real one.
    let magic = format!("/proc/self/fd/{}", outside_dir.as_raw_fd());
    let before = test.outside();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let names = ["a", "b", "c", "d", "e", "etc", "proc"];
    for _ in 0..60 {
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).unwrap();
        // The root was removed and created again, so it is opened again.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&root, flags, Mode::empty()).unwrap();
        let new_root = RootDir::of(opened);
        let path = |random: &mut Random| {
            let parts = 1 + random.below(3);
            (0..parts).map(|_| names[random.below(names.len())]).collect::<Vec<_>>().join("/")
        };
        for _ in 0..12 {
            let at = root.join(path(&mut random));
            let target = match random.below(8) {
                0 => magic.clone(),
                1 => format!("{magic}/canary"),
                2 => format!("{}/canary", outside.display()),
                3 => format!("{}{}", "../".repeat(1 + random.below(12)), outside.display()),
                4 => format!("/{}", path(&mut random)),
                5 => format!("../{}", path(&mut random)),
                6 => format!("/proc/self/{}", ["root", "cwd", "exe"][random.below(3)]),
                _ => path(&mut random),
            };
            // Only real directories below the root: otherwise the test itself would leave it.
            let above = at.parent().unwrap();
            if fs::canonicalize(above).is_ok_and(|above| above.starts_with(&root)) {
                match random.below(4) {
                    0 => drop(fs::create_dir(&at)),
                    // Never through an existing link.
                    1 => drop(fs::File::create_new(&at)),
                    _ => drop(symlink(target, &at)),
                }
            }
        }
        for _ in 0..30 {
            let up = "../".repeat(random.below(4));
            let path_text = format!("/{up}{}", path(&mut random));
            let found = [
                new_root.find(&path_text),
                new_root.find_itself(&path_text),
                new_root.find_unlinked(&path_text),
                new_root.make_directories(&path_text),
                new_root.make_file(&path_text),
            ];
            for found in found.into_iter().flatten() {
                assert!(test.contains(&found), "{path_text}");
            }
            let _ = new_root.make_directory(&path_text, 0o700);
            let _ = new_root.make_link("/etc", &path_text);
            assert_ne!(new_root.read_ordinary(&path_text, 100).as_deref(), Some(&b"canary"[..]));
            drop(new_root.write_new(&path_text, 0o600));
        }
        assert_eq!(test.outside(), before);
        assert_eq!(fs::read_to_string(outside.join("canary")).unwrap(), "canary");
    }
    drop(outside_dir);
}

/// With a /proc in the root: its ordinary files are found, its magic links are refused.
#[test]
fn magic_links_of_proc_are_refused() {
    let test = TestRoot::new("magic");
    let outside_dir = fs::File::open(test.dir.join("outside")).unwrap();
    let number = outside_dir.as_raw_fd();
    // The root of the host, below which the kernel's /proc is mounted.
    let root = RootDir::current().unwrap();
    let refused = |path: &str| root.find(path).unwrap_err().raw_os_error() == Some(libc::ELOOP);
    assert!(root.find("/proc/self/status").is_ok());
    assert!(refused(&format!("/proc/self/fd/{number}")));
    assert!(refused(&format!("/proc/self/fd/{number}/canary")));
    assert!(refused("/proc/self/root/etc"));
    assert!(refused("/proc/self/cwd"));
    assert!(refused("/proc/self/exe"));
    let link = test.dir.join("link");
    symlink(format!("/proc/self/fd/{number}/canary"), &link).unwrap();
    assert!(refused(link.to_str().unwrap()));
    assert_eq!(root.read_ordinary(&link, 100), None);
    // Files generated by the kernel about this process are no content of an image.
    assert_eq!(root.read_ordinary("/proc/self/maps", 4 << 20), None);
    assert_eq!(crate::files::read_ordinary("/proc/self/maps", 4 << 20), None);
}

#[test]
fn links_of_an_image_are_followed_inside_the_root() {
    let test = TestRoot::new("ordinary");
    let (root, at) = (test.dir.join("root"), &test.root);
    fs::create_dir_all(root.join("usr/share")).unwrap();
    fs::write(root.join("usr/share/hosts"), "hosts").unwrap();
    symlink("/usr/share", root.join("etc")).unwrap();
    symlink("nowhere", root.join("usr/share/dangling")).unwrap();
    assert_eq!(at.read_ordinary("/etc/hosts", 100).as_deref(), Some(&b"hosts"[..]));
    assert_eq!(at.read_ordinary("/etc/hosts", 4), None);
    assert_eq!(at.find_unlinked("/etc/hosts").unwrap_err().raw_os_error(), Some(libc::ELOOP));
    let inode = |path: &Path| fs::symlink_metadata(path).unwrap().ino();
    let found = at.make_directories("/etc/new/deep").unwrap();
    assert_eq!(found.stat().unwrap().st_ino, inode(&root.join("usr/share/new/deep")));
    assert!(at.make_file("/etc/dangling").unwrap().is_link());
    assert!(!root.join("usr/share/nowhere").exists());
    let made = at.make_file("/etc/made/file").unwrap();
    assert_eq!(made.stat().unwrap().st_ino, inode(&root.join("usr/share/made/file")));
    assert!(at.make_directory("/tmp", 0o1777).unwrap());
    assert!(!at.make_directory("/tmp", 0o755).unwrap());
    assert_eq!(fs::metadata(root.join("tmp")).unwrap().mode() & 0o7777, 0o1777);
}
