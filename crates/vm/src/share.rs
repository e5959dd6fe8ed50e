//! A directory of the host, as a guest's kernel may use it.
//!
//! The VMM's own file server does the work, but believes whatever it is asked: names that lead up
//! or out, its own ioctls that end the machine or empty the directory, and it shows a file of its
//! own everywhere. A hostile guest is a hostile kernel, so everything that comes from it passes
//! here first. What is asked for and not allowed is refused; nothing is repaired.

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

/// A change that the host makes is seen in the guest after this time.
const FRESH: Duration = Duration::from_secs(1);

/// The file that the server shows in every directory, and its node.
const PHANTOM: (&CStr, u64) = (c"init.krun", 2);
/// A file of the host that has the phantom's name, called so that the server does not notice.
const PHANTOM_AS_FILE: &CStr = c"./init.krun";

/// What a guest may say about how a file is opened; the rest is for its own kernel.
const OPENING: OFlags = OFlags::ACCMODE
    .union(OFlags::APPEND)
    .union(OFlags::TRUNC)
    .union(OFlags::NOATIME)
    .union(OFlags::SYNC)
    .union(OFlags::DSYNC);

/// The same bits as on the `process` tier.
const SET_ID_BITS: u32 = 0o6000;

/// The largest attribute, and the longest list of them, that Linux has.
const ATTRIBUTE_LIMIT: u32 = 64 << 10;

/// A directory of the host behind the rules.
pub(crate) struct HostDirectory {
    server: PassthroughFs,
    read_only: bool,
    ids: Option<Ids>,
}

/// Whose the files of a directory are. The process of the machine has one id, so everything that
/// it makes is its own.
#[derive(Debug, Clone, Copy)]
struct Ids {
    own: (u32, u32),
    guest: (u32, u32),
}

impl HostDirectory {
    /// Serves `path`. `owner` is who owns in the guest what this process owns outside; without
    /// one, ids are shown as they are.
    pub(crate) fn new(
        path: &Path,
        read_only: bool,
        owner: Option<(u32, u32)>,
    ) -> io::Result<HostDirectory> {
        let server = PassthroughFs::new(Config {
            entry_timeout: FRESH,
            attr_timeout: FRESH,
            cache_policy: CachePolicy::Auto,
            // The host may write as well, so what the guest writes is not kept back.
            writeback: false,
            root_dir: path.to_string_lossy().into_owned(),
            xattr: true,
            proc_sfd_rawfd: None,
            export_fsid: 0,
            export_table: None,
            allow_root_dir_delete: false,
        })?;
        let own = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        Ok(HostDirectory { server, read_only, ids: owner.map(|guest| Ids { own, guest }) })
    }

    fn writable(&self) -> io::Result<()> {
        if self.read_only { Err(Errno::ROFS.into()) } else { Ok(()) }
    }

    /// Whether something with this name may be made.
    fn may_make(&self, name: &CStr, extensions: &Extensions) -> io::Result<()> {
        check_name(name)?;
        // The server dies of these.
        if extensions.secctx.is_some() || extensions.sup_gid.is_some() {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.writable()
    }

    /// The flags to open with.
    fn opening(&self, flags: u32, also: OFlags) -> io::Result<u32> {
        let flags = OFlags::from_bits_retain(flags) & OPENING.union(also);
        if flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC) {
            self.writable()?;
        }
        Ok(flags.bits())
    }

    fn options(&self, mut options: OpenOptions) -> OpenOptions {
        // Programs are opened at every start. The guest asks for what a file's time and size are
        // and forgets its content when they have changed.
        options.set(OpenOptions::KEEP_CACHE, self.read_only);
        options
    }

    fn kind(&self, ctx: Context, inode: u64) -> io::Result<FileType> {
        let (attributes, _) = self.server.getattr(ctx, inode, None)?;
        Ok(FileType::from_raw_mode(attributes.st_mode))
    }

    fn find(&self, ctx: Context, parent: u64, name: &CStr) -> io::Result<Entry> {
        check_name(name)?;
        let name = if name == PHANTOM.0 { PHANTOM_AS_FILE } else { name };
        self.server.lookup(ctx, parent, name).map(|entry| self.shown(entry))
    }

    fn shown(&self, mut entry: Entry) -> Entry {
        self.show_ids(&mut entry.attr);
        entry
    }

    fn show_ids(&self, attributes: &mut stat64) {
        if let Some(Ids { own, guest }) = self.ids {
            if attributes.st_uid == own.0 {
                attributes.st_uid = guest.0;
            }
            if attributes.st_gid == own.1 {
                attributes.st_gid = guest.1;
            }
        }
    }

    /// Turns ids of the guest into those outside.
    fn take_ids(&self, attributes: &mut stat64, valid: SetattrValid) -> io::Result<()> {
        let outside = |id: u32, own: u32, guest: u32| match id {
            id if id == guest => Ok(own),
            id if id == own => Err(Errno::PERM),
            id => Ok(id),
        };
        if let Some(Ids { own, guest }) = self.ids {
            if valid.contains(SetattrValid::UID) {
                attributes.st_uid = outside(attributes.st_uid, own.0, guest.0)?;
            }
            if valid.contains(SetattrValid::GID) {
                attributes.st_gid = outside(attributes.st_gid, own.1, guest.1)?;
            }
        }
        Ok(())
    }

    /// Whether there is an attribute to ask for: the server opens the file for it, which is only
    /// harmless for files and directories.
    fn has_attributes(&self, ctx: Context, inode: u64) -> io::Result<bool> {
        Ok(matches!(self.kind(ctx, inode)?, FileType::RegularFile | FileType::Directory))
    }

    fn check_attribute(&self, ctx: Context, inode: u64, name: &CStr) -> io::Result<()> {
        match may_see(name.to_bytes()) && self.has_attributes(ctx, inode)? {
            true => Ok(()),
            false => Err(Errno::OPNOTSUPP.into()),
        }
    }
}

/// A name is that of a child, or it is refused: it goes to the host's kernel as it is.
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

/// Attributes that mean nothing to the host's kernel, and access lists. Not `security` and
/// `trusted`, which give rights.
fn may_see(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_")
}

/// What the process is allowed decides on the host; the guest's kernel has decided for its users.
fn as_owner(ctx: Context) -> Context {
    Context { uid: 0, gid: 0, pid: ctx.pid }
}

impl DynFileSystem for HostDirectory {
    fn request_error(&self, inode: u64) -> Option<i32> {
        (inode == PHANTOM.1).then(|| Errno::STALE.raw_os_error())
    }

    fn init(&self, capable: FsOptions) -> io::Result<FsOptions> {
        let mut capable = capable;
        // An overlay refuses directories that would have to be mounted first.
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
        let (mut attributes, fresh) = self.server.getattr(ctx, inode, handle)?;
        self.show_ids(&mut attributes);
        Ok((attributes, fresh))
    }

    fn setattr(
        &self,
        ctx: Context,
        inode: u64,
        mut attr: stat64,
        handle: Option<u64>,
        valid: SetattrValid,
    ) -> io::Result<(stat64, Duration)> {
        self.writable()?;
        if valid.contains(SetattrValid::MODE) {
            check_mode(attr.st_mode)?;
        }
        // Without a handle, the server opens what is to have another size.
        if valid.contains(SetattrValid::SIZE) && self.kind(ctx, inode)? != FileType::RegularFile {
            return Err(Errno::INVAL.into());
        }
        self.take_ids(&mut attr, valid)?;
        let (mut attributes, fresh) = self.server.setattr(ctx, inode, attr, handle, valid)?;
        self.show_ids(&mut attributes);
        Ok((attributes, fresh))
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
        self.may_make(name, &extensions)?;
        let made = self.server.symlink(as_owner(ctx), linkname, parent, name, extensions)?;
        Ok(self.shown(made))
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
        self.may_make(name, &extensions)?;
        check_mode(mode)?;
        match FileType::from_raw_mode(mode) {
            FileType::RegularFile | FileType::Fifo | FileType::Socket => {}
            _ => return Err(Errno::PERM.into()),
        }
        let made = self.server.mknod(as_owner(ctx), inode, name, mode, 0, umask, extensions)?;
        Ok(self.shown(made))
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
        self.may_make(name, &extensions)?;
        check_mode(mode)?;
        let made = self.server.mkdir(as_owner(ctx), parent, name, mode, umask, extensions)?;
        Ok(self.shown(made))
    }

    fn unlink(&self, ctx: Context, parent: u64, name: &CStr) -> io::Result<()> {
        check_name(name)?;
        self.writable()?;
        self.server.unlink(ctx, parent, name)
    }

    fn rmdir(&self, ctx: Context, parent: u64, name: &CStr) -> io::Result<()> {
        check_name(name)?;
        self.writable()?;
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
        self.writable()?;
        self.server.rename(ctx, olddir, oldname, newdir, newname, flags)
    }

    fn link(&self, ctx: Context, inode: u64, newparent: u64, newname: &CStr) -> io::Result<Entry> {
        check_name(newname)?;
        self.writable()?;
        self.server.link(ctx, inode, newparent, newname).map(|entry| self.shown(entry))
    }

    fn open(
        &self,
        ctx: Context,
        inode: u64,
        kill_priv: bool,
        flags: u32,
    ) -> io::Result<(Option<u64>, OpenOptions)> {
        let flags = self.opening(flags, OFlags::empty())?;
        // A guest opens pipes, sockets and devices itself; here they would be the host's.
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
        self.may_make(name, &extensions)?;
        check_mode(mode)?;
        let flags = self.opening(flags, OFlags::EXCL)?;
        let (entry, handle, options) = self.server.create(
            as_owner(ctx),
            parent,
            name,
            mode,
            kill_priv,
            flags,
            umask,
            extensions,
        )?;
        Ok((self.shown(entry), handle, self.options(options)))
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
        let to = ToGuest(w);
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
        self.writable()?;
        let from = FromGuest(r);
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
        self.writable()?;
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
        self.writable()?;
        self.check_attribute(ctx, inode, name)?;
        self.server.setxattr(ctx, inode, name, value, flags)
    }

    fn getxattr(
        &self,
        ctx: Context,
        inode: u64,
        name: &CStr,
        size: u32,
    ) -> io::Result<GetxattrReply> {
        self.check_attribute(ctx, inode, name)?;
        self.server.getxattr(ctx, inode, name, size.min(ATTRIBUTE_LIMIT))
    }

    fn listxattr(&self, ctx: Context, inode: u64, size: u32) -> io::Result<ListxattrReply> {
        let all = match self.has_attributes(ctx, inode)? {
            true => self.server.listxattr(ctx, inode, ATTRIBUTE_LIMIT)?,
            false => ListxattrReply::Names(Vec::new()),
        };
        let ListxattrReply::Names(all) = all else { return Err(Errno::IO.into()) };
        // What cannot be read must not be listed: an overlay copies what is.
        let mut names = Vec::new();
        for name in all.split_inclusive(|byte| *byte == 0).filter(|name| may_see(name)) {
            names.extend_from_slice(name);
        }
        match u32::try_from(names.len()) {
            Ok(needed) if size == 0 => Ok(ListxattrReply::Count(needed)),
            Ok(needed) if needed <= size => Ok(ListxattrReply::Names(names)),
            _ => Err(Errno::RANGE.into()),
        }
    }

    fn removexattr(&self, ctx: Context, inode: u64, name: &CStr) -> io::Result<()> {
        self.writable()?;
        self.check_attribute(ctx, inode, name)?;
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
        // The server's own way would hand out a node for `..`, and with it the host above.
        self.server.readdir(ctx, inode, handle, size, offset, |entry| {
            let name = CString::new(entry.name)?;
            let Ok(found) = self.find(ctx, inode, &name) else {
                // No node: the guest lists the name and looks it up when it needs it.
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
        self.writable()?;
        // Linux knows none; the server dies of large ones.
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
        // An overlay takes this for "no flags to copy", and any other error for a failure.
        Err(Errno::NOTTY.into())
    }
}

/// Where the server puts what it reads.
struct ToGuest<'a>(&'a mut dyn ZeroCopyWriter);

impl ZeroCopyWriter for ToGuest<'_> {
    fn write_from(&mut self, file: &File, count: usize, offset: u64) -> io::Result<usize> {
        self.0.write_from(file, count, offset)
    }
}

/// Only the phantom is written from memory.
impl io::Write for ToGuest<'_> {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        Err(Errno::BADF.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where the server takes what it writes from.
struct FromGuest<'a>(&'a mut dyn ZeroCopyReader);

impl ZeroCopyReader for FromGuest<'_> {
    fn read_to(&mut self, file: &File, count: usize, offset: u64) -> io::Result<usize> {
        self.0.read_to(file, count, offset)
    }
}

impl io::Read for FromGuest<'_> {
    fn read(&mut self, _bytes: &mut [u8]) -> io::Result<usize> {
        Err(Errno::BADF.into())
    }
}

#[cfg(test)]
mod tests;
