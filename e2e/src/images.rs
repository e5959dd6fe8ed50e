//! Makes images for the tests: OCI layouts, written by hand where a test must know each byte.
//!
//! Each layer and each layout is made once for a run of the tests and never changed.

use crate::tar::{Entry, Tar};
use crate::{compiled, shared};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// How a layer is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// As nearly all layers are.
    Gzip,
    /// As new ones are.
    Zstd,
    /// Not at all.
    Plain,
}

/// One layer, packed.
#[derive(Debug, Clone)]
pub struct Layer {
    /// Digest of the tar archive.
    pub diff_id: String,
    /// What a manifest says of the packed form: media type, digest and size.
    pub descriptor: Value,
    file: PathBuf,
}

/// One image for one platform.
#[derive(Debug, Clone)]
pub struct Image {
    layers: Vec<Layer>,
    config: Value,
    os: String,
    architecture: String,
    variant: Option<String>,
}

/// An OCI layout directory that holds one image under the name `latest`, in one or more
/// platforms.
#[derive(Debug)]
pub struct Layout {
    path: PathBuf,
    /// Digest of the index if there are several platforms, else of the manifest.
    pub digest: String,
    /// Digest of each platform's manifest.
    pub manifests: Vec<String>,
}

impl Layer {
    /// Packs an archive.
    pub fn new(tar: &Tar, packing: Packing) -> Self {
        Self::of_bytes(&tar.bytes(), packing)
    }

    /// Packs any bytes as if they were an archive.
    pub fn of_bytes(bytes: &[u8], packing: Packing) -> Self {
        let file = fresh("layer");
        fs::write(&file, bytes).expect("a file");
        Self::of_file(&file, packing)
    }

    /// Packs an archive that is a file, which becomes ours.
    pub fn of_file(tar: &Path, packing: Packing) -> Self {
        let diff_id = digest(tar);
        let (file, suffix) = match packing {
            Packing::Plain => (tar.to_owned(), ""),
            Packing::Gzip => (pack(tar, "gzip", &["-n1", "-c"]), "+gzip"),
            Packing::Zstd => (pack(tar, "zstd", &["-q", "-c"]), "+zstd"),
        };
        let descriptor = json!({
            "mediaType": format!("application/vnd.oci.image.layer.v1.tar{suffix}"),
            "digest": digest(&file),
            "size": fs::metadata(&file).expect("a file").len(),
        });
        Self { diff_id, descriptor, file }
    }

    /// Digest of the packed form.
    pub fn digest(&self) -> &str {
        self.descriptor["digest"].as_str().expect("a digest")
    }

    /// A static busybox with its usual names, and `list`, which describes a tree.
    pub fn busybox() -> &'static Self {
        static LAYER: OnceLock<Layer> = OnceLock::new();
        LAYER.get_or_init(|| {
            let busybox = fs::read("/bin/busybox").expect("busybox-static is installed");
            let list = fs::read(lister()).expect("just compiled");
            let applets = Command::new("/bin/busybox").arg("--list").output().expect("busybox");
            let applets = String::from_utf8(applets.stdout).expect("names");
            let link = |applet: &str| Entry::symlink(&format!("bin/{applet}"), "busybox");
            let directories = ["bin", "etc", "proc", "sys", "dev", "usr", "usr/bin", "home"];
            let people = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:33:web:/home/web:/bin/sh\n";
            let tar = Tar::default()
                .with(directories.map(Entry::directory))
                .with([
                    Entry::directory("root").mode(0o700),
                    Entry::directory("tmp").mode(0o1777),
                    Entry::directory("home/web").owner(33, 33),
                    Entry::program("bin/busybox", busybox),
                    Entry::program("bin/list", list),
                    Entry::file("etc/passwd", people),
                    Entry::file("etc/group", "root:x:0:\nweb:x:33:\n"),
                ])
                .with(applets.lines().filter(|applet| *applet != "busybox").map(link));
            Self::new(&tar, Packing::Gzip)
        })
    }
}

impl Image {
    /// For this machine, with nothing in it.
    pub fn new() -> Self {
        Self {
            layers: Vec::new(),
            config: json!({}),
            os: "linux".to_owned(),
            architecture: own_architecture().to_owned(),
            variant: None,
        }
    }

    /// For this machine, with [`Layer::busybox`] as its first layer and a PATH.
    pub fn busybox() -> Self {
        let config = json!({"Env": ["PATH=/bin:/usr/bin"], "Cmd": ["sh"]});
        Self::new().layer(Layer::busybox()).config(&config)
    }

    /// Adds a layer.
    #[must_use]
    pub fn layer(mut self, layer: &Layer) -> Self {
        self.layers.push(layer.clone());
        self
    }

    /// Adds a layer of these entries, packed as most are.
    #[must_use]
    pub fn entries(self, entries: impl IntoIterator<Item = Entry>) -> Self {
        self.layer(&Layer::new(&Tar::default().with(entries), Packing::Gzip))
    }

    /// Sets words of the config that a sandbox begins with: `Env`, `Cmd` and so on.
    #[must_use]
    pub fn config(mut self, words: &Value) -> Self {
        for (key, value) in words.as_object().expect("an object") {
            self.config[key] = value.clone();
        }
        self
    }

    /// Makes it one for another platform.
    #[must_use]
    pub fn platform(mut self, os: &str, architecture: &str, variant: Option<&str>) -> Self {
        self.os = os.to_owned();
        self.architecture = architecture.to_owned();
        self.variant = variant.map(str::to_owned);
        self
    }

    /// Writes it as a layout of its own.
    pub fn layout(&self) -> Layout {
        Layout::new(std::slice::from_ref(self), IsIndex::No)
    }

    fn platform_words(&self) -> Value {
        let mut words = json!({"os": self.os, "architecture": self.architecture});
        if let Some(variant) = &self.variant {
            words["variant"] = json!(variant);
        }
        words
    }
}

impl Default for Image {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Clone, Copy)]
enum IsIndex {
    Yes,
    No,
}

impl Layout {
    /// The image that most tests use: see [`Image::busybox`].
    pub fn busybox() -> &'static Self {
        static LAYOUT: OnceLock<Layout> = OnceLock::new();
        LAYOUT.get_or_init(|| Image::busybox().layout())
    }

    /// One name for several platforms.
    pub fn index(images: &[Image]) -> Self {
        Self::new(images, IsIndex::Yes)
    }

    fn new(images: &[Image], several: IsIndex) -> Self {
        let path = fresh("layout");
        fs::create_dir_all(path.join("blobs/sha256")).expect("a directory");
        fs::write(path.join("oci-layout"), "{\"imageLayoutVersion\":\"1.0.0\"}").expect("a file");
        let mut layout = Self { path, digest: String::new(), manifests: Vec::new() };
        let mut described: Vec<Value> = images.iter().map(|image| layout.add(image)).collect();
        layout.manifests =
            described.iter().map(|one| one["digest"].as_str().expect("text").to_owned()).collect();
        if matches!(several, IsIndex::Yes) {
            let media_type = "application/vnd.oci.image.index.v1+json";
            let index = json!({
                "schemaVersion": 2,
                "mediaType": media_type,
                "manifests": described,
            });
            described = vec![layout.blob(&index, media_type)];
        }
        let mut top = described.remove(0);
        layout.digest = top["digest"].as_str().expect("text").to_owned();
        top["annotations"] = json!({"org.opencontainers.image.ref.name": "latest"});
        let index = json!({"schemaVersion": 2, "manifests": [top]});
        fs::write(layout.path.join("index.json"), index.to_string()).expect("a file");
        layout
    }

    /// Adds one platform's blobs and gives what an index says of it.
    fn add(&self, image: &Image) -> Value {
        for layer in &image.layers {
            let target = self.blob_path(layer.digest());
            if !target.exists() {
                fs::hard_link(&layer.file, target).expect("a link");
            }
        }
        let mut config = image.platform_words();
        config["created"] = json!("2020-09-13T12:26:40Z");
        config["config"] = image.config.clone();
        let diff_ids: Vec<&str> = image.layers.iter().map(|one| one.diff_id.as_str()).collect();
        config["rootfs"] = json!({"type": "layers", "diff_ids": diff_ids});
        let step = |_| json!({"created": "2020-09-13T12:26:40Z", "created_by": "the tests"});
        config["history"] = image.layers.iter().map(step).collect();
        let layers: Vec<&Value> = image.layers.iter().map(|layer| &layer.descriptor).collect();
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": media_type,
            "config": self.blob(&config, "application/vnd.oci.image.config.v1+json"),
            "layers": layers,
        });
        let mut described = self.blob(&manifest, media_type);
        described["platform"] = image.platform_words();
        described
    }

    fn blob(&self, content: &Value, media_type: &str) -> Value {
        let text = content.to_string();
        let file = fresh("blob");
        fs::write(&file, &text).expect("a file");
        let digest = digest(&file);
        fs::rename(file, self.blob_path(&digest)).expect("a rename");
        json!({"mediaType": media_type, "digest": digest, "size": text.len()})
    }

    fn blob_path(&self, digest: &str) -> PathBuf {
        self.path.join("blobs/sha256").join(digest.trim_start_matches("sha256:"))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The manifest of a platform, in the order of [`Layout::index`].
    pub fn manifest(&self, platform: usize) -> Value {
        self.read(&self.manifests[platform])
    }

    /// The diff ids of the only platform's layers, lowest first.
    pub fn diff_ids(&self) -> Vec<String> {
        let config = self.read(self.manifest(0)["config"]["digest"].as_str().expect("text"));
        let ids = config["rootfs"]["diff_ids"].as_array().expect("a list");
        ids.iter().map(|id| id.as_str().expect("text").to_owned()).collect()
    }

    /// A blob that is JSON.
    pub fn read(&self, digest: &str) -> Value {
        let text = fs::read(self.blob_path(digest)).expect("a blob");
        serde_json::from_slice(&text).expect("JSON")
    }

    /// How skopeo and umoci are told of it.
    pub fn skopeo(&self) -> String {
        format!("oci:{}:latest", self.path.display())
    }

    /// Unpacks it with umoci and gives the root filesystem; only root can give files away.
    pub fn unpacked(&self) -> PathBuf {
        unpack(&self.path, "latest")
    }
}

/// Unpacks an image of any layout with umoci and gives the root filesystem.
pub fn unpack(layout: &Path, tag: &str) -> PathBuf {
    let bundle = fresh("bundle");
    let output = Command::new("umoci")
        .args(["unpack", "--image"])
        .arg(format!("{}:{tag}", layout.display()))
        .arg(&bundle)
        .output()
        .expect("umoci is installed");
    assert!(output.status.success(), "umoci: {}", String::from_utf8_lossy(&output.stderr));
    bundle.join("rootfs")
}

/// The program that describes each entry of a tree in a line; static, so it runs in any image.
pub fn lister() -> PathBuf {
    compiled("list", include_str!("list.c"))
}

/// This machine's architecture as images name it.
pub fn own_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// `sha256:` and the sum of a file.
pub fn digest(file: &Path) -> String {
    let output = Command::new("sha256sum").stdin(File::open(file).expect("a file")).output();
    let output = String::from_utf8(output.expect("coreutils").stdout).expect("a sum");
    format!("sha256:{}", output.split_whitespace().next().expect("a sum"))
}

fn pack(file: &Path, program: &str, flags: &[&str]) -> PathBuf {
    let target = fresh("packed");
    let status = Command::new(program)
        .args(flags)
        .stdin(File::open(file).expect("a file"))
        .stdout(File::create(&target).expect("a file"))
        .stderr(Stdio::null())
        .status();
    assert!(status.is_ok_and(|status| status.success()), "{program} is installed");
    target
}

/// A path in the shared directory that nothing has yet.
pub(crate) fn fresh(what: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let parent = shared().join("images");
    fs::create_dir_all(&parent).expect("a directory");
    parent.join(format!("{what}-{number}"))
}
