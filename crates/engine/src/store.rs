//! The state directory (`MSB_HOME`): every path below it is built here.

use crate::{layers, rename};
use msb_spec::{Error, Ids, Kind, Name, Plan, Result, VolumeName, env, state};
use msb_sys::files;
pub(crate) use msb_sys::tree::{TempDir, remove as remove_tree, temp_name};
use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The state directory. Its owner and mode were checked when it was opened.
#[derive(Debug, Clone)]
pub struct Home {
    root: PathBuf,
}

/// A sandbox directory, locked by this process.
#[derive(Debug)]
pub(crate) struct LockedSandbox {
    pub(crate) directory: PathBuf,
    pub(crate) lock: File,
}

/// The most bytes of a Plan that are read. Most have a few KiB; patches may carry texts.
const PLAN_LIMIT: u64 = 64 << 20;

/// The owner of a range of host ids.
#[derive(Debug, Clone, Copy)]
pub(crate) enum IdRangeOwner<'a> {
    Sandbox(&'a Name),
    Volume(&'a VolumeName),
}

/// Two sandboxes or volumes chose the same id range at the same time.
pub(crate) fn id_range_taken() -> Error {
    Error::new(Kind::State, "another sandbox or volume took the same host ids at the same time")
        .hint("try again")
}

impl Home {
    /// Opens `MSB_HOME` or `~/.msb`, and creates it with mode 0700 if it is missing.
    pub fn open() -> Result<Self> {
        Self::at(&Self::chosen_path()?)
    }

    /// The path of `MSB_HOME` or `~/.msb`, whether or not it exists.
    pub fn chosen_path() -> Result<PathBuf> {
        match std::env::var_os(env::HOME) {
            Some(path) if !path.is_empty() => Ok(PathBuf::from(path)),
            _ => match std::env::var_os("HOME") {
                Some(home) if !home.is_empty() => Ok(PathBuf::from(home).join(".msb")),
                _ => Err(Error::invalid("no state directory: HOME is not set")
                    .hint(format!("set {} to a directory of your own", env::HOME))),
            },
        }
    }

    /// Opens the state directory at this path. Fails if another user owns or can enter it.
    pub fn at(root: &Path) -> Result<Self> {
        let about = |error: io::Error| {
            Error::host(format!("cannot use the state directory `{}`", root.display()), error)
                .hint(format!("{} names another directory", env::HOME))
        };
        let root = std::path::absolute(root).map_err(about)?;
        match fs::metadata(&root) {
            Ok(meta) => check(&root, &meta)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(&root).map_err(about)?;
                // A default ACL of the parent may have widened the permissions.
                fs::set_permissions(&root, Permissions::from_mode(0o700)).map_err(about)?;
            }
            Err(error) => return Err(about(error)),
        }
        Ok(Self { root })
    }

    /// The path of the state directory.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Eight hex digits of a hash of the path, to tell state directories apart in cgroup names.
    pub(crate) fn short_hash(&self) -> String {
        let mut hash = DefaultHasher::new();
        self.root.hash(&mut hash);
        format!("{:08x}", hash.finish() as u32)
    }

    /// The directory of unpacked and derived image layers.
    pub(crate) fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    /// The directory of guest kernels, each in a subdirectory named by the hash of its inputs.
    pub(crate) fn kernels(&self) -> PathBuf {
        self.root.join("kernel")
    }

    /// The directory of named networks, with the sockets of their members.
    pub(crate) fn networks(&self) -> PathBuf {
        self.root.join("networks")
    }

    /// The directory of frozen writable layers, which no sandbox writes any more.
    pub(crate) fn frozen(&self) -> PathBuf {
        self.root.join("frozen")
    }

    /// The directory of snapshot records.
    pub(crate) fn snapshots(&self) -> PathBuf {
        self.root.join("snapshots")
    }

    /// The file in which a running server records its address. The server holds its lock.
    pub fn server(&self) -> PathBuf {
        self.root.join("server.json")
    }

    /// The log file of a server in the background.
    pub fn server_log(&self) -> PathBuf {
        self.root.join("server.log")
    }

    /// The directory of SSH keys of one sandbox, or of those for all sandboxes.
    pub(crate) fn ssh(&self, name: Option<&Name>) -> PathBuf {
        name.map_or_else(|| self.root.clone(), |name| self.directory(name)).join(state::SSH)
    }

    /// The directory of syncs, with one subdirectory for each.
    pub(crate) fn syncs(&self) -> PathBuf {
        self.root.join("syncs")
    }

    /// The state directory of one dialect of the server.
    pub(crate) fn dialect(&self, name: &str) -> PathBuf {
        self.root.join("dialects").join(name)
    }

    /// The lock file that serialises spawning children and removing parents.
    pub(crate) fn spawn_lock_file(&self) -> PathBuf {
        self.root.join("families.lock")
    }

    /// The directory of volumes, each in a subdirectory of its name.
    pub(crate) fn volumes(&self) -> PathBuf {
        self.root.join("volumes")
    }

    /// The directory of one volume.
    pub(crate) fn volume(&self, name: &VolumeName) -> PathBuf {
        self.volumes().join(name.as_str())
    }

    /// The names of all volumes, sorted. Entries that are no valid names are skipped.
    pub(crate) fn volume_names(&self) -> Vec<VolumeName> {
        let entries = fs::read_dir(self.volumes()).into_iter().flatten().filter_map(Result::ok);
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let mut names: Vec<VolumeName> = directories
            .filter_map(|entry| VolumeName::parse(entry.file_name().to_str()?).ok())
            .collect();
        names.sort();
        names
    }

    fn sandboxes(&self) -> PathBuf {
        self.root.join("sandboxes")
    }

    /// The directory of one sandbox.
    pub(crate) fn directory(&self, name: &Name) -> PathBuf {
        self.sandboxes().join(name.as_str())
    }

    /// The names of all sandboxes, sorted. Entries that are no valid names are skipped.
    pub(crate) fn names(&self) -> Vec<Name> {
        let entries = fs::read_dir(self.sandboxes()).into_iter().flatten().filter_map(Result::ok);
        let mut names: Vec<Name> =
            entries.filter_map(|entry| Name::parse(entry.file_name().to_str()?).ok()).collect();
        names.sort();
        names
    }

    /// The first id of each range that a sandbox or a volume has.
    pub(crate) fn taken_ids(&self) -> BTreeSet<u32> {
        self.ids_of(self.names().iter(), self.volume_names().iter())
    }

    /// The first id of each range that has another owner than this one.
    pub(crate) fn ids_of_others(&self, but: IdRangeOwner<'_>) -> BTreeSet<u32> {
        let (sandbox, volume) = match but {
            IdRangeOwner::Sandbox(name) => (Some(name), None),
            IdRangeOwner::Volume(name) => (None, Some(name)),
        };
        let sandboxes = self.names();
        let volumes = self.volume_names();
        self.ids_of(
            sandboxes.iter().filter(|name| Some(*name) != sandbox),
            volumes.iter().filter(|name| Some(*name) != volume),
        )
    }

    fn ids_of<'a>(
        &self,
        sandboxes: impl Iterator<Item = &'a Name>,
        volumes: impl Iterator<Item = &'a VolumeName>,
    ) -> BTreeSet<u32> {
        let shifted = |name: &Name| match self.plan(name).ok()?.ids {
            Ids::Shifted { range } => Some(range.start),
            _ => None,
        };
        let own = |name: &VolumeName| crate::volumes::ids(self, name).map(|range| range.start);
        sandboxes.filter_map(shifted).chain(volumes.filter_map(own)).collect()
    }

    /// Whether a sandbox of this name exists.
    pub(crate) fn has(&self, name: &Name) -> bool {
        self.directory(name).join(state::PLAN).exists()
    }

    /// Creates the directory of a sandbox with its Plan, locked. If two processes create the same
    /// name, one gets `Kind::Exists`.
    ///
    /// `prepare` fills the directory before `rename(2)` makes it visible.
    pub(crate) fn claim(
        &self,
        plan: &Plan,
        prepare: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<LockedSandbox> {
        let sandboxes = self.sandboxes();
        let temp = sandboxes.join(temp_name("making", plan.name.as_str()));
        let failed = |error: io::Error| write_error("sandbox", error, &sandboxes);
        create_private_dir(&temp)
            .or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => {
                    // Another process may create it at the same time.
                    match create_private_dir(&sandboxes) {
                        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                        _ => create_private_dir(&temp),
                    }
                }
                _ => Err(error),
            })
            .map_err(failed)?;
        let guard = TempDir(temp.clone());
        let lock = create_private_file(&temp.join(state::LOCK)).map_err(failed)?;
        msb_sys::lock::try_lock(&lock).map_err(failed)?;
        write_plan(&temp, plan)?;
        if !plan.ephemeral {
            create_private_file(&temp.join(state::UNFINISHED)).map_err(failed)?;
        }
        prepare(&temp)?;
        let directory = self.directory(&plan.name);
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(CWD, &temp, CWD, &directory, flags) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                return Err(Error::new(
                    Kind::Exists,
                    format!("sandbox `{}` already exists", plan.name),
                )
                .hint(format!("`msb rm {0}` removes it, `--replace` replaces it", plan.name)));
            }
            Err(error) => return Err(failed(error.into())),
        }
        // A sandbox that chose the same ids at the same time is visible now, or checks after us.
        if let Ids::Shifted { range } = plan.ids
            && self.ids_of_others(IdRangeOwner::Sandbox(&plan.name)).contains(&range.start)
        {
            msb_log::warn_on_failure!(
                remove_tree(&directory),
                "cannot remove a directory of the state"
            );
            return Err(id_range_taken());
        }
        std::mem::forget(guard);
        Ok(LockedSandbox { directory, lock })
    }

    /// Takes the lock of a sandbox; `None` if its worker lives. A change of layers or of the name
    /// that was interrupted is finished first.
    pub(crate) fn lock(&self, name: &Name) -> Result<Option<LockedSandbox>> {
        let claim = self.lock_without_finishing(name)?;
        if let Some(claim) = &claim {
            rename::finish_pending(claim, name)?;
            layers::finish_pending(claim)?;
        }
        Ok(claim)
    }

    /// Takes the lock of a sandbox without finishing interrupted changes, in order to remove it.
    pub(crate) fn lock_without_finishing(&self, name: &Name) -> Result<Option<LockedSandbox>> {
        let directory = self.directory(name);
        let about = |error| Error::host(format!("cannot lock sandbox `{name}`"), error);
        let lock = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(directory.join(state::LOCK))
            .map_err(about)?;
        if !msb_sys::lock::try_lock(&lock).map_err(about)? {
            return Ok(None);
        }
        // It may have been removed since it was opened; then the lock is on a deleted file.
        let same = rustix::fs::statat(CWD, directory.join(state::LOCK), AtFlags::empty())
            .is_ok_and(|stat| lock.metadata().is_ok_and(|meta| meta.ino() == stat.st_ino));
        Ok(same.then_some(LockedSandbox { directory, lock }))
    }

    /// Whether a worker holds the lock of the sandbox.
    pub(crate) fn is_running(&self, name: &Name) -> bool {
        let lock =
            File::options().read(true).write(true).open(self.directory(name).join(state::LOCK));
        lock.is_ok_and(|lock| msb_sys::lock::is_locked(&lock).unwrap_or(false))
    }

    /// The Plan of a sandbox. The file is untrusted and is checked.
    pub(crate) fn plan(&self, name: &Name) -> Result<Plan> {
        match read_plan(&self.directory(name).join(state::PLAN), name)? {
            Some(plan) => Ok(plan),
            None => Err(self.unknown(name)),
        }
    }

    /// The error for a missing sandbox, with the nearest name as a hint.
    pub(crate) fn unknown(&self, name: &Name) -> Error {
        let error = Error::new(Kind::NotFound, format!("no sandbox `{name}`"));
        let names = self.names();
        match msb_spec::nearest(name.as_str(), names.iter().map(Name::as_str)) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error.hint("`msb ls` lists the sandboxes there are"),
        }
    }

    /// Removes a sandbox that this process has locked: `rename(2)` first, then the tree.
    pub(crate) fn discard(&self, claim: &LockedSandbox) -> Result<()> {
        let directory = &claim.directory;
        let about = |error| Error::host(format!("cannot remove `{}`", directory.display()), error);
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        let gone = self.sandboxes().join(temp_name("gone", &name));
        fs::rename(directory, &gone).map_err(about)?;
        remove_tree(&gone).map_err(about)
    }

    /// Temporary directories of processes that were killed while creating or removing.
    pub(crate) fn stale_dirs(&self) -> Vec<PathBuf> {
        [self.sandboxes(), self.syncs()].iter().flat_map(|place| stale_dirs(place)).collect()
    }

    /// Temporary volume directories of processes that were killed.
    pub(crate) fn stale_volume_dirs(&self) -> Vec<PathBuf> {
        stale_dirs(&self.volumes())
    }
}

fn stale_dirs(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let pid = name.rsplit_once('-').and_then(|(_, pid)| pid.parse::<u32>().ok());
        let begun = name.starts_with(".making-") || name.starts_with(".gone-");
        begun && pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    };
    entries.map(|entry| entry.path()).filter(ours).collect()
}

pub(crate) fn create_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)
}

/// Creates a file with mode 0600, whatever the umask. Fails if it exists.
pub(crate) fn create_private_file(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Reads and checks a Plan of this sandbox; `None` if the file is missing.
pub(crate) fn read_plan(path: &Path, name: &Name) -> Result<Option<Plan>> {
    let Some(plan) = read_plan_file(path, name)? else { return Ok(None) };
    if plan.name == *name {
        return Ok(Some(plan));
    }
    // The process that renamed the sandbox was killed before the last step.
    match read_plan_file(&path.with_file_name(state::RENAMED_PLAN), name)? {
        Some(renamed) if renamed.name == *name => Ok(Some(renamed)),
        _ => Err(Error::new(
            Kind::State,
            format!("the plan of sandbox `{name}` belongs to another sandbox"),
        )),
    }
}

pub(crate) fn read_plan_file(path: &Path, name: &Name) -> Result<Option<Plan>> {
    let about = |error| Error::host(format!("cannot read the plan of `{name}`"), error);
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(about)?,
    };
    let mut text = Vec::new();
    file.take(PLAN_LIMIT).read_to_end(&mut text).map_err(about)?;
    let plan: Plan = serde_json::from_slice(&text).map_err(|error| {
        Error::new(Kind::State, format!("the plan of sandbox `{name}` cannot be read"))
            .cause(error)
            .hint(format!("`msb rm -f {name}` removes the sandbox"))
    })?;
    plan.check()?;
    Ok(Some(plan))
}

fn write_plan(directory: &Path, plan: &Plan) -> Result<()> {
    let text = serde_json::to_vec(plan).expect("our own types always serialise");
    let write = || -> io::Result<()> {
        let mut file = create_private_file(&directory.join(state::PLAN))?;
        file.write_all(&text)?;
        // The Plan of a persistent sandbox must survive a power cut.
        if plan.ephemeral { Ok(()) } else { files::write_before_rename(&file) }
    };
    write().map_err(|error| write_error("sandbox", error, directory))
}

/// Writes a Plan that is going to replace the present one by `rename(2)`.
pub(crate) fn write_pending_plan(path: &Path, plan: &Plan) -> Result<()> {
    let write = || -> io::Result<()> {
        match fs::remove_file(path) {
            // Left by a process that was killed.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = create_private_file(path)?;
        file.write_all(&serde_json::to_vec(plan).expect("our own types always serialise"))?;
        files::write_before_rename(&file)
    };
    write().map_err(|error| Error::host("cannot write the plan", error))
}

/// The error for a failed write to the state directory, with a hint for full and read-only disks.
pub(crate) fn write_error(what: &str, error: io::Error, path: &Path) -> Error {
    let kind = error.kind();
    let wrapped = Error::host(format!("cannot make the {what} in `{}`", path.display()), error);
    match kind {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => wrapped
            .hint(format!("free some space, or set {} to a directory on another disk", env::HOME)),
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            wrapped.hint(format!("set {} to a directory that you may write", env::HOME))
        }
        _ => wrapped,
    }
}

/// Refuses a state directory that other users can enter, since they could plant files there.
fn check(root: &Path, meta: &fs::Metadata) -> Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let refuse = |why: String, hint: String| {
        Err(Error::invalid(format!("will not use the state directory `{}`", root.display()))
            .cause(why)
            .hint(hint))
    };
    let shown = root.display();
    if !meta.is_dir() {
        return refuse(
            "it is not a directory".to_owned(),
            format!("{} names another directory", env::HOME),
        );
    }
    if meta.uid() != own {
        let hint = format!("set {} to a directory of your own", env::HOME);
        return refuse(format!("it belongs to user {}, not to {own}", meta.uid()), hint);
    }
    if meta.mode() & 0o077 != 0 {
        let why = format!("other users may enter it (mode {:o})", meta.mode() & 0o777);
        return refuse(why, format!("`chmod 700 {shown}` closes it"));
    }
    Ok(())
}
