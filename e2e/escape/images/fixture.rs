//! Where image attacks are played: one user's `msb`, a registry, and canaries all around.
//!
//! Every image comes in by every way there is, under a limit on memory; afterwards the host is
//! looked at, not what was said.

use msb_e2e::http_stub::HttpStub;
use msb_e2e::raw_image::{self, Blob, RawImage, RawLayer, TarHeader, kind};
use msb_e2e::registry::Registry;
use msb_e2e::{CmdOutput, Msb, ends, eventually};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::rc::Rc;
use std::sync::OnceLock;

/// Part of every name that an attack tries to leave outside.
pub(crate) const MARK: &str = "by-image";

/// Of private memory, for each process: much more than a stream needs, and much less than
/// something that is kept whole.
const MEMORY: u64 = 512 << 20;

/// How an image comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transfer {
    Pull,
    DockerArchive,
    OciArchive,
}

pub(crate) struct ImageFixture {
    pub(crate) msb: Msb,
    pub(crate) registry: Rc<Registry>,
    config: String,
    number: Cell<u32>,
    cases: Cell<u32>,
}

impl ImageFixture {
    /// As every user, with the limits that are usual.
    pub(crate) fn each() -> Vec<Self> {
        Self::each_with("")
    }

    /// As every user, with this in the file of settings.
    pub(crate) fn each_with(config: &str) -> Vec<Self> {
        let registry = Rc::new(Registry::plain());
        let each = Msb::each_with_own_layers().into_iter();
        each.map(|msb| Self::new(msb, registry.clone(), config)).collect()
    }

    /// As every user, and as one without subordinate ids.
    pub(crate) fn each_and_single() -> Vec<Self> {
        let mut fixtures = Self::each();
        let registry = fixtures[0].registry.clone();
        let single = Msb::with_one_id().map(|msb| Self::new(msb, registry, ""));
        fixtures.extend(single);
        fixtures
    }

    /// As every user, where [`busybox`] is unpacked already and stays.
    pub(crate) fn each_runnable() -> Vec<Self> {
        let fixtures = Self::each();
        for fixture in &fixtures {
            fixture.bring(&RawImage::new([busybox()]), Transfer::DockerArchive).1.ok();
        }
        fixtures
    }

    fn new(msb: Msb, registry: Rc<Registry>, config: &str) -> Self {
        msb.file("outside/canary", "untouched");
        msb.file("outside/directory/canary", "untouched");
        msb.file("canary", "untouched");
        msb.file("home/config.toml", config);
        Self { msb, registry, config: config.to_owned(), number: Cell::new(0), cases: Cell::new(0) }
    }

    /// Where attacks try to write.
    pub(crate) fn outside(&self) -> PathBuf {
        self.msb.scratch().join("outside")
    }

    /// A name for the next image that comes in this way.
    pub(crate) fn name(&self, way: Transfer) -> String {
        let number = self.number.get();
        self.number.set(number + 1);
        match way {
            Transfer::Pull => {
                // The registry is shared by all users, the names are not.
                let uid = self.msb.uid();
                format!("{}/hostile/u{uid}:{number}", self.registry.address())
            }
            Transfer::DockerArchive | Transfer::OciArchive => {
                format!("docker.io/hostile/load:{number}")
            }
        }
    }

    /// How the next image comes in: from a registry, and from one of the two sorts of files.
    fn ways(&self) -> [Transfer; 2] {
        let even = self.cases.get().is_multiple_of(2);
        self.cases.set(self.cases.get() + 1);
        [Transfer::Pull, if even { Transfer::DockerArchive } else { Transfer::OciArchive }]
    }

    /// Brings an image in and gives its name and what was said.
    #[track_caller]
    pub(crate) fn bring(&self, image: &RawImage, way: Transfer) -> (String, CmdOutput) {
        let name = self.name(way);
        let gave = match way {
            Transfer::Pull => {
                let (repository, tag) = split(&name);
                if image.put(self.registry.address(), repository, tag).is_err() {
                    return self.pull_from_stub(image);
                }
                self.run(["pull", &name])
            }
            Transfer::DockerArchive => self.load(&image.docker_archive(&name)),
            Transfer::OciArchive => self.load(&image.oci_archive(&name)),
        };
        (name, gave)
    }

    /// Pulls what the real registry does not hold.
    #[track_caller]
    pub(crate) fn pull_from_stub(&self, image: &RawImage) -> (String, CmdOutput) {
        let stub = HttpStub::registry_of(image);
        let name = format!("{}/hostile/image:1", stub.address());
        let gave = self.run(["pull", &name]);
        (name, gave)
    }

    /// Loads an archive of any sort.
    #[track_caller]
    pub(crate) fn load(&self, archive: &[u8]) -> CmdOutput {
        let path = self.msb.file("archive.tar", archive);
        let gave = self.run([OsStr::new("load"), OsStr::new("-i"), path.as_os_str()]);
        fs::remove_file(path).expect("the archive is still there");
        gave
    }

    /// Runs `msb` under the limit on memory.
    #[track_caller]
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> CmdOutput {
        let mut command = self.msb.user_command("/usr/bin/prlimit");
        command.arg(format!("--data={MEMORY}")).arg("--").arg(self.msb.binary());
        let args: Vec<OsString> = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        ends(command.spawn().expect("prlimit can be executed"))
    }

    /// The image is refused by every way, and nothing of it stays.
    #[track_caller]
    pub(crate) fn refuses(&self, what: &str, image: &RawImage) {
        for way in self.ways() {
            let before = self.state();
            let (name, gave) = self.bring(image, way);
            let what = format!("{what} by {way:?} as {}", self.msb.uid());
            self.is_refused(&what, &name, &gave);
            assert_eq!(self.left(&before, image), BTreeSet::new(), "{what} left this behind");
            self.prune(&what);
        }
    }

    /// The image is taken by every way, and harms nothing; it is gone afterwards. The test looks
    /// at the image before that.
    #[track_caller]
    pub(crate) fn takes(&self, what: &str, image: &RawImage, look: impl Fn(&str)) {
        for way in self.ways() {
            let before = self.state();
            let (name, gave) = self.bring(image, way);
            let what = format!("{what} by {way:?} as {}", self.msb.uid());
            assert_eq!(gave.code, 0, "{what}: {gave:#?}");
            self.is_unharmed(&what);
            look(&name);
            self.forget(&what, &name);
            assert_eq!(self.state(), before, "{what} left this behind");
        }
    }

    /// The image is taken or refused; either way it harms nothing.
    #[track_caller]
    pub(crate) fn survives(&self, what: &str, image: &RawImage) {
        for way in self.ways() {
            let before = self.state();
            let (name, gave) = self.bring(image, way);
            let what = format!("{what} by {way:?} as {}", self.msb.uid());
            if gave.code == 0 {
                self.is_unharmed(&what);
                self.forget(&what, &name);
                assert_eq!(self.state(), before, "{what} left this behind");
            } else {
                self.is_refused(&what, &name, &gave);
                assert_eq!(self.left(&before, image), BTreeSet::new(), "{what} left this");
                self.prune(&what);
            }
        }
    }

    /// A clean error, no image, and nothing harmed.
    #[track_caller]
    pub(crate) fn is_refused(&self, what: &str, name: &str, gave: &CmdOutput) {
        assert_eq!(gave.code, 125, "{what}: {gave:#?}");
        assert!(gave.stderr.starts_with("error: "), "{what}: {gave:#?}");
        assert!(!gave.stderr.contains("panicked"), "{what}: {gave:#?}");
        assert!(is_printable(&gave.stderr), "{what}: {gave:#?}");
        assert_eq!(gave.stdout, "", "{what}: {gave:#?}");
        assert!(!self.names().contains(&name.to_owned()), "{what} is in the listing");
        self.is_unharmed(what);
    }

    /// Every canary is as it was, nothing lies about, and nothing dangerous is in the layers.
    #[track_caller]
    pub(crate) fn is_unharmed(&self, what: &str) {
        for canary in ["outside/canary", "outside/directory/canary", "canary"] {
            let path = self.msb.scratch().join(canary);
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), Some("untouched"), "{what}");
            let meta = fs::symlink_metadata(&path).expect("a canary");
            let found = (meta.mode() & 0o7777, meta.uid(), meta.nlink());
            assert_eq!(found, (0o644, self.msb.uid(), 1), "{what}: {canary}");
        }
        let config = fs::read_to_string(self.msb.home().join("config.toml"));
        assert_eq!(config.ok().as_ref(), Some(&self.config), "{what}");
        assert_eq!(names_in(&self.outside()), ["canary", "directory"], "{what}");
        assert_eq!(names_in(&self.outside().join("directory")), ["canary"], "{what}");
        assert_eq!(self.strays(), Vec::<PathBuf>::new(), "{what}");
        for path in walk(&self.msb.home()) {
            let meta = fs::symlink_metadata(&path).expect("what was listed is there");
            let kind = meta.file_type();
            let is_whiteout = kind.is_char_device() && meta.rdev() == 0;
            let is_device = kind.is_block_device() || kind.is_char_device() && !is_whiteout;
            assert!(!is_device, "{what}: {} is a device", path.display());
            for attribute in attributes(&path) {
                let forbidden = ["security.", "trusted.", "user.overlay."];
                let is_ours = attribute == "user.overlay.opaque"
                    || attribute == "trusted.overlay.opaque"
                    || attribute == "security.selinux";
                let is_bad = forbidden.iter().any(|begin| attribute.starts_with(begin));
                assert!(is_ours || !is_bad, "{what}: {attribute} on {}", path.display());
            }
        }
        for blob in walk(&self.msb.home().join("blobs/sha256")) {
            let bytes = fs::read(&blob).expect("a blob");
            let name = blob.file_name().expect("a name").to_string_lossy().into_owned();
            assert_eq!(raw_image::hex(&bytes), name, "{what}: a blob that is not its digest");
        }
    }

    /// Images by name.
    #[track_caller]
    pub(crate) fn names(&self) -> Vec<String> {
        let listed = self.msb.json(["image", "ls", "--json"]);
        let listed = listed.as_array().expect("an array");
        listed.iter().map(|one| one["reference"].as_str().expect("text").to_owned()).collect()
    }

    /// What is kept of images: their names and layers.
    pub(crate) fn state(&self) -> BTreeSet<String> {
        let home = self.msb.home();
        let mut state: BTreeSet<String> = BTreeSet::new();
        state.extend(names_in(&home.join("images")).iter().map(|name| format!("images/{name}")));
        state.remove("images/.lock");
        for owners in names_in(&home.join("layers")) {
            let layers = names_in(&home.join("layers").join(&owners));
            state.extend(layers.iter().map(|layer| format!("layers/{owners}/{layer}")));
        }
        state
    }

    /// What an image that was refused has left, but for lower layers in which nothing is wrong.
    fn left(&self, before: &BTreeSet<String>, image: &RawImage) -> BTreeSet<String> {
        let mut left: BTreeSet<String> = self.state().difference(before).cloned().collect();
        let lower = image.blobs.split_last().map_or(&[][..], |(_, lower)| lower);
        for blob in lower {
            let hex = blob.diff_id.trim_start_matches("sha256:");
            left.retain(|path| !path.ends_with(hex));
        }
        left
    }

    /// The tree of a layer of an image that was taken.
    #[track_caller]
    pub(crate) fn tree(&self, blob: &raw_image::Blob) -> PathBuf {
        let layers = self.msb.home().join("layers");
        let hex = blob.diff_id.trim_start_matches("sha256:");
        let found = names_in(&layers).into_iter().map(|owners| layers.join(owners).join(hex));
        found.map(|layer| layer.join("fs")).find(|tree| tree.exists()).expect("an unpacked layer")
    }

    /// Nothing runs any more; a sandbox that could not start goes a moment after it has said so.
    #[track_caller]
    pub(crate) fn is_idle(&self, what: &str) {
        let what = format!("{what}: no sandbox is left");
        eventually(&what, || self.msb.run(["ls", "-q"]).line().is_empty());
    }

    /// Removes an image and all that only it used, so that the next way unpacks it anew.
    #[track_caller]
    pub(crate) fn forget(&self, what: &str, name: &str) {
        let gave = self.msb.run(["image", "rm", name]);
        assert_eq!(gave.code, 0, "{what}: {gave:#?}");
        self.prune(what);
    }

    /// Removes what no image uses.
    #[track_caller]
    pub(crate) fn prune(&self, what: &str) {
        let gave = self.msb.run(["image", "prune"]);
        assert_eq!(gave.code, 0, "{what}: {gave:#?}");
    }

    /// What an attack left where it does not belong.
    fn strays(&self) -> Vec<PathBuf> {
        let mut strays: Vec<PathBuf> = Vec::new();
        for above in self.msb.scratch().ancestors() {
            strays.extend(names_in(above).iter().map(|name| above.join(name)));
        }
        for directory in ["/etc", "/var/tmp", "/usr/local"].map(Path::new) {
            strays.extend(names_in(directory).iter().map(|name| directory.join(name)));
        }
        strays.extend(walk(self.msb.scratch()));
        let layers = self.msb.home().join("layers");
        strays.retain(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // In a layer's own tree it may be called what it likes.
            let below = path.strip_prefix(&layers).ok().map(|path| path.components().count());
            name.contains(MARK) && below.is_none_or(|below| below < 4)
        });
        strays
    }
}

/// A layer with a shell, some programs and a list of users.
pub(crate) fn busybox() -> Blob {
    static MADE: OnceLock<Blob> = OnceLock::new();
    let make = || {
        let program = fs::read("/bin/busybox").expect("busybox-static is installed");
        let header = TarHeader::new(kind::FILE, "bin/busybox").mode(0o755);
        let mut layer = RawLayer::new();
        for directory in ["bin/", "etc/", "proc/", "sys/", "dev/", "root/"] {
            layer = layer.directory(directory);
        }
        layer = layer
            .header(&TarHeader::new(kind::DIRECTORY, "tmp/").mode(0o1777))
            .file_as(header, "bin/busybox", program)
            .file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nweb:x:33:33:web:/tmp:/bin/sh\n")
            .file("etc/group", "root:x:0:\nweb:x:33:\n");
        for applet in ["sh", "cat", "echo", "ls", "id", "true", "touch", "pwd", "env"] {
            layer = layer.symlink(format!("bin/{applet}"), "busybox");
        }
        Blob::plain(&layer)
    };
    MADE.get_or_init(make).clone()
}

/// The repository and the tag of `registry/repository:tag`.
pub(crate) fn split(name: &str) -> (&str, &str) {
    let path = name.split_once('/').expect("a registry").1;
    path.rsplit_once(':').expect("a tag")
}

/// What a terminal shows as it is.
pub(crate) fn is_printable(text: &str) -> bool {
    let marks = ['\u{202e}', '\u{2028}', '\u{200f}', '\u{2066}', '\u{feff}'];
    text.chars().all(|letter| letter == '\n' || !letter.is_control() && !marks.contains(&letter))
}

/// Sorted; empty where there is no directory.
pub(crate) fn names_in(directory: &Path) -> Vec<String> {
    let listed = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        listed.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// All that is below a directory, links not followed.
pub(crate) fn walk(directory: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found
}

/// The names of a file's extended attributes, links not followed.
pub(crate) fn attributes(path: &Path) -> Vec<String> {
    let mut names = vec![0u8; 65536];
    let length = rustix::fs::llistxattr(path, &mut names).unwrap_or(0);
    let names = String::from_utf8_lossy(&names[..length]).into_owned();
    names.split_terminator('\0').map(str::to_owned).collect()
}
