//! Makes images out of archives, as OCI layouts, which every tool reads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::workspace;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    Gzip,
    Zstd,
}

impl Packing {
    /// Reads a file, and writes what it holds to stdout.
    pub(super) fn unpack(self) -> [&'static str; 2] {
        match self {
            Packing::Gzip => ["/usr/bin/gzip", "-dc"],
            Packing::Zstd => ["/usr/bin/zstd", "-dcq"],
        }
    }

    /// The program that packs a file beside itself, at its default level, and the suffix that it
    /// adds to the name.
    fn pack(self) -> ([&'static str; 4], &'static str) {
        match self {
            Packing::Gzip => (["gzip", "-n", "-k", "-6"], "gz"),
            Packing::Zstd => (["zstd", "-q", "-k", "-3"], "zst"),
        }
    }

    /// As media types end.
    pub(super) fn name(self) -> &'static str {
        match self {
            Packing::Gzip => "gzip",
            Packing::Zstd => "zstd",
        }
    }
}

/// One layer archive, compressed.
pub(super) struct Layer {
    pub(super) file: PathBuf,
    size: u64,
    digest: String,
    diff_id: String,
    packing: Packing,
}

/// Packs archives, all at once: this takes longer than making them.
pub(super) fn pack(archives: &[PathBuf], packing: Packing) -> Result<Vec<Layer>> {
    thread::scope(|scope| {
        let pack = |archive: &Path| Layer::pack(archive, packing);
        let at_work: Vec<_> =
            archives.iter().map(|archive| scope.spawn(move || pack(archive))).collect();
        at_work.into_iter().map(|one| one.join().expect("no thread of ours panics")).collect()
    })
}

impl Layer {
    fn pack(archive: &Path, packing: Packing) -> Result<Self> {
        let ([program, options @ ..], ending) = packing.pack();
        workspace::run(Command::new(program).args(options).arg(archive))?;
        let mut file = archive.as_os_str().to_owned();
        file.push(format!(".{ending}"));
        let file = PathBuf::from(file);
        Ok(Layer {
            size: fs::metadata(&file)?.len(),
            digest: digest(&file)?,
            diff_id: digest(archive)?,
            file,
            packing,
        })
    }

    fn descriptor(&self) -> Value {
        let media_type = format!("application/vnd.oci.image.layer.v1.tar+{}", self.packing.name());
        json!({"mediaType": media_type, "digest": self.digest, "size": self.size})
    }
}

/// Writes a layout with one image for this machine.
pub(super) fn write(layout: &Path, layers: &[Layer]) -> Result<()> {
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    for layer in layers {
        let blob = blobs.join(hex(&layer.digest));
        fs::hard_link(&layer.file, &blob)
            .with_context(|| format!("cannot link `{}`", blob.display()))?;
    }
    let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.diff_id.as_str()).collect();
    let config = blob(
        &blobs,
        "application/vnd.oci.image.config.v1+json",
        &json!({
            "architecture": architecture()?,
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/true"]},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }),
    )?;
    let manifest_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = blob(
        &blobs,
        manifest_type,
        &json!({
            "schemaVersion": 2,
            "mediaType": manifest_type,
            "config": config,
            "layers": layers.iter().map(Layer::descriptor).collect::<Vec<_>>(),
        }),
    )?;
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(layout.join("index.json"), index.to_string())?;
    fs::write(layout.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
    Ok(())
}

/// Writes a blob under its digest; what a manifest says of it.
fn blob(blobs: &Path, media_type: &str, value: &Value) -> Result<Value> {
    let text = value.to_string();
    let aside = blobs.join("new");
    fs::write(&aside, &text)?;
    let digest = digest(&aside)?;
    fs::rename(&aside, blobs.join(hex(&digest)))?;
    Ok(json!({"mediaType": media_type, "digest": digest, "size": text.len()}))
}

fn digest(file: &Path) -> Result<String> {
    let line = workspace::output(Command::new("sha256sum").arg(file))?;
    let hex = line.split_whitespace().next().context("sha256sum says nothing")?;
    Ok(format!("sha256:{hex}"))
}

fn hex(digest: &str) -> &str {
    digest.trim_start_matches("sha256:")
}

/// As images name it.
fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("no name of `{other}` in images is known here"),
    }
}
