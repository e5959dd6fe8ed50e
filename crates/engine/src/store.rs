//! The state directory: every path in it is made here.

use crate::{layers, rename};
use msb_spec::{Error, Ids, Kind, Name, Plan, Result, VolumeName, env, state};
use msb_sys::files;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The state directory, found and checked.
#[derive(Debug, Clone)]
pub struct Home {
    root: PathBuf,
}

/// A sandbox's directory whose lock we hold.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) directory: PathBuf,
    pub(crate) lock: File,
}

/// A Plan is a few kilobytes; one with patches may carry texts.
const PLAN_LIMIT: u64 = 64 << 20;

/// What has a range of host ids of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Owner<'a> {
    Sandbox(&'a Name),
    Volume(&'a VolumeName),
}

/// Two were made at the same moment with the same ids.
pub(crate) fn taken_twice() -> Error {
    Error::new(Kind::State, "its host ids were taken at the same moment").hint("try again")
}

impl Home {
    /// Opens `MSB_HOME` or `~/.msb`, and makes it if it is missing.
    pub fn open() -> Result<Self> {
        let root = match std::env::var_os(env::HOME) {
            Some(path) if !path.is_empty() => PathBuf::from(path),
            _ => match std::env::var_os("HOME") {
                Some(home) if !home.is_empty() => PathBuf::from(home).join(".msb"),
                _ => {
                    return Err(Error::invalid("no state directory: HOME is not set")
                        .hint(format!("set {} to a directory of your own", env::HOME)));
                }
            },
        };
        Self::at(&root)
    }

    /// Opens a state directory at this place.
    pub fn at(root: &Path) -> Result<Self> {
        let about = |error: io::Error| {
            Error::host(format!("cannot use the state directory `{}`", root.display()), error)
                .hint(format!("{} names another place", env::HOME))
        };
        let root = std::path::absolute(root).map_err(about)?;
        match fs::metadata(&root) {
            Ok(meta) => check(&root, &meta)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(&root).map_err(about)?;
                // A shared parent may have handed down wider permissions.
                fs::set_permissions(&root, Permissions::from_mode(0o700)).map_err(about)?;
            }
            Err(error) => return Err(about(error)),
        }
        Ok(Self { root })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// A few letters that tell this state directory from others.
    pub(crate) fn short_hash(&self) -> String {
        let mut hash = DefaultHasher::new();
        self.root.hash(&mut hash);
        format!("{:08x}", hash.finish() as u32)
    }

    /// Where derived image layers are kept.
    pub(crate) fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    /// Where guest kernels are kept, each in a directory named by the hash of its inputs.
    pub(crate) fn kernels(&self) -> PathBuf {
        self.root.join("kernel")
    }

    /// Where sandboxes of named networks find each other.
    pub(crate) fn networks(&self) -> PathBuf {
        self.root.join("networks")
    }

    /// Where writable layers are that nobody writes any more.
    pub(crate) fn frozen(&self) -> PathBuf {
        self.root.join("frozen")
    }

    /// Where snapshots are described.
    pub(crate) fn snapshots(&self) -> PathBuf {
        self.root.join("snapshots")
    }

    /// Where a server writes down where it is; whoever holds its lock is the server.
    pub fn server(&self) -> PathBuf {
        self.root.join("server.json")
    }

    /// What a server says that was left in the background.
    pub fn server_log(&self) -> PathBuf {
        self.root.join("server.log")
    }

    /// What those who come by SSH need, of one sandbox or of all.
    pub(crate) fn ssh(&self, name: Option<&Name>) -> PathBuf {
        name.map_or_else(|| self.root.clone(), |name| self.directory(name)).join(state::SSH)
    }

    /// Where every sync keeps how it is doing.
    pub(crate) fn syncs(&self) -> PathBuf {
        self.root.join("syncs")
    }

    /// Where a dialect of the server keeps what outlives the server.
    pub(crate) fn dialect(&self, name: &str) -> PathBuf {
        self.root.join("dialects").join(name)
    }

    /// Held by whoever makes a child or takes a parent away.
    pub(crate) fn families(&self) -> PathBuf {
        self.root.join("families.lock")
    }

    /// Where volumes are kept, each in a directory of its name.
    pub(crate) fn volumes(&self) -> PathBuf {
        self.root.join("volumes")
    }

    /// A volume's directory.
    pub(crate) fn volume(&self, name: &VolumeName) -> PathBuf {
        self.volumes().join(name.as_str())
    }

    /// Every volume, sorted. What is not a name of ours is not one.
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

    /// A sandbox's directory.
    pub(crate) fn directory(&self, name: &Name) -> PathBuf {
        self.sandboxes().join(name.as_str())
    }

    /// Every sandbox, sorted. What is not a name of ours is not one.
    pub(crate) fn names(&self) -> Vec<Name> {
        let entries = fs::read_dir(self.sandboxes()).into_iter().flatten().filter_map(Result::ok);
        let mut names: Vec<Name> =
            entries.filter_map(|entry| Name::parse(entry.file_name().to_str()?).ok()).collect();
        names.sort();
        names
    }

    /// The first of each range of host ids that a sandbox or a volume has.
    pub(crate) fn taken_ids(&self) -> BTreeSet<u32> {
        self.ids_of(self.names().iter(), self.volume_names().iter())
    }

    /// The same of all but one.
    pub(crate) fn ids_of_others(&self, but: Owner<'_>) -> BTreeSet<u32> {
        let (sandbox, volume) = match but {
            Owner::Sandbox(name) => (Some(name), None),
            Owner::Volume(name) => (None, Some(name)),
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

    /// Whether there is such a sandbox.
    pub(crate) fn has(&self, name: &Name) -> bool {
        self.directory(name).join(state::PLAN).exists()
    }

    /// Makes a sandbox's directory with its Plan, locked. Of two who try, one wins.
    ///
    /// `prepare` fills the directory before anybody can see it.
    pub(crate) fn claim(
        &self,
        plan: &Plan,
        prepare: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Claim> {
        let sandboxes = self.sandboxes();
        let aside = sandboxes.join(passing("making", plan.name.as_str()));
        let failed = |error: io::Error| full_disk("sandbox", error, &sandboxes);
        make_private(&aside)
            .or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => {
                    // Another may make it at the same moment.
                    match make_private(&sandboxes) {
                        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                        _ => make_private(&aside),
                    }
                }
                _ => Err(error),
            })
            .map_err(failed)?;
        let guard = Aside(aside.clone());
        let lock = create_private(&aside.join(state::LOCK)).map_err(failed)?;
        msb_sys::lock::try_lock(&lock).map_err(failed)?;
        write_plan(&aside, plan)?;
        if !plan.ephemeral {
            create_private(&aside.join(state::UNFINISHED)).map_err(failed)?;
        }
        prepare(&aside)?;
        let directory = self.directory(&plan.name);
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(CWD, &aside, CWD, &directory, flags) {
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
        // A sandbox that chose the same ids at the same moment is visible now, or checks after us.
        if let Ids::Shifted { range } = plan.ids
            && self.ids_of_others(Owner::Sandbox(&plan.name)).contains(&range.start)
        {
            let _ = remove_tree(&directory);
            return Err(taken_twice());
        }
        std::mem::forget(guard);
        Ok(Claim { directory, lock })
    }

    /// Takes the lock of a sandbox that is not running; none if its worker lives. What somebody has
    /// begun to change is finished first.
    pub(crate) fn lock(&self, name: &Name) -> Result<Option<Claim>> {
        let claim = self.lock_as_it_is(name)?;
        if let Some(claim) = &claim {
            rename::settle(claim, name)?;
            layers::settle(claim)?;
        }
        Ok(claim)
    }

    /// The same, for whoever removes it and needs nothing finished.
    pub(crate) fn lock_as_it_is(&self, name: &Name) -> Result<Option<Claim>> {
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
        // It may have been removed while we opened it; then the lock is on nothing.
        let same = rustix::fs::statat(CWD, directory.join(state::LOCK), AtFlags::empty())
            .is_ok_and(|stat| lock.metadata().is_ok_and(|meta| meta.ino() == stat.st_ino));
        Ok(same.then_some(Claim { directory, lock }))
    }

    /// Whether a worker holds the sandbox.
    pub(crate) fn is_running(&self, name: &Name) -> bool {
        let lock =
            File::options().read(true).write(true).open(self.directory(name).join(state::LOCK));
        lock.is_ok_and(|lock| msb_sys::lock::is_locked(&lock).unwrap_or(false))
    }

    /// A sandbox's Plan, read back as something that anybody could have written.
    pub(crate) fn plan(&self, name: &Name) -> Result<Plan> {
        match read_plan(&self.directory(name).join(state::PLAN), name)? {
            Some(plan) => Ok(plan),
            None => Err(self.unknown(name)),
        }
    }

    /// There is no such sandbox; perhaps another was meant.
    pub(crate) fn unknown(&self, name: &Name) -> Error {
        let error = Error::new(Kind::NotFound, format!("no sandbox `{name}`"));
        let names = self.names();
        match msb_spec::nearest(name.as_str(), names.iter().map(Name::as_str)) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error.hint("`msb ls` lists the sandboxes there are"),
        }
    }

    /// Removes a sandbox whose lock we hold: first its name, at once, then what it holds.
    pub(crate) fn discard(&self, claim: &Claim) -> Result<()> {
        let directory = &claim.directory;
        let about = |error| Error::host(format!("cannot remove `{}`", directory.display()), error);
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        let gone = self.sandboxes().join(passing("gone", &name));
        fs::rename(directory, &gone).map_err(about)?;
        remove_tree(&gone).map_err(about)
    }

    /// What was begun or removed by somebody who died in between.
    pub(crate) fn debris(&self) -> Vec<PathBuf> {
        [self.sandboxes(), self.syncs()].iter().flat_map(|place| debris(place)).collect()
    }

    /// The same among volumes.
    pub(crate) fn volume_debris(&self) -> Vec<PathBuf> {
        debris(&self.volumes())
    }
}

fn debris(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let pid = name.rsplit_once('-').and_then(|(_, pid)| pid.parse::<u32>().ok());
        let begun = name.starts_with(".making-") || name.starts_with(".gone-");
        begun && pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    };
    entries.map(|entry| entry.path()).filter(ours).collect()
}

/// A name for what is only there for a moment. No two threads make the same, and the pid at its
/// end tells whether its maker still lives.
pub(crate) fn passing(what: &str, name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!(".{what}-{name}-{number}-{}", std::process::id())
}

/// Removes a tree, with the directories in it that even its owner may not enter, however deep.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::open(path, flags, Mode::empty());
    let directory = match open() {
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ACCESS) => {
            fs::set_permissions(path, Permissions::from_mode(0o700))?;
            open()?
        }
        opened => opened?,
    };
    msb_sys::tree::clear(directory.as_fd())?;
    fs::remove_dir(path)
}

/// Removed again unless what was being made is done.
pub(crate) struct Aside(pub(crate) PathBuf);

impl Drop for Aside {
    fn drop(&mut self) {
        let _ = remove_tree(&self.0);
    }
}

pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)
}

/// A new file that only we may read, whatever our umask.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Reads a Plan as something that anybody could have written; none if there is none.
pub(crate) fn read_plan(path: &Path, name: &Name) -> Result<Option<Plan>> {
    let Some(plan) = read_any_plan(path, name)? else { return Ok(None) };
    if plan.name == *name {
        return Ok(Some(plan));
    }
    // Whoever renamed it has died before the last step.
    match read_any_plan(&path.with_file_name(state::RENAMED_PLAN), name)? {
        Some(renamed) if renamed.name == *name => Ok(Some(renamed)),
        _ => Err(Error::new(Kind::State, format!("the plan of sandbox `{name}` is another's"))),
    }
}

pub(crate) fn read_any_plan(path: &Path, name: &Name) -> Result<Option<Plan>> {
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
        let mut file = create_private(&directory.join(state::PLAN))?;
        file.write_all(&text)?;
        // What lasts must be whole after a power cut; what is gone in a second need not.
        if plan.ephemeral { Ok(()) } else { files::write_before_rename(&file) }
    };
    write().map_err(|error| full_disk("sandbox", error, directory))
}

/// Writes a Plan that is about to take the place of another.
pub(crate) fn write_beside(path: &Path, plan: &Plan) -> Result<()> {
    let write = || -> io::Result<()> {
        match fs::remove_file(path) {
            // Of one who died.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = create_private(path)?;
        file.write_all(&serde_json::to_vec(plan).expect("our own types always serialise"))?;
        files::write_before_rename(&file)
    };
    write().map_err(|error| Error::host("cannot write the plan", error))
}

/// What a state directory that cannot be written is told as.
pub(crate) fn full_disk(what: &str, error: io::Error, path: &Path) -> Error {
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

/// A state directory that others can enter could be filled by them.
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
            format!("{} names another place", env::HOME),
        );
    }
    if meta.uid() != own {
        let hint = format!("set {} to a directory of your own", env::HOME);
        return refuse(format!("it belongs to user {}, not to {own}", meta.uid()), hint);
    }
    if meta.mode() & 0o077 != 0 {
        let why = format!("others may enter it (mode {:o})", meta.mode() & 0o777);
        return refuse(why, format!("`chmod 700 {shown}` closes it"));
    }
    Ok(())
}
