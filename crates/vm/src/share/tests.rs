use super::*;
use msb_krun::backends::fs::SecContext;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

const ROOT: u64 = 1;
const CTX: Context = Context { uid: 1000, gid: 1000, pid: 1 };

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("msb-share-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.join("shared")).unwrap();
        std::fs::write(path.join("outside"), "secret").unwrap();
        std::fs::write(path.join("shared/file"), "content").unwrap();
        Place(path)
    }

    fn shared(&self) -> PathBuf {
        self.0.join("shared")
    }

    fn share(&self, read_only: bool, owner: Option<(u32, u32)>) -> HostDirectory {
        let share = HostDirectory::new(&self.shared(), read_only, owner).unwrap();
        share.init(FsOptions::all()).unwrap();
        share
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct NoData;

impl ZeroCopyReader for NoData {
    fn read_to(&mut self, _file: &File, _count: usize, _offset: u64) -> io::Result<usize> {
        panic!("something was written")
    }
}

#[track_caller]
fn refused<T>(errno: Errno, result: io::Result<T>) {
    let found = result.err().map(|error| error.raw_os_error());
    assert_eq!(found, Some(Some(errno.raw_os_error())));
}

fn none() -> Extensions {
    Extensions::default()
}

#[test]
fn names_that_are_no_childs_are_refused() {
    let place = Place::new("names");
    let share = place.share(false, None);
    let file = share.lookup(CTX, ROOT, c"file").unwrap().inode;
    let bad = [c"", c".", c"..", c"../outside", c"a/../../outside", c"/etc", c"file/"];
    for name in bad {
        refused(Errno::INVAL, share.lookup(CTX, ROOT, name));
        refused(Errno::INVAL, share.symlink(CTX, c"x", ROOT, name, none()));
        refused(Errno::INVAL, share.mknod(CTX, ROOT, name, 0o100_644, 0, 0, none()));
        refused(Errno::INVAL, share.mkdir(CTX, ROOT, name, 0o755, 0, none()));
        refused(Errno::INVAL, share.create(CTX, ROOT, name, 0o644, false, 2, 0, none()));
        refused(Errno::INVAL, share.unlink(CTX, ROOT, name));
        refused(Errno::INVAL, share.rmdir(CTX, ROOT, name));
        refused(Errno::INVAL, share.rename(CTX, ROOT, name, ROOT, c"new", 0));
        refused(Errno::INVAL, share.rename(CTX, ROOT, c"file", ROOT, name, 0));
        refused(Errno::INVAL, share.link(CTX, file, ROOT, name));
    }
    assert!(share.lookup(CTX, ROOT, c"..file").is_err_and(|e| e.kind() == io::ErrorKind::NotFound));
    assert_eq!(std::fs::read(place.0.join("outside")).unwrap(), b"secret");
    assert_eq!(std::fs::read_dir(place.shared()).unwrap().count(), 1);
}

#[test]
fn listing_hands_out_no_node_above() {
    let place = Place::new("listing");
    let share = place.share(false, None);
    let handle = share.opendir(CTX, ROOT, 0).unwrap().0.unwrap();
    let mut nodes = Vec::new();
    let mut take = |name: &[u8], node: u64| {
        nodes.push((String::from_utf8_lossy(name).into_owned(), node > 0));
        Ok(1)
    };
    let mut add =
        |entry: msb_krun::backends::fs::DirEntry<'_>, found: Entry| take(entry.name, found.inode);
    share.readdirplus_for_each(CTX, ROOT, handle, 4096, 0, &mut add).unwrap();
    nodes.sort();
    let expected = [(".", false), ("..", false), ("file", true)];
    assert_eq!(nodes, expected.map(|(name, node)| (name.to_owned(), node)));
}

#[test]
fn what_does_not_fit_into_a_listing_is_not_held() {
    let place = Place::new("held");
    let share = place.share(false, None);
    let handle = share.opendir(CTX, ROOT, 0).unwrap().0.unwrap();
    let mut node = 0;
    let mut add = |_: msb_krun::backends::fs::DirEntry<'_>, found: Entry| {
        node = found.inode;
        Ok(usize::from(found.inode == 0))
    };
    share.readdirplus_for_each(CTX, ROOT, handle, 4096, 0, &mut add).unwrap();
    assert!(node > PHANTOM.1);
    refused(Errno::BADF, share.getattr(CTX, node, None));
}

#[test]
fn no_ioctl_is_known() {
    let place = Place::new("ioctl");
    let share = place.share(false, None);
    let code = Arc::new(AtomicI32::new(7));
    let handle = share.opendir(CTX, ROOT, 0).unwrap().0.unwrap();
    // FS_IOC_GETFLAGS, FS_IOC_FSGETXATTR, and the server's own: export, exit code, remove.
    for call in [0x8008_6601, 0x801c_581f, 0x8010_7601, 0x7602, 0x7603] {
        refused(Errno::NOTTY, share.ioctl(CTX, ROOT, handle, 0, call, 3, 0, 16, &code));
    }
    assert_eq!(code.load(Ordering::SeqCst), 7);
    assert!(place.shared().join("file").exists());
}

#[test]
fn the_servers_own_file_does_not_exist() {
    let place = Place::new("phantom");
    let share = place.share(false, None);
    refused(Errno::NOENT, share.lookup(CTX, ROOT, PHANTOM.0));
    assert_eq!(share.request_error(PHANTOM.1), Some(Errno::STALE.raw_os_error()));
    assert_eq!(share.request_error(ROOT), None);

    std::fs::write(place.shared().join("init.krun"), "mine").unwrap();
    let found = share.lookup(CTX, ROOT, PHANTOM.0).unwrap();
    assert_eq!((found.attr.st_size, found.inode == PHANTOM.1), (4, false));
}

#[test]
fn a_read_only_share_is_not_changed() {
    let place = Place::new("read-only");
    let share = place.share(true, None);
    let file = share.lookup(CTX, ROOT, c"file").unwrap().inode;
    let (handle, options) = share.open(CTX, file, false, 0).unwrap();
    assert!(options.contains(OpenOptions::KEEP_CACHE));
    let handle = handle.unwrap();
    let (mut attr, _) = share.getattr(CTX, file, None).unwrap();
    attr.st_size = 0;

    let size = SetattrValid::SIZE;
    refused(Errno::ROFS, share.setattr(CTX, file, attr, None, size));
    refused(Errno::ROFS, share.symlink(CTX, c"x", ROOT, c"new", none()));
    refused(Errno::ROFS, share.mknod(CTX, ROOT, c"new", 0o100_644, 0, 0, none()));
    refused(Errno::ROFS, share.mkdir(CTX, ROOT, c"new", 0o755, 0, none()));
    refused(Errno::ROFS, share.create(CTX, ROOT, c"new", 0o644, false, 0, 0, none()));
    refused(Errno::ROFS, share.unlink(CTX, ROOT, c"file"));
    refused(Errno::ROFS, share.rmdir(CTX, ROOT, c"file"));
    refused(Errno::ROFS, share.rename(CTX, ROOT, c"file", ROOT, c"new", 0));
    refused(Errno::ROFS, share.link(CTX, file, ROOT, c"new"));
    for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::TRUNC] {
        refused(Errno::ROFS, share.open(CTX, file, false, flags.bits()));
    }
    let mut data = NoData;
    let written = share.write(CTX, file, handle, &mut data, 1, 0, None, false, false, 0);
    refused(Errno::ROFS, written);
    refused(Errno::ROFS, share.fallocate(CTX, file, handle, 0, 0, 10));
    refused(Errno::ROFS, share.copyfilerange(CTX, file, handle, 0, file, handle, 0, 1, 0));
    refused(Errno::ROFS, share.setxattr(CTX, file, c"user.a", b"b", 0));
    refused(Errno::ROFS, share.removexattr(CTX, file, c"user.a"));
    assert_eq!(std::fs::read(place.shared().join("file")).unwrap(), b"content");
    assert_eq!(std::fs::read_dir(place.shared()).unwrap().count(), 1);
}

#[test]
fn no_file_gets_rights_and_no_device_is_made() {
    let place = Place::new("rights");
    let share = place.share(false, None);
    let file = share.lookup(CTX, ROOT, c"file").unwrap().inode;
    let (mut attr, _) = share.getattr(CTX, file, None).unwrap();
    for bits in [0o4000, 0o2000, 0o6000] {
        attr.st_mode = 0o100_755 | bits;
        refused(Errno::PERM, share.setattr(CTX, file, attr, None, SetattrValid::MODE));
        refused(Errno::PERM, share.create(CTX, ROOT, c"new", 0o755 | bits, false, 2, 0, none()));
        refused(Errno::PERM, share.mknod(CTX, ROOT, c"new", 0o100_755 | bits, 0, 0, none()));
        refused(Errno::PERM, share.mkdir(CTX, ROOT, c"new", 0o755 | bits, 0, none()));
    }
    // A character and a block device, and nothing known.
    for kind in [0o020_000, 0o060_000, 0] {
        refused(Errno::PERM, share.mknod(CTX, ROOT, c"new", kind | 0o644, 0, 0, none()));
    }
    for name in [c"security.capability", c"trusted.overlay.opaque", c"system.other"] {
        refused(Errno::OPNOTSUPP, share.setxattr(CTX, file, name, b"y", 0));
        refused(Errno::OPNOTSUPP, share.getxattr(CTX, file, name, 100));
        refused(Errno::OPNOTSUPP, share.removexattr(CTX, file, name));
    }
    assert!(may_see(b"user.overlay.opaque\0") && may_see(b"system.posix_acl_access\0"));
    let metadata = std::fs::metadata(place.shared().join("file")).unwrap();
    assert_eq!(metadata.mode() & 0o6000, 0);
    assert_eq!(std::fs::read_dir(place.shared()).unwrap().count(), 1);
}

#[test]
fn what_the_server_dies_of_does_not_reach_it() {
    let place = Place::new("deadly");
    let share = place.share(false, None);
    let labelled = || Extensions { secctx: Some(SecContext::default()), sup_gid: None };
    refused(Errno::OPNOTSUPP, share.symlink(CTX, c"x", ROOT, c"new", labelled()));
    refused(Errno::OPNOTSUPP, share.mknod(CTX, ROOT, c"new", 0o100_644, 0, 0, labelled()));
    refused(Errno::OPNOTSUPP, share.mkdir(CTX, ROOT, c"new", 0o755, 0, labelled()));
    refused(Errno::OPNOTSUPP, share.create(CTX, ROOT, c"new", 0o644, false, 2, 0, labelled()));
    refused(Errno::INVAL, share.copyfilerange(CTX, ROOT, 1, 0, ROOT, 1, 0, 1, u64::MAX));
}

#[test]
fn only_files_and_directories_are_opened() {
    let place = Place::new("kinds");
    let share = place.share(false, None);
    std::os::unix::fs::symlink("../outside", place.shared().join("link")).unwrap();
    let pipe = share.mknod(CTX, ROOT, c"pipe", 0o010_644, 0, 0, none()).unwrap().inode;
    let link = share.lookup(CTX, ROOT, c"link").unwrap().inode;
    // Opening a pipe would wait for its other end.
    refused(Errno::NXIO, share.open(CTX, pipe, false, 0));
    refused(Errno::LOOP, share.open(CTX, link, false, 0));
    refused(Errno::OPNOTSUPP, share.getxattr(CTX, pipe, c"user.a", 100));
    assert!(matches!(share.listxattr(CTX, pipe, 0), Ok(ListxattrReply::Count(0))));
    let (attr, _) = share.getattr(CTX, pipe, None).unwrap();
    refused(Errno::INVAL, share.setattr(CTX, pipe, attr, None, SetattrValid::SIZE));
}

#[test]
fn what_the_process_owns_is_the_users_in_the_guest() {
    let place = Place::new("owner");
    let share = place.share(false, Some((1234, 99)));
    let made = share.create(CTX, ROOT, c"new", 0o644, false, 2, 0, none()).unwrap().0;
    assert_eq!((made.attr.st_uid, made.attr.st_gid), (1234, 99));
    let metadata = std::fs::metadata(place.shared().join("new")).unwrap();
    let own = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    assert_eq!((metadata.uid(), metadata.gid()), own);

    let both = SetattrValid::UID | SetattrValid::GID;
    let (same, _) = share.setattr(CTX, made.inode, made.attr, None, both).unwrap();
    assert_eq!((same.st_uid, same.st_gid), (1234, 99));
    let mut other = made.attr;
    other.st_uid = own.0;
    refused(Errno::PERM, share.setattr(CTX, made.inode, other, None, both));
}
