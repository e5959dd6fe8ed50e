//! A host directory as a virtiofs share for a hostile guest kernel.
//!
//! The VMM's own file server does the work, but trusts each request: names with `..` or `/`,
//! private ioctls that stop the microVM or empty the directory, and a synthetic file in each
//! directory. So all requests are checked here first. What is not allowed is refused; nothing is
//! corrected.

use msb_krun::backends::fs::{
    AddDirEntry, AddDirEntryPlus, Context, DynFileSystem, Entry, Extensions, FsOptions,
    GetxattrReply, ListxattrReply, OpenOptions, SetattrValid, ZeroCopyReader, ZeroCopyWriter,
    stat64, statvfs64,
};
use msb_krun_devices::virtio::fs::filesystem::FileSystem;
use msb_krun_devices::virtio::fs::passthrough::{CachePolicy, Config, PassthroughFs};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicI32;
use std::time::Duration;

/// Attributes and names are cached in the guest for this time: changes on the host are seen after
/// it.
const CACHE_TIMEOUT: Duration = Duration::from_secs(1);

/// Name and inode of the synthetic file that the server adds to each directory.
const INIT_KRUN: (&CStr, u64) = (c"init.krun", 2);
/// Another path to a real file of that name, which the server does not replace.
const INIT_KRUN_PATH: &CStr = c"./init.krun";

/// Flags of open(2) that are passed to the host; the others are for the guest's kernel.
const OPEN_FLAGS: OFlags = OFlags::ACCMODE
    .union(OFlags::APPEND)
    .union(OFlags::TRUNC)
    .union(OFlags::NOATIME)
    .union(OFlags::SYNC)
    .union(OFlags::DSYNC);

/// Setuid and setgid, refused as on the `process` tier.
const SET_ID_BITS: u32 = 0o6000;

/// Largest extended attribute, and longest list of them, in Linux.
const XATTR_LIMIT: u32 = 64 << 10;

/// A host directory with the checks of this module.
pub(crate) struct HostDirectory {
    server: PassthroughFs,
    read_only: bool,
    ids: Option<OwnerMap>,
}

/// Ownership of files. The VMM process has one id, so it owns all files that it creates.
#[derive(Debug, Clone, Copy)]
struct OwnerMap {
    own: (u32, u32),
    guest: (u32, u32),
}

impl HostDirectory {
    /// Serves `path`. `owner` owns inside what this process owns on the host; without it, ids are
    /// passed unchanged.
    pub(crate) fn new(
        path: &Path,
        read_only: bool,
        owner: Option<(u32, u32)>,
    ) -> io::Result<HostDirectory> {
        let server = PassthroughFs::new(Config {
            entry_timeout: CACHE_TIMEOUT,
            attr_timeout: CACHE_TIMEOUT,
            cache_policy: CachePolicy::Auto,
            // The host may write too, so writes of the guest are not cached.
            writeback: false,
            root_dir: path.to_string_lossy().into_owned(),
            xattr: true,
            proc_sfd_rawfd: None,
            export_fsid: 0,
            export_table: None,
            allow_root_dir_delete: false,
        })?;
        let own = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        Ok(HostDirectory { server, read_only, ids: owner.map(|guest| OwnerMap { own, guest }) })
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.read_only { Err(Errno::ROFS.into()) } else { Ok(()) }
    }

    /// Checks that an entry of this name may be created.
    fn check_create(&self, name: &CStr, extensions: &Extensions) -> io::Result<()> {
        check_name(name)?;
        // The server panics on these.
        if extensions.secctx.is_some() || extensions.sup_gid.is_some() {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.check_writable()
    }

    /// Checks and masks the flags of an open.
    fn open_flags(&self, flags: u32, also: OFlags) -> io::Result<u32> {
        let flags = OFlags::from_bits_retain(flags) & OPEN_FLAGS.union(also);
        if flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC) {
            self.check_writable()?;
        }
        Ok(flags.bits())
    }

    fn options(&self, mut options: OpenOptions) -> OpenOptions {
        // Programs are opened at each start. The guest compares mtime and size and drops its cache
        // when they have changed.
        options.set(OpenOptions::KEEP_CACHE, self.read_only);
        options
    }

    fn kind(&self, ctx: Context, inode: u64) -> io::Result<FileType> {
        let (attributes, _) = self.server.getattr(ctx, inode, None)?;
        Ok(FileType::from_raw_mode(attributes.st_mode))
    }

    fn find(&self, ctx: Context, parent: u64, name: &CStr) -> io::Result<Entry> {
        check_name(name)?;
        let name = if name == INIT_KRUN.0 { INIT_KRUN_PATH } else { name };
        self.server.lookup(ctx, parent, name).map(|entry| self.with_guest_ids(entry))
    }

    fn with_guest_ids(&self, mut entry: Entry) -> Entry {
        self.to_guest_ids(&mut entry.attr);
        entry
    }

    fn to_guest_ids(&self, attributes: &mut stat64) {
        if let Some(OwnerMap { own, guest }) = self.ids {
            if attributes.st_uid == own.0 {
                attributes.st_uid = guest.0;
            }
            if attributes.st_gid == own.1 {
                attributes.st_gid = guest.1;
            }
        }
    }

    /// Maps ids of the guest to host ids.
    fn to_host_ids(&self, attributes: &mut stat64, valid: SetattrValid) -> io::Result<()> {
        let outside = |id: u32, own: u32, guest: u32| match id {
            id if id == guest => Ok(own),
            id if id == own => Err(Errno::PERM),
            id => Ok(id),
        };
        if let Some(OwnerMap { own, guest }) = self.ids {
            if valid.contains(SetattrValid::UID) {
                attributes.st_uid = outside(attributes.st_uid, own.0, guest.0)?;
            }
            if valid.contains(SetattrValid::GID) {
                attributes.st_gid = outside(attributes.st_gid, own.1, guest.1)?;
            }
        }
        Ok(())
    }

    /// Whether extended attributes are supported: the server opens the file for them, which is
    /// harmless only for files and directories.
    fn has_xattrs(&self, ctx: Context, inode: u64) -> io::Result<bool> {
        Ok(matches!(self.kind(ctx, inode)?, FileType::RegularFile | FileType::Directory))
    }

    fn check_xattr(&self, ctx: Context, inode: u64, name: &CStr) -> io::Result<()> {
        match is_allowed_xattr(name.to_bytes()) && self.has_xattrs(ctx, inode)? {
            true => Ok(()),
            false => Err(Errno::OPNOTSUPP.into()),
        }
    }
}

/// Refuses names that are not those of a direct child: the host's kernel gets them unchanged.
fn check_name(name: &CStr) -> io::Result<()> {
    match name.to_bytes() {
        b"" | b"." | b".." => Err(Errno::INVAL.into()),
        name if name.contains(&b'/') => Err(Errno::INVAL.into()),
        _ => Ok(()),
    }
}

fn check_mode(mode: u32) -> io::Result<()> {
    if mode & SET_ID_BITS == 0 { Ok(()) } else { Err(Errno::PERM.into()) }
}

/// Attributes without meaning for the host's kernel, and ACLs. Not `security` and `trusted`, which
/// grant rights.
fn is_allowed_xattr(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_")
}

/// Requests as root of the guest: on the host the rights of the process decide, and the guest's
/// kernel has checked its own users.
fn as_root(ctx: Context) -> Context {
    Context { uid: 0, gid: 0, pid: ctx.pid }
}

impl DynFileSystem for HostDirectory {
    fn request_error(&self, inode: u64) -> Option<i32> {
        (inode == INIT_KRUN.1).then(|| Errno::STALE.raw_os_error())
    }

    fn init(&self, capable: FsOptions) -> io::Result<FsOptions> {
        let mut capable = capable;
        // An overlay refuses directories that are automount points.
        capable.set(FsOptions::SUBMOUNTS, self.ids.is_some());
        self.server.init(capable)
    }

    fn destroy(&self) {
        self.server.destroy();
    }

    fn lookup(&self, ctx: Context, parent: u64, name: &CStr) -> io::Result<Entry> {
        self.find(ctx, parent, name)
    }

    fn forget(&self, ctx: Context, inode: u64, count: u64) {
        self.server.forget(ctx, inode, count);
    }

    fn batch_forget(&self, ctx: Context, requests: Vec<(u64, u64)>) {
        self.server.batch_forget(ctx, requests);
    }

    fn getattr(
        &self,
        ctx: Context,
        inode: u64,
        handle: Option<u64>,
    ) -> io::Result<(stat64, Duration)> {
        let (mut attributes, timeout) = self.server.getattr(ctx, inode, handle)?;
        self.to_guest_ids(&mut attributes);
        Ok((attributes, timeout))
    }

    fn setattr(
        &self,
        ctx: Context,
        inode: u64,
        mut attr: stat64,
        handle: Option<u64>,
        valid: SetattrValid,
    ) -> io::Result<(stat64, Duration)> {
        self.check_writable()?;
        if valid.contains(SetattrValid::MODE) {
            check_mode(attr.st_mode)?;
        }
        // Without a handle, the server opens the file to change its size.
        if valid.contains(SetattrValid::SIZE) && self.kind(ctx, inode)? != FileType::RegularFile {
            return Err(Errno::INVAL.into());
        }
        self.to_host_ids(&mut attr, valid)?;
        let (mut attributes, timeout) = self.server.setattr(ctx, inode, attr, handle, valid)?;
        self.to_guest_ids(&mut attributes);
        Ok((attributes, timeout))
    }

    fn readlink(&self, ctx: Context, inode: u64) -> io::Result<Vec<u8>> {
        self.server.readlink(ctx, inode)
    }

    fn symlink(
        &self,
        ctx: Context,
        linkname: &CStr,
        parent: u64,
        name: &CStr,
        extensions: Extensions,
    ) -> io::Result<Entry> {
        self.check_create(name, &extensions)?;
        let created = self.server.symlink(as_root(ctx), linkname, parent, name, extensions)?;
        Ok(self.with_guest_ids(created))
    }

    fn mknod(
        &self,
        ctx: Context,
        inode: u64,
        name: &CStr,
        mode: u32,
        _rdev: u32,
        umask: u32,
        extensions: Extensions,
    ) -> io::Result<Entry> {
        self.check_create(name, &extensions)?;
        check_mode(mode)?;
        match FileType::from_raw_mode(mode) {
            FileType::RegularFile | FileType::Fifo | FileType::Socket => {}
            _ => return Err(Errno::PERM.into()),
        }
        let created = self.server.mknod(as_root(ctx), inode, name, mode, 0, umask, extensions)?;
        Ok(self.with_guest_ids(created))
    }

    fn mkdir(
        &self,
        ctx: Context,
        parent: u64,
        name: &CStr,
        mode: u32,
        umask: u32,
        extensions: Extensions,
    ) -> io::Result<Entry> {
        self.check_create(name, &extensions)?;
        check_mode(mode)?;
        let created = self.server.mkdir(as_root(ctx), parent, name, mode, umask, extensions)?;
        Ok(self.with_guest_ids(created))
    }

    fn unlink(&self, ctx: Context, parent: u64, name: &CStr) -> io::Result<()> {
        check_name(name)?;
        self.check_writable()?;
        self.server.unlink(ctx, parent, name)
    }

    fn rmdir(&self, ctx: Context, parent: u64, name: &CStr) -> io::Result<()> {
        check_name(name)?;
        self.check_writable()?;
        self.server.rmdir(ctx, parent, name)
    }

    fn rename(
        &self,
        ctx: Context,
        olddir: u64,
        oldname: &CStr,
        newdir: u64,
        newname: &CStr,
        flags: u32,
    ) -> io::Result<()> {
        check_name(oldname)?;
        check_name(newname)?;
        self.check_writable()?;
        self.server.rename(ctx, olddir, oldname, newdir, newname, flags)
    }

    fn link(&self, ctx: Context, inode: u64, newparent: u64, newname: &CStr) -> io::Result<Entry> {
        check_name(newname)?;
        self.check_writable()?;
        self.server.link(ctx, inode, newparent, newname).map(|entry| self.with_guest_ids(entry))
    }

    fn open(
        &self,
        ctx: Context,
        inode: u64,
        kill_priv: bool,
        flags: u32,
    ) -> io::Result<(Option<u64>, OpenOptions)> {
        let flags = self.open_flags(flags, OFlags::empty())?;
        // A guest opens pipes, sockets and devices itself; here they would be those of the host.
        match self.kind(ctx, inode)? {
            FileType::RegularFile | FileType::Directory => {}
            FileType::Symlink => return Err(Errno::LOOP.into()),
            _ => return Err(Errno::NXIO.into()),
        }
        let (handle, options) = self.server.open(ctx, inode, kill_priv, flags)?;
        Ok((handle, self.options(options)))
    }

    fn create(
        &self,
        ctx: Context,
        parent: u64,
        name: &CStr,
        mode: u32,
        kill_priv: bool,
        flags: u32,
        umask: u32,
        extensions: Extensions,
    ) -> io::Result<(Entry, Option<u64>, OpenOptions)> {
        self.check_create(name, &extensions)?;
        check_mode(mode)?;
        let flags = self.open_flags(flags, OFlags::EXCL)?;
        let (entry, handle, options) = self.server.create(
            as_root(ctx),
            parent,
            name,
            mode,
            kill_priv,
            flags,
            umask,
            extensions,
        )?;
        Ok((self.with_guest_ids(entry), handle, self.options(options)))
    }

    fn read(
        &self,
        ctx: Context,
        inode: u64,
        handle: u64,
        w: &mut dyn ZeroCopyWriter,
        size: u32,
        offset: u64,
        lock_owner: Option<u64>,
        flags: u32,
    ) -> io::Result<usize> {
        let to = GuestWriter(w);
        self.server.read(ctx, inode, handle, to, size, offset, lock_owner, flags)
    }

    fn write(
        &self,
        ctx: Context,
        inode: u64,
        handle: u64,
        r: &mut dyn ZeroCopyReader,
        size: u32,
        offset: u64,
        lock_owner: Option<u64>,
        delayed_write: bool,
        kill_priv: bool,
        flags: u32,
    ) -> io::Result<usize> {
        self.check_writable()?;
        let from = GuestReader(r);
        self.server.write(
            ctx,
            inode,
            handle,
            from,
            size,
            offset,
            lock_owner,
            delayed_write,
            kill_priv,
            flags,
        )
    }

    fn flush(&self, ctx: Context, inode: u64, handle: u64, lock_owner: u64) -> io::Result<()> {
        self.server.flush(ctx, inode, handle, lock_owner)
    }

    fn fsync(&self, ctx: Context, inode: u64, datasync: bool, handle: u64) -> io::Result<()> {
        self.server.fsync(ctx, inode, datasync, handle)
    }

    fn fallocate(
        &self,
        ctx: Context,
        inode: u64,
        handle: u64,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> io::Result<()> {
        self.check_writable()?;
        self.server.fallocate(ctx, inode, handle, mode, offset, length)
    }

    fn release(
        &self,
        ctx: Context,
        inode: u64,
        flags: u32,
        handle: u64,
        flush: bool,
        flock_release: bool,
        lock_owner: Option<u64>,
    ) -> io::Result<()> {
        self.server.release(ctx, inode, flags, handle, flush, flock_release, lock_owner)
    }

    fn statfs(&self, ctx: Context, inode: u64) -> io::Result<statvfs64> {
        self.server.statfs(ctx, inode)
    }

    fn setxattr(
        &self,
        ctx: Context,
        inode: u64,
        name: &CStr,
        value: &[u8],
        flags: u32,
    ) -> io::Result<()> {
        self.check_writable()?;
        self.check_xattr(ctx, inode, name)?;
        self.server.setxattr(ctx, inode, name, value, flags)
    }

    fn getxattr(
        &self,
        ctx: Context,
        inode: u64,
        name: &CStr,
        size: u32,
    ) -> io::Result<GetxattrReply> {
        self.check_xattr(ctx, inode, name)?;
        self.server.getxattr(ctx, inode, name, size.min(XATTR_LIMIT))
    }

    fn listxattr(&self, ctx: Context, inode: u64, size: u32) -> io::Result<ListxattrReply> {
        let all = match self.has_xattrs(ctx, inode)? {
            true => self.server.listxattr(ctx, inode, XATTR_LIMIT)?,
            false => ListxattrReply::Names(Vec::new()),
        };
        let ListxattrReply::Names(all) = all else { return Err(Errno::IO.into()) };
        // Attributes that cannot be read are not listed: an overlay copies all that are.
        let mut names = Vec::new();
        for name in all.split_inclusive(|byte| *byte == 0).filter(|name| is_allowed_xattr(name)) {
            names.extend_from_slice(name);
        }
        match u32::try_from(names.len()) {
            Ok(needed) if size == 0 => Ok(ListxattrReply::Count(needed)),
            Ok(needed) if needed <= size => Ok(ListxattrReply::Names(names)),
            _ => Err(Errno::RANGE.into()),
        }
    }

    fn removexattr(&self, ctx: Context, inode: u64, name: &CStr) -> io::Result<()> {
        self.check_writable()?;
        self.check_xattr(ctx, inode, name)?;
        self.server.removexattr(ctx, inode, name)
    }

    fn opendir(
        &self,
        ctx: Context,
        inode: u64,
        _flags: u32,
    ) -> io::Result<(Option<u64>, OpenOptions)> {
        self.server.opendir(ctx, inode, 0)
    }

    fn readdir_for_each(
        &self,
        ctx: Context,
        inode: u64,
        handle: u64,
        size: u32,
        offset: u64,
        add_entry: &mut AddDirEntry<'_>,
    ) -> io::Result<()> {
        self.server.readdir(ctx, inode, handle, size, offset, add_entry)
    }

    fn readdirplus_for_each(
        &self,
        ctx: Context,
        inode: u64,
        handle: u64,
        size: u32,
        offset: u64,
        add_entry: &mut AddDirEntryPlus<'_>,
    ) -> io::Result<()> {
        // The server's own readdirplus returns an inode for `..`, and with it the parent directory
        // on the host.
        self.server.readdir(ctx, inode, handle, size, offset, |entry| {
            let name = CString::new(entry.name)?;
            let Ok(found) = self.find(ctx, inode, &name) else {
                // No inode: the guest lists the name and looks it up when it needs it.
                let (attr, attr_timeout) = self.server.getattr(ctx, inode, None)?;
                let unknown = Entry {
                    inode: 0,
                    generation: 0,
                    attr,
                    attr_flags: 0,
                    attr_timeout,
                    entry_timeout: attr_timeout,
                };
                return add_entry(entry, unknown);
            };
            let node = found.inode;
            let added = add_entry(entry, found);
            if !matches!(added, Ok(1..)) {
                self.server.forget(ctx, node, 1);
            }
            added
        })
    }

    fn fsyncdir(&self, ctx: Context, inode: u64, datasync: bool, handle: u64) -> io::Result<()> {
        self.server.fsyncdir(ctx, inode, datasync, handle)
    }

    fn releasedir(&self, ctx: Context, inode: u64, flags: u32, handle: u64) -> io::Result<()> {
        self.server.releasedir(ctx, inode, flags, handle)
    }

    fn access(&self, ctx: Context, inode: u64, mask: u32) -> io::Result<()> {
        self.server.access(ctx, inode, mask)
    }

    fn lseek(
        &self,
        ctx: Context,
        inode: u64,
        handle: u64,
        offset: u64,
        whence: u32,
    ) -> io::Result<u64> {
        self.server.lseek(ctx, inode, handle, offset, whence)
    }

    fn copyfilerange(
        &self,
        ctx: Context,
        inode_in: u64,
        handle_in: u64,
        offset_in: u64,
        inode_out: u64,
        handle_out: u64,
        offset_out: u64,
        len: u64,
        flags: u64,
    ) -> io::Result<usize> {
        self.check_writable()?;
        // Linux defines no flags; the server panics on large ones.
        if flags != 0 {
            return Err(Errno::INVAL.into());
        }
        self.server.copyfilerange(
            ctx, inode_in, handle_in, offset_in, inode_out, handle_out, offset_out, len, flags,
        )
    }

    fn ioctl(
        &self,
        _ctx: Context,
        _inode: u64,
        _handle: u64,
        _flags: u32,
        _cmd: u32,
        _arg: u64,
        _in_size: u32,
        _out_size: u32,
        _exit_code: &Arc<AtomicI32>,
    ) -> io::Result<Vec<u8>> {
        // An overlay takes ENOTTY for "no flags to copy", and any other error for a failure.
        Err(Errno::NOTTY.into())
    }
}

/// Destination of data that the server reads for the guest.
struct GuestWriter<'a>(&'a mut dyn ZeroCopyWriter);

impl ZeroCopyWriter for GuestWriter<'_> {
    fn write_from(&mut self, file: &File, count: usize, offset: u64) -> io::Result<usize> {
        self.0.write_from(file, count, offset)
    }
}

/// Only the synthetic file is written from memory.
impl io::Write for GuestWriter<'_> {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        Err(Errno::BADF.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Source of data that the server writes for the guest.
struct GuestReader<'a>(&'a mut dyn ZeroCopyReader);

impl ZeroCopyReader for GuestReader<'_> {
    fn read_to(&mut self, file: &File, count: usize, offset: u64) -> io::Result<usize> {
        self.0.read_to(file, count, offset)
    }
}

impl io::Read for GuestReader<'_> {
    fn read(&mut self, _bytes: &mut [u8]) -> io::Result<usize> {
        Err(Errno::BADF.into())
    }
}

#[cfg(test)]
mod tests;
