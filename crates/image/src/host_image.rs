//! The `host` image: the programs of this host, without its private files.
//!
//! Two small layers are derived from the host and cached: a skeleton of `/` with an /etc from an
//! allowlist, and writable copies of the directories of /usr that installers write into. A change
//! of their sources on the host makes new layers.

mod allowlist;

use crate::{PreparedImage, Progress, ProgressEvent};
use allowlist::{
    BESIDE_USR, DIRECTORY_LIMIT, EMPTY, ETC, EXTERNALLY_MANAGED, PROGRAMS, PYTHON, VERSION,
    WRITABLE,
};
use msb_spec::{Error, ImageRef, Lower, Overlay, Result};
use rustix::fs::{CWD, FileType, Mode};
use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File, Metadata, Permissions};
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(crate) fn prepare(cache: &Path, progress: &dyn Progress) -> Result<PreparedImage> {
    let derived = current_layer(cache);
    if !derived.is_dir() {
        progress.step(ProgressEvent::HostImage);
        derive(cache, &derived).map_err(|error| {
            Error::host(format!("cannot derive the host image in `{}`", cache.display()), error)
        })?;
    }
    let own = |path: PathBuf| Lower::of_image(path);
    let host = |path: &str| Lower { path: PathBuf::from(path), owned: false, written_as: None };
    let mut overlays =
        vec![Overlay { at: "/".to_owned(), lowers: vec![own(derived.join("root"))] }];
    for tree in PROGRAMS.iter().filter(|tree| Path::new(tree).is_dir()) {
        let mut lowers = Vec::new();
        let writable = derived.join(tree.trim_start_matches('/'));
        if writable.is_dir() {
            lowers.push(own(writable));
        }
        lowers.push(host(tree));
        overlays.push(Overlay { at: (*tree).to_owned(), lowers });
    }
    for tree in ["/usr/local"].into_iter().chain(BESIDE_USR) {
        if needs_own_overlay(tree) {
            let mut lowers = vec![host(tree)];
            let writable = derived.join(tree.trim_start_matches('/'));
            if writable.is_dir() {
                lowers.insert(0, own(writable));
            }
            overlays.push(Overlay { at: tree.to_owned(), lowers });
        }
    }
    let owners = derived.join(USER_OWNED).exists();
    Ok(PreparedImage {
        path: extra_path(),
        owners,
        ..PreparedImage::plain(overlays, ImageRef::Host)
    })
}

/// Marker next to the layers: the user that runs msb owns files below /usr or /opt, or may create
/// some. They may be private, so the sandbox must run under another id.
const USER_OWNED: &str = "owned";

/// Path of the layers for the current state of the host.
pub(crate) fn current_layer(cache: &Path) -> PathBuf {
    cache.join(format!("host-{:016x}", fingerprint()))
}

/// Whether the overlay of the parent does not show this tree: a mount point, or a real directory
/// next to /usr.
fn needs_own_overlay(tree: &str) -> bool {
    let device =
        |path: &Path| fs::symlink_metadata(path).ok().filter(Metadata::is_dir).map(|m| m.dev());
    let path = Path::new(tree);
    match (device(path), path.parent().and_then(device)) {
        (Some(own), Some(parent)) => own != parent || parent_is_root(path),
        _ => false,
    }
}

fn parent_is_root(path: &Path) -> bool {
    path.parent() == Some(Path::new("/"))
}

/// Directories on the caller's PATH below /usr and /opt, where version managers install.
fn extra_path() -> Vec<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let ours = |dir: &&str| PROGRAMS.iter().any(|tree| Path::new(dir).starts_with(tree));
    path.split(':').filter(ours).map(str::to_owned).collect()
}

/// A hash that changes when packages are installed or removed.
fn fingerprint() -> u64 {
    let mut hash = DefaultHasher::new();
    VERSION.hash(&mut hash);
    let mut add = |path: &Path| {
        if let Ok(meta) = fs::symlink_metadata(path) {
            (path, meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.mode()).hash(&mut hash);
        }
    };
    for path in
        ["/etc/passwd", "/etc/group", "/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives"]
    {
        add(Path::new(path));
    }
    for path in ["/etc", "/etc/ssl/certs", "/opt", "/usr", "/usr/bin", "/usr/lib", "/usr/local"] {
        add(Path::new(path));
    }
    for path in [
        "/usr/local/bin",
        "/usr/local/lib",
        "/usr/lib/node_modules",
        "/usr/lib/python3/dist-packages",
    ] {
        add(Path::new(path));
    }
    hash.finish()
}

/// Builds the layers in a temporary directory; `rename(2)` is the commit point.
fn derive(cache: &Path, derived: &Path) -> io::Result<()> {
    fs::create_dir_all(cache)?;
    // One process builds while the others wait. Fifty in parallel would take minutes for the same
    // work.
    let _lock = lock_cache(cache)?;
    if derived.is_dir() {
        return Ok(());
    }
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let temp = cache.join(format!(".making-{number}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&temp);
    fs::create_dir(&temp)?;
    // The root user of the sandbox must be able to enter it, whatever the umask is.
    fs::set_permissions(&temp, Permissions::from_mode(0o755))?;
    let made = make_root(&temp.join("root"))
        .and_then(|()| make_writable_usr(&temp.join("usr")))
        .and_then(|()| make_directory(&temp.join("opt"), 0o755))
        .and_then(|()| {
            let mut left = DIRECTORY_LIMIT;
            mirror_directories(Path::new("/opt"), &temp.join("opt"), &mut left)
        })
        .and_then(|()| match HostUser::current().owns_in(&PROGRAMS) {
            true => write(&temp.join(USER_OWNED), ""),
            false => Ok(()),
        })
        .and_then(|()| match fs::rename(&temp, derived) {
            // Another process was faster. Its result is the same.
            Err(_) if derived.is_dir() => Ok(()),
            renamed => renamed,
        });
    let _ = fs::remove_dir_all(&temp);
    made
}

/// The ids that make a file the user's own.
struct HostUser {
    uid: u32,
    groups: Vec<u32>,
}

impl HostUser {
    fn current() -> Self {
        let groups = rustix::process::getgroups().unwrap_or_default();
        let groups = groups.into_iter().chain([rustix::process::getegid()]);
        Self {
            uid: rustix::process::geteuid().as_raw(),
            // Group 0 proves nothing: it is the default group of system files.
            groups: groups.map(rustix::fs::Gid::as_raw).filter(|gid| *gid != 0).collect(),
        }
    }

    /// Whether the user or one of its groups owns something in these trees, or a directory is
    /// world-writable. False for root of the host, whose id is not mapped in a
    /// sandbox.
    fn owns_in(&self, trees: &[&str]) -> bool {
        let mut directories: Vec<PathBuf> = trees.iter().map(PathBuf::from).collect();
        if self.uid == 0 {
            // In a container everything belongs to its root, which is the sandbox's root too.
            return !msb_sys::id_map::is_host_root();
        }
        while let Some(directory) = directories.pop() {
            let Ok(meta) = fs::symlink_metadata(&directory) else { continue };
            if !meta.is_dir() {
                continue;
            }
            if self.owns(&meta) || meta.mode() & 0o002 != 0 {
                return true;
            }
            for entry in fs::read_dir(&directory).into_iter().flatten().filter_map(Result::ok) {
                match entry.metadata() {
                    Ok(meta) if meta.is_dir() => directories.push(entry.path()),
                    Ok(meta) if meta.is_file() && self.owns(&meta) => return true,
                    _ => {}
                }
            }
        }
        false
    }

    fn owns(&self, meta: &Metadata) -> bool {
        meta.uid() == self.uid || self.groups.contains(&meta.gid())
    }
}

/// Waits for the lock on the cache. After the limit the caller continues without it, because the
/// result is the same.
fn lock_cache(cache: &Path) -> io::Result<File> {
    /// Longer than building the layers takes on a slow disk.
    const LOCK_LIMIT: Duration = Duration::from_secs(30);
    let file =
        File::options().create(true).truncate(false).write(true).open(cache.join(".lock"))?;
    let since = Instant::now();
    while !msb_sys::lock::try_lock(&file)? && since.elapsed() < LOCK_LIMIT {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(file)
}

fn make_root(root: &Path) -> io::Result<()> {
    make_directory(root, 0o755)?;
    for (name, mode) in EMPTY {
        make_directory(&root.join(name), mode)?;
    }
    for beside in BESIDE_USR {
        let target = root.join(beside.trim_start_matches('/'));
        match fs::symlink_metadata(beside) {
            Ok(meta) if meta.is_symlink() => symlink(fs::read_link(beside)?, target)?,
            Ok(meta) if meta.is_dir() => make_directory(&target, 0o755)?,
            _ => {}
        }
    }
    for (link, target) in
        [("var/run", "/run"), ("var/lock", "/run/lock"), ("etc/mtab", "/proc/self/mounts")]
    {
        symlink(target, root.join(link))?;
    }
    make_etc(&root.join("etc"))
}

fn make_etc(etc: &Path) -> io::Result<()> {
    let entries =
        fs::read_dir("/etc")?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let names: Vec<String> = entries.collect();
    for wanted in ETC {
        match wanted.strip_suffix('*') {
            Some(prefix) => {
                for name in names.iter().filter(|name| name.starts_with(prefix)) {
                    copy_readable(&Path::new("/etc").join(name), &etc.join(name))?;
                }
            }
            None => {
                let target = etc.join(wanted);
                if let Some(parent) = target.parent().filter(|parent| !parent.is_dir()) {
                    make_directory(parent, 0o755)?;
                }
                copy_readable(&Path::new("/etc").join(wanted), &target)?;
            }
        }
    }
    let users = |file: &str, field: usize| -> String {
        let text = fs::read_to_string(file).unwrap_or_default();
        let of_system = |line: &&str| {
            let id = line.split(':').nth(field).and_then(|id| id.parse::<u32>().ok());
            id.is_some_and(|id| id < 1000 || id == 65534)
        };
        text.lines().filter(of_system).map(|line| format!("{line}\n")).collect()
    };
    write(&etc.join("passwd"), &users("/etc/passwd", 2))?;
    write(&etc.join("group"), &members_removed(&users("/etc/group", 2)))?;
    write(&etc.join("hosts"), "127.0.0.1 localhost\n::1 localhost\n")?;
    write(&etc.join("resolv.conf"), "")
}

/// Removes group members: they are users of the host.
fn members_removed(groups: &str) -> String {
    let line =
        |line: &str| line.rsplit_once(':').map_or(String::new(), |(rest, _)| format!("{rest}:\n"));
    groups.lines().map(line).collect()
}

/// Copies a file, symlink or tree, as far as it is world-readable.
fn copy_readable(from: &Path, to: &Path) -> io::Result<()> {
    let Ok(meta) = fs::symlink_metadata(from) else {
        return Ok(());
    };
    if meta.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if meta.is_file() && meta.mode() & 0o004 != 0 {
        fs::copy(from, to)?;
        return fs::set_permissions(to, Permissions::from_mode(meta.mode() & 0o755 | 0o644));
    }
    if meta.is_dir() && meta.mode() & 0o005 == 0o005 {
        make_directory(to, 0o755)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy_readable(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn make_writable_usr(usr: &Path) -> io::Result<()> {
    let mut left = DIRECTORY_LIMIT;
    for wanted in WRITABLE {
        let (name, below) = match wanted.strip_suffix("/**") {
            Some(name) => (name, true),
            None => (wanted, false),
        };
        mirror_directory(Path::new("/usr"), usr, name, below, &mut left)?;
    }
    for entry in fs::read_dir("/usr/lib")?.filter_map(Result::ok) {
        let name = entry.file_name();
        if !name.to_string_lossy().starts_with(PYTHON) || !entry.path().is_dir() {
            continue;
        }
        let name = format!("lib/{}", name.to_string_lossy());
        mirror_directory(Path::new("/usr"), usr, &name, true, &mut left)?;
        if entry.path().join(EXTERNALLY_MANAGED).exists() {
            // Whiteout: a character device 0/0 hides the file in the lower layer.
            let hidden = usr.join(&name).join(EXTERNALLY_MANAGED);
            rustix::fs::mknodat(CWD, &hidden, FileType::CharacterDevice, Mode::empty(), 0)?;
        }
    }
    Ok(())
}

/// Creates an empty copy of a directory, and with `below` of all its subdirectories.
fn mirror_directory(
    host: &Path,
    own: &Path,
    name: &str,
    below: bool,
    left: &mut usize,
) -> io::Result<()> {
    let (from, to) = (host.join(name), own.join(name));
    match fs::symlink_metadata(&from) {
        Ok(meta) if meta.is_dir() => {}
        // Missing, or a symlink whose target has its own entry in the list.
        _ if name != "local" => return Ok(()),
        _ => {}
    }
    fs::create_dir_all(&to)?;
    fs::set_permissions(&to, Permissions::from_mode(0o755))?;
    if below { mirror_directories(&from, &to, left) } else { Ok(()) }
}

/// Creates an empty copy of every world-accessible subdirectory.
fn mirror_directories(from: &Path, to: &Path, left: &mut usize) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(from) else {
        return Ok(());
    };
    for entry in entries.filter_map(Result::ok) {
        let Ok(meta) = entry.metadata() else { continue };
        if !meta.is_dir() || meta.mode() & 0o005 != 0o005 || *left == 0 {
            continue;
        }
        *left -= 1;
        let target = to.join(entry.file_name());
        make_directory(&target, meta.mode() & 0o755)?;
        mirror_directories(&entry.path(), &target, left)?;
    }
    Ok(())
}

fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    if !path.is_dir() {
        fs::create_dir(path)?;
    }
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_groups_are_not_shown() {
        assert_eq!(members_removed("sudo:x:27:ann,bob\nroot:x:0:\n"), "sudo:x:27:\nroot:x:0:\n");
    }

    #[test]
    fn files_that_are_not_world_readable_are_not_copied() {
        let directory = std::env::temp_dir().join(format!("msb-host-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (open, closed) = (directory.join("open"), directory.join("closed"));
        for (path, mode) in [(&open, 0o644), (&closed, 0o640)] {
            fs::write(path, "x").unwrap();
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            copy_readable(path, &path.with_extension("copy")).unwrap();
        }
        assert!(open.with_extension("copy").exists());
        assert!(!closed.with_extension("copy").exists());
        fs::remove_dir_all(directory).unwrap();
    }
}
