use super::*;
use msb_krun::backends::fs::SecContext;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

const ROOT: u64 = 1;
const CTX: Context = Context { uid: 1000, gid: 1000, pid: 1 };

struct TestShare(PathBuf);

impl TestShare {
    fn new(name: &str) -> TestShare {
        let path = std::env::temp_dir().join(format!("msb-share-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.join("shared")).unwrap();
        std::fs::write(path.join("outside"), "secret").unwrap();
        std::fs::write(path.join("shared/file"), "content").unwrap();
        TestShare(path)
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

impl Drop for TestShare {
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
fn names_that_leave_the_directory_are_refused() {
    let dir = TestShare::new("names");
    let share = dir.share(false, None);
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
    assert_eq!(std::fs::read(dir.0.join("outside")).unwrap(), b"secret");
    assert_eq!(std::fs::read_dir(dir.shared()).unwrap().count(), 1);
}

#[test]
fn a_listing_returns_no_inode_for_dotdot() {
    let dir = TestShare::new("listing");
    let share = dir.share(false, None);
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
fn entries_that_do_not_fit_into_a_listing_are_forgotten() {
    let dir = TestShare::new("held");
    let share = dir.share(false, None);
    let handle = share.opendir(CTX, ROOT, 0).unwrap().0.unwrap();
    let mut node = 0;
    let mut add = |_: msb_krun::backends::fs::DirEntry<'_>, found: Entry| {
        node = found.inode;
        Ok(usize::from(found.inode == 0))
    };
    share.readdirplus_for_each(CTX, ROOT, handle, 4096, 0, &mut add).unwrap();
    assert!(node > INIT_KRUN.1);
    refused(Errno::BADF, share.getattr(CTX, node, None));
}

#[test]
fn all_ioctls_are_refused() {
    let dir = TestShare::new("ioctl");
    let share = dir.share(false, None);
    let code = Arc::new(AtomicI32::new(7));
    let handle = share.opendir(CTX, ROOT, 0).unwrap().0.unwrap();
    // FS_IOC_GETFLAGS, FS_IOC_FSGETXATTR, and those of the server: export, exit code, remove.
    for call in [0x8008_6601, 0x801c_581f, 0x8010_7601, 0x7602, 0x7603] {
        refused(Errno::NOTTY, share.ioctl(CTX, ROOT, handle, 0, call, 3, 0, 16, &code));
    }
    assert_eq!(code.load(Ordering::SeqCst), 7);
    assert!(dir.shared().join("file").exists());
}

#[test]
fn the_servers_own_file_does_not_exist() {
    let dir = TestShare::new("phantom");
    let share = dir.share(false, None);
    refused(Errno::NOENT, share.lookup(CTX, ROOT, INIT_KRUN.0));
    assert_eq!(share.request_error(INIT_KRUN.1), Some(Errno::STALE.raw_os_error()));
    assert_eq!(share.request_error(ROOT), None);

    std::fs::write(dir.shared().join("init.krun"), "mine").unwrap();
    let found = share.lookup(CTX, ROOT, INIT_KRUN.0).unwrap();
    assert_eq!((found.attr.st_size, found.inode == INIT_KRUN.1), (4, false));
}

#[test]
fn a_read_only_share_is_not_changed() {
    let dir = TestShare::new("read-only");
    let share = dir.share(true, None);
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
    assert_eq!(std::fs::read(dir.shared().join("file")).unwrap(), b"content");
    assert_eq!(std::fs::read_dir(dir.shared()).unwrap().count(), 1);
}

#[test]
fn setid_bits_devices_and_privileged_xattrs_are_refused() {
    let dir = TestShare::new("rights");
    let share = dir.share(false, None);
    let file = share.lookup(CTX, ROOT, c"file").unwrap().inode;
    let (mut attr, _) = share.getattr(CTX, file, None).unwrap();
    for bits in [0o4000, 0o2000, 0o6000] {
        attr.st_mode = 0o100_755 | bits;
        refused(Errno::PERM, share.setattr(CTX, file, attr, None, SetattrValid::MODE));
        refused(Errno::PERM, share.create(CTX, ROOT, c"new", 0o755 | bits, false, 2, 0, none()));
        refused(Errno::PERM, share.mknod(CTX, ROOT, c"new", 0o100_755 | bits, 0, 0, none()));
        refused(Errno::PERM, share.mkdir(CTX, ROOT, c"new", 0o755 | bits, 0, none()));
    }
    // A character device, a block device and an unknown kind.
    for kind in [0o020_000, 0o060_000, 0] {
        refused(Errno::PERM, share.mknod(CTX, ROOT, c"new", kind | 0o644, 0, 0, none()));
    }
    for name in [c"security.capability", c"trusted.overlay.opaque", c"system.other"] {
        refused(Errno::OPNOTSUPP, share.setxattr(CTX, file, name, b"y", 0));
        refused(Errno::OPNOTSUPP, share.getxattr(CTX, file, name, 100));
        refused(Errno::OPNOTSUPP, share.removexattr(CTX, file, name));
    }
    assert!(
        is_allowed_xattr(b"user.overlay.opaque\0")
            && is_allowed_xattr(b"system.posix_acl_access\0")
    );
    let metadata = std::fs::metadata(dir.shared().join("file")).unwrap();
    assert_eq!(metadata.mode() & 0o6000, 0);
    assert_eq!(std::fs::read_dir(dir.shared()).unwrap().count(), 1);
}

#[test]
fn requests_that_crash_the_server_do_not_reach_it() {
    let dir = TestShare::new("deadly");
    let share = dir.share(false, None);
    let labelled = || Extensions { secctx: Some(SecContext::default()), sup_gid: None };
    refused(Errno::OPNOTSUPP, share.symlink(CTX, c"x", ROOT, c"new", labelled()));
    refused(Errno::OPNOTSUPP, share.mknod(CTX, ROOT, c"new", 0o100_644, 0, 0, labelled()));
    refused(Errno::OPNOTSUPP, share.mkdir(CTX, ROOT, c"new", 0o755, 0, labelled()));
    refused(Errno::OPNOTSUPP, share.create(CTX, ROOT, c"new", 0o644, false, 2, 0, labelled()));
    refused(Errno::INVAL, share.copyfilerange(CTX, ROOT, 1, 0, ROOT, 1, 0, 1, u64::MAX));
}

#[test]
fn only_files_and_directories_are_opened() {
    let dir = TestShare::new("kinds");
    let share = dir.share(false, None);
    std::os::unix::fs::symlink("../outside", dir.shared().join("link")).unwrap();
    let pipe = share.mknod(CTX, ROOT, c"pipe", 0o010_644, 0, 0, none()).unwrap().inode;
    let link = share.lookup(CTX, ROOT, c"link").unwrap().inode;
    // Opening a pipe would block until its other end is opened.
    refused(Errno::NXIO, share.open(CTX, pipe, false, 0));
    refused(Errno::LOOP, share.open(CTX, link, false, 0));
    refused(Errno::OPNOTSUPP, share.getxattr(CTX, pipe, c"user.a", 100));
    assert!(matches!(share.listxattr(CTX, pipe, 0), Ok(ListxattrReply::Count(0))));
    let (attr, _) = share.getattr(CTX, pipe, None).unwrap();
    refused(Errno::INVAL, share.setattr(CTX, pipe, attr, None, SetattrValid::SIZE));
}

#[test]
fn files_of_the_process_belong_to_the_guests_user() {
    let dir = TestShare::new("owner");
    let share = dir.share(false, Some((1234, 99)));
    let created = share.create(CTX, ROOT, c"new", 0o644, false, 2, 0, none()).unwrap().0;
    assert_eq!((created.attr.st_uid, created.attr.st_gid), (1234, 99));
    let metadata = std::fs::metadata(dir.shared().join("new")).unwrap();
    let own = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    assert_eq!((metadata.uid(), metadata.gid()), own);

    let both = SetattrValid::UID | SetattrValid::GID;
    let (same, _) = share.setattr(CTX, created.inode, created.attr, None, both).unwrap();
    assert_eq!((same.st_uid, same.st_gid), (1234, 99));
    let mut other = created.attr;
    other.st_uid = own.0;
    refused(Errno::PERM, share.setattr(CTX, created.inode, other, None, both));
}
