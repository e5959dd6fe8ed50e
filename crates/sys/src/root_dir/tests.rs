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

/// A directory of the test, with a root in it and a canary beside that, which nothing may reach.
struct Scene {
    place: PathBuf,
    root: RootDir,
}

impl Scene {
    fn new(name: &str) -> Self {
        let place = std::env::temp_dir().join(format!("msb-root-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&place);
        fs::create_dir_all(place.join("root")).unwrap();
        fs::create_dir(place.join("outside")).unwrap();
        fs::write(place.join("outside/canary"), "canary").unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(place.join("root"), flags, Mode::empty()).unwrap();
        Self { place, root: RootDir::of(root) }
    }

    /// Whether something that was found is in the root, or is it.
    fn holds(&self, found: &PathInRoot) -> bool {
        let link = format!("/proc/self/fd/{}", found.as_fd().as_raw_fd());
        fs::read_link(link).unwrap().starts_with(self.place.join("root"))
    }

    fn outside(&self) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> =
            fs::read_dir(&self.place).unwrap().map(|entry| entry.unwrap().path()).collect();
        all.extend(fs::read_dir(self.place.join("outside")).unwrap().map(|e| e.unwrap().path()));
        all.sort();
        all
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.place);
    }
}

/// Random trees of links: absolute, upwards, through each other, and magic ones to descriptors of this
/// process that lead outside. Whatever is found, made or read below the root is in the root.
#[test]
fn no_tree_of_links_leads_out_of_its_root() {
    let scene = Scene::new("links");
    let (root, outside) = (scene.place.join("root"), scene.place.join("outside"));
    let held = fs::File::open(&outside).unwrap();
    // A magic link does not depend on where /proc is mounted: the root has a link to the real one.
    let magic = format!("/proc/self/fd/{}", held.as_raw_fd());
    let before = scene.outside();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let names = ["a", "b", "c", "d", "e", "etc", "proc"];
    for _ in 0..60 {
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).unwrap();
        // The root was made anew, so it is opened anew.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&root, flags, Mode::empty()).unwrap();
        let scene_root = RootDir::of(opened);
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
            // Only real directories below the root, or the test itself would leave it.
            let above = at.parent().unwrap();
            if fs::canonicalize(above).is_ok_and(|above| above.starts_with(&root)) {
                match random.below(4) {
                    0 => drop(fs::create_dir(&at)),
                    // Never through a link that is there.
                    1 => drop(fs::File::create_new(&at)),
                    _ => drop(symlink(target, &at)),
                }
            }
        }
        for _ in 0..30 {
            let up = "../".repeat(random.below(4));
            let asked = format!("/{up}{}", path(&mut random));
            let found = [
                scene_root.find(&asked),
                scene_root.find_itself(&asked),
                scene_root.find_unlinked(&asked),
                scene_root.make_directories(&asked),
                scene_root.make_file(&asked),
            ];
            for found in found.into_iter().flatten() {
                assert!(scene.holds(&found), "{asked}");
            }
            let _ = scene_root.make_directory(&asked, 0o700);
            let _ = scene_root.make_link("/etc", &asked);
            assert_ne!(scene_root.read_ordinary(&asked, 100).as_deref(), Some(&b"canary"[..]));
            drop(scene_root.write_new(&asked, 0o600));
        }
        assert_eq!(scene.outside(), before);
        assert_eq!(fs::read_to_string(outside.join("canary")).unwrap(), "canary");
    }
    drop(held);
}

/// The same with a /proc in the root: names of it are read, its magic links are refused.
#[test]
fn magic_links_of_proc_are_refused() {
    let scene = Scene::new("magic");
    let held = fs::File::open(scene.place.join("outside")).unwrap();
    let number = held.as_raw_fd();
    // As the root of the whole machine, below which the kernel's /proc is.
    let root = RootDir::current().unwrap();
    let refused = |path: &str| root.find(path).unwrap_err().raw_os_error() == Some(libc::ELOOP);
    assert!(root.find("/proc/self/status").is_ok());
    assert!(refused(&format!("/proc/self/fd/{number}")));
    assert!(refused(&format!("/proc/self/fd/{number}/canary")));
    assert!(refused("/proc/self/root/etc"));
    assert!(refused("/proc/self/cwd"));
    assert!(refused("/proc/self/exe"));
    let link = scene.place.join("link");
    symlink(format!("/proc/self/fd/{number}/canary"), &link).unwrap();
    assert!(refused(link.to_str().unwrap()));
    assert_eq!(root.read_ordinary(&link, 100), None);
    // What the kernel writes about this process is nothing that an image says.
    assert_eq!(root.read_ordinary("/proc/self/maps", 4 << 20), None);
    assert_eq!(crate::files::read_ordinary("/proc/self/maps", 4 << 20), None);
}

#[test]
fn links_of_an_ordinary_image_lead_where_they_mean() {
    let scene = Scene::new("ordinary");
    let (root, at) = (scene.place.join("root"), &scene.root);
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
