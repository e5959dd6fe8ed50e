//! Real images: Debian as mmdebstrap makes it from the mirror that this machine uses.
//!
//! To make them takes most of a minute, so their layers are kept beside the tests' own build
//! and used again as long as the recipe is the same.

use crate::images::{Image, Layer, Layout, Packing, fresh};
use crate::tar;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Debian with apt and nothing else, every package installed as it should be.
pub fn debian() -> &'static Layout {
    static LAYOUT: OnceLock<Layout> = OnceLock::new();
    LAYOUT.get_or_init(|| image(&[base()]).layout())
}

/// [`debian`] and a layer with python3 and pip.
pub fn python() -> &'static Layout {
    static LAYOUT: OnceLock<Layout> = OnceLock::new();
    LAYOUT.get_or_init(|| {
        let layer = layer("python", &["--variant=extract", "--include=python3-pip"]);
        image(&[base(), &layer]).config(&json!({"Cmd": ["python3"]})).layout()
    })
}

/// [`debian`] and a layer with nodejs and npm.
pub fn node() -> &'static Layout {
    static LAYOUT: OnceLock<Layout> = OnceLock::new();
    LAYOUT.get_or_init(|| {
        // Debian's npm brings half of what is written in JavaScript; it does not call it.
        let unused = "--extract-hook=cd \"$1/usr/share/nodejs\" && rm -rf @types @babel webpack \
                      eslint core-js es-abstract lodash caniuse-lite web-streams-polyfill";
        let layer = layer("node", &["--variant=extract", "--include=nodejs,npm", unused]);
        image(&[base(), &layer]).config(&json!({"Cmd": ["node"]})).layout()
    })
}

fn base() -> &'static Layer {
    static LAYER: OnceLock<Layer> = OnceLock::new();
    LAYER.get_or_init(|| layer("debian", &["--variant=apt"]))
}

fn image(layers: &[&Layer]) -> Image {
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let config = json!({"Env": [path], "Cmd": ["bash"]});
    layers.iter().fold(Image::new().config(&config), |image, layer| image.layer(layer))
}

fn layer(name: &str, flags: &[&str]) -> Layer {
    let mirror = Mirror::of_this_machine();
    let kept = kept(&format!("{name}-{}.tar", mirror.suite));
    if !kept.exists() {
        let made = kept.with_extension(format!("{}.new", std::process::id()));
        mirror.bootstrap(flags, &made);
        if flags.contains(&"--variant=extract") {
            // Packages that are unpacked and not installed know nothing of those below.
            let archive = fs::read(&made).expect("just made");
            let without = tar::without(&archive, &["var", "etc/apt", "dev"]);
            fs::write(&made, without).expect("a file");
        }
        fs::rename(made, &kept).expect("a rename");
    }
    let copy = fresh("debian");
    fs::hard_link(&kept, &copy).or_else(|_| fs::copy(&kept, &copy).map(drop)).expect("a copy");
    Layer::of_file(&copy, Packing::Gzip)
}

/// Where a layer is kept from one run to the next.
fn kept(file: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("a test is a file");
    let profile = exe.parent().and_then(Path::parent).expect("target/PROFILE/deps/test");
    let directory = profile.join("e2e-images");
    fs::create_dir_all(&directory).expect("a directory");
    directory.join(file)
}

/// Where this machine's own packages come from.
struct Mirror {
    suite: String,
    uri: String,
    components: &'static str,
}

impl Mirror {
    fn of_this_machine() -> Self {
        let release = fs::read_to_string("/etc/os-release").expect("os-release");
        let word = |key: &str| {
            let line = release.lines().find_map(|line| line.strip_prefix(key));
            line.map(|value| value.trim_matches('"').to_owned())
        };
        let suite = word("VERSION_CODENAME=").expect("a release with a name");
        let components = match word("ID=").as_deref() {
            Some("ubuntu") => "main,universe",
            _ => "main",
        };
        let output = Command::new("apt-get")
            .args(["indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"])
            .output()
            .expect("apt-get");
        let targets = String::from_utf8_lossy(&output.stdout).into_owned();
        let uri = targets.lines().find_map(|line| {
            let (release, uri) = line.split_once(' ')?;
            (release == suite).then(|| uri.to_owned())
        });
        let uri = uri.unwrap_or_else(|| panic!("apt has no source of {suite}: {targets}"));
        Self { suite, uri, components }
    }

    fn bootstrap(&self, flags: &[&str], target: &Path) {
        // Where /bin and /usr/bin are one, layers that disagree about it would break each other.
        let hooks = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr";
        let slim = "cd \"$1/usr\" && rm -rf share/doc share/man share/locale include \
                    lib/*/gconv lib/*/*.a";
        // One kind of hook runs where packages are only unpacked, the other where they are not.
        let slim = ["extract", "customize"].map(|hook| format!("--{hook}-hook={slim}"));
        let output = Command::new("mmdebstrap")
            .args(["--quiet", hooks, "--aptopt=Acquire::Languages \"none\""])
            .args(slim)
            .arg(format!("--components={}", self.components))
            .args(flags)
            .args(["--format=tar", &self.suite])
            .arg(target)
            .arg(&self.uri)
            .stdin(Stdio::null())
            .output()
            .expect("mmdebstrap is installed");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "mmdebstrap {flags:?}: {said}");
    }
}
