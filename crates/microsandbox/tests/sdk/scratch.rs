//! A state directory that is gone, with all its sandboxes, when the test is over.

use microsandbox::{Sandbox, SandboxBuilder, Sandboxes};
use std::fs;
use std::ops::Deref;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Scratch {
    root: PathBuf,
    sandboxes: Sandboxes,
}

/// A machine that runs other tests beside this one may be slow; a stuck one is noticed.
const PATIENCE: Duration = Duration::from_secs(20);

impl Scratch {
    /// With image layers that are derived once for all tests of this run.
    pub(crate) fn new() -> Self {
        let scratch = Self::bare();
        fs::DirBuilder::new().mode(0o700).create(scratch.home()).expect("a state directory");
        symlink(layers(), scratch.home().join("layers")).expect("a link");
        scratch
    }

    /// With nothing at all.
    pub(crate) fn bare() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("msb-sdk-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        fs::DirBuilder::new().mode(0o700).create(&root).expect("a scratch directory");
        let sandboxes = Sandboxes::new().home(root.join("home")).executable(executable());
        Self { root, sandboxes }
    }

    /// A directory for the test's own files.
    pub(crate) fn path(&self) -> &Path {
        &self.root
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.root.join("home")
    }

    /// A sandbox of the usual kind.
    pub(crate) fn box_named(&self, name: &str) -> SandboxBuilder {
        self.sandboxes.builder(name)
    }

    pub(crate) async fn create(&self) -> Sandbox {
        self.box_named("box").create().await.expect("a sandbox")
    }
}

impl Deref for Scratch {
    type Target = Sandboxes;
    fn deref(&self) -> &Sandboxes {
        &self.sandboxes
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let names = fs::read_dir(self.home().join("sandboxes")).into_iter().flatten();
        for name in names.flatten().map(|entry| entry.file_name()) {
            let mut remove = Command::new(executable());
            let _ = remove.args(["rm", "-f"]).arg(name).env("MSB_HOME", self.home()).output();
        }
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Before the pid of the run that keeps them; removed by a later run.
const LAYERS_OF: &str = "msb-sdk-layers-";

/// Layers of the `host` image, which take longer to derive than most tests to run.
fn layers() -> PathBuf {
    static LAYERS: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let parent = std::env::temp_dir();
        for old in fs::read_dir(&parent).into_iter().flatten().flatten() {
            let name = old.file_name().to_string_lossy().into_owned();
            let pid = name.strip_prefix(LAYERS_OF).and_then(|pid| pid.parse::<u32>().ok());
            if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                let _ = fs::remove_dir_all(old.path());
            }
        }
        let home = parent.join(format!("{LAYERS_OF}{}", std::process::id()));
        let mut derive = Command::new(executable());
        let derived = derive.args(["run", "-q", "--", "true"]).env("MSB_HOME", &home).output();
        let derived = derived.expect("msb can be executed");
        assert!(derived.status.success(), "{derived:?}");
        home.join("layers")
    };
    LAYERS.get_or_init(make).clone()
}

/// The `msb` under test.
pub(crate) fn executable() -> PathBuf {
    for variable in ["MSB_PATH", "MSB_BIN"] {
        if let Some(path) = std::env::var_os(variable) {
            return path.into();
        }
    }
    // This program is target/…/PROFILE/deps/sdk-HASH.
    let built = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.parent()?.join("msb")))
        .filter(|path| path.is_file());
    built.expect("no msb to test: build it (`cargo build --profile ci`) or set MSB_BIN to it")
}

/// Waits until this holds.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let since = Instant::now();
    while !holds().await {
        assert!(since.elapsed() < PATIENCE, "still not so: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
