//! Saves images to files and pushes them to registries, with unchanged digests.

use crate::ImageConfig;
use crate::manifest::{Descriptor, Index, Manifest, OCI_INDEX, OCI_MANIFEST};
use crate::progress::{Progress, ProgressEvent};
use crate::pull::manifest_type;
use crate::registry::{RegistryEndpoint, RegistryOptions, is_unreachable};
use crate::store::{Image, Store, storage_error};
use msb_spec::{Digest, Error, Kind, Reference, Result};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// Content of `oci-layout`, which marks an OCI layout.
const LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;

/// Target of a saved image: a tar stream or a directory.
trait ImageSink {
    fn put(&mut self, name: &str, size: u64, stream: &mut dyn Read) -> io::Result<()>;

    fn make_directory(&mut self, name: &str) -> io::Result<()>;
}

impl Store {
    /// Writes images as one tar that is both an OCI archive and an archive of `docker save`.
    pub fn save_archive(&self, images: &[Image], out: &mut dyn Write) -> Result<()> {
        let mut archive = tar::Builder::new(out);
        self.save(images, &mut TarSink(&mut archive))?;
        archive.finish().map_err(write_error)
    }

    /// Writes images as an OCI layout. The directory must be new or without an `index.json`.
    pub fn save_directory(&self, images: &[Image], directory: &Path) -> Result<()> {
        let push_failed =
            |error| Error::host(format!("cannot write to `{}`", directory.display()), error);
        fs::create_dir_all(directory).map_err(push_failed)?;
        if directory.join("index.json").exists() {
            let shown = directory.display();
            return Err(Error::new(Kind::Exists, format!("`{shown}` contains an image already")));
        }
        self.save(images, &mut DirectorySink(directory))
    }

    fn save(&self, images: &[Image], sink: &mut dyn ImageSink) -> Result<()> {
        for name in ["blobs/", "blobs/sha256/"] {
            sink.make_directory(name).map_err(write_error)?;
        }
        let mut put = |name: &str, text: &[u8]| {
            sink.put(name, text.len() as u64, &mut &*text).map_err(write_error)
        };
        put("oci-layout", LAYOUT)?;
        let mut manifests = Vec::new();
        let mut docker = Vec::new();
        let mut written: BTreeMap<Digest, ()> = BTreeMap::new();
        for image in images {
            let text = self.read_blob(&image.digest)?;
            let annotations = BTreeMap::from([
                ("io.containerd.image.name".to_owned(), image.reference.to_string()),
                ("org.opencontainers.image.ref.name".to_owned(), image.reference.to_string()),
            ]);
            manifests.push(Descriptor {
                media_type: self.media_type(&text)?,
                digest: image.digest.clone(),
                size: text.len() as u64,
                platform: Some(image.platform.clone()),
                annotations,
            });
            let path = |digest: &Digest| format!("blobs/sha256/{}", digest.hex());
            let layers: Vec<String> =
                image.layers.iter().map(|layer| path(&layer.digest)).collect();
            docker.push(json!({
                "Config": path(&image.config_digest),
                "RepoTags": [image.reference.without_digest().to_string()],
                "Layers": layers,
            }));
        }
        let media_type = Some(OCI_INDEX.to_owned());
        let index = Index { schema_version: 2, media_type, manifests };
        put("index.json", &serde_json::to_vec(&index).expect("our own types always serialise"))?;
        put("manifest.json", &serde_json::to_vec(&docker).expect("a value always serialises"))?;
        for image in images {
            let parts = [&image.digest, &image.config_digest];
            for digest in parts.into_iter().chain(image.layers.iter().map(|layer| &layer.digest)) {
                if written.insert(digest.clone(), ()).is_none() {
                    self.save_blob(digest, sink)?;
                }
            }
        }
        Ok(())
    }

    fn save_blob(&self, digest: &Digest, sink: &mut dyn ImageSink) -> Result<()> {
        let (file, size) = self.open_blob(digest)?;
        let mut stream = HashingReader { file, hash: Sha256::new() };
        let name = format!("blobs/sha256/{}", digest.hex());
        sink.put(&name, size, &mut stream).map_err(write_error)?;
        stream.check(digest)
    }

    fn open_blob(&self, digest: &Digest) -> Result<(File, u64)> {
        let path = self.blob(digest);
        let file = File::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::new(Kind::State, "a blob of the image is missing")
                .cause(digest)
                .hint("`msb pull` fetches it again"),
            _ => storage_error(&path, error),
        })?;
        let size = file.metadata().map_err(|error| storage_error(&path, error))?.len();
        Ok((file, size))
    }

    fn media_type(&self, manifest: &[u8]) -> Result<String> {
        match Manifest::parse(manifest, &self.settings().image_limits)? {
            Manifest::Image(manifest) => Ok(manifest_type(&manifest).to_owned()),
            Manifest::Index(_) => Ok(OCI_MANIFEST.to_owned()),
        }
    }

    /// Pushes an image to a registry, under the name `to`.
    pub fn push(
        &self,
        image: &Image,
        to: &Reference,
        reach: &RegistryOptions,
        progress: &dyn Progress,
    ) -> Result<()> {
        let push_failed = |error: Error| error.under(format!("cannot push to `{}`", to.short()));
        let credentials = reach.credentials(self.home(), to.registry());
        let endpoints =
            RegistryEndpoint::direct(to.registry(), self.settings(), reach, &credentials)
                .map_err(push_failed)?;
        let mut failure = None;
        for endpoint in &endpoints {
            match self.push_to(endpoint, image, to, progress) {
                Ok(()) => return Ok(()),
                Err(error) if is_unreachable(&error) => failure = Some(error),
                Err(error) => return Err(push_failed(error)),
            }
        }
        let failure =
            failure.unwrap_or_else(|| Error::new(Kind::NotFound, "no registry to contact"));
        Err(push_failed(failure))
    }

    fn push_to(
        &self,
        endpoint: &RegistryEndpoint,
        image: &Image,
        to: &Reference,
        progress: &dyn Progress,
    ) -> Result<()> {
        progress.step(ProgressEvent::Asking { registry: endpoint.url() });
        let repository = to.repository();
        let text = self.read_blob(&image.digest)?;
        let media_type = self.media_type(&text)?;
        // Blobs are verified before the upload: a damaged blob must not be published.
        for layer in &image.layers {
            progress.step(ProgressEvent::Layer { digest: &layer.digest, size: layer.size });
        }
        let parts = image.layers.iter().map(|layer| &layer.digest);
        for digest in parts.chain([&image.config_digest]) {
            if !endpoint.has_blob(repository, digest)? {
                self.verify_blob(digest)?;
                endpoint.upload(repository, digest, &self.blob(digest))?;
            }
            progress.step(ProgressEvent::Ready { digest });
        }
        let digest = image.digest.to_string();
        let what = to.tag().unwrap_or(&digest);
        endpoint.put_manifest(repository, what, &media_type, &text)
    }

    fn verify_blob(&self, digest: &Digest) -> Result<()> {
        let (file, _) = self.open_blob(digest)?;
        let mut stream = HashingReader { file, hash: Sha256::new() };
        io::copy(&mut stream, &mut io::sink())
            .map_err(|error| storage_error(&self.blob(digest), error))?;
        stream.check(digest)
    }

    /// Adds an image whose layers are stored already.
    pub fn add_image(
        &self,
        reference: &Reference,
        config: &ImageConfig,
        layers: &[crate::Layer],
    ) -> Result<Image> {
        let _adding = self.adding()?;
        let config_text = serde_json::to_vec(config).expect("our own types always serialise");
        let config_digest = self.put_blob(&config_text)?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": {
                "mediaType": crate::manifest::OCI_CONFIG,
                "digest": config_digest,
                "size": config_text.len(),
            },
            "layers": layers.iter().map(|layer| json!({
                "mediaType": layer.media_type,
                "digest": layer.digest,
                "size": layer.size,
            })).collect::<Vec<_>>(),
        });
        let text = serde_json::to_vec(&manifest).expect("a value always serialises");
        let digest = self.put_blob(&text)?;
        let owners = layers
            .iter()
            .any(|layer| self.contents(&layer.diff_id).is_none_or(|contents| contents.owners));
        let diff_ids: Vec<&Digest> = layers.iter().map(|layer| &layer.diff_id).collect();
        let implied_dirs = self.make_implied_dirs(&diff_ids)?;
        let image = Image {
            version: crate::store::RECORD_VERSION,
            implied_dirs,
            reference: reference.clone(),
            digest,
            index: None,
            platform: config.platform(),
            config_digest,
            config: config.run(),
            layers: layers.to_vec(),
            owners,
            created: config.created.as_deref().and_then(crate::pull::milliseconds),
            pulled: crate::store::now_ms(),
            boot: Some(crate::store::boot_id()),
        };
        self.write_record(&image)?;
        Ok(image)
    }
}

/// Hashes a file while it is read.
struct HashingReader {
    file: File,
    hash: Sha256,
}

impl HashingReader {
    fn check(self, wanted: &Digest) -> Result<()> {
        if Digest::of_bytes(self.hash.finalize().into()) == *wanted {
            return Ok(());
        }
        Err(Error::new(Kind::State, "a blob of the image was damaged on disk")
            .cause(wanted)
            .hint("`msb image rm` and `msb pull` fetch it again"))
    }
}

impl Read for HashingReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(into)?;
        self.hash.update(&into[..n]);
        Ok(n)
    }
}

struct TarSink<'a, 'b>(&'a mut tar::Builder<&'b mut dyn Write>);

impl ImageSink for TarSink<'_, '_> {
    fn put(&mut self, name: &str, size: u64, stream: &mut dyn Read) -> io::Result<()> {
        let mut header = header(0o644);
        header.set_size(size);
        self.0.append_data(&mut header, name, stream)
    }

    fn make_directory(&mut self, name: &str) -> io::Result<()> {
        let mut header = header(0o755);
        header.set_size(0);
        header.set_entry_type(tar::EntryType::Directory);
        self.0.append_data(&mut header, name, io::empty())
    }
}

/// A tar header with the ids of this process: tools restore the owner.
fn header(mode: u32) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_uid(rustix::process::geteuid().as_raw().into());
    header.set_gid(rustix::process::getegid().as_raw().into());
    header
}

struct DirectorySink<'a>(&'a Path);

impl ImageSink for DirectorySink<'_> {
    fn put(&mut self, name: &str, _: u64, stream: &mut dyn Read) -> io::Result<()> {
        let mut file = File::create(self.0.join(name))?;
        io::copy(stream, &mut file).map(drop)
    }

    fn make_directory(&mut self, name: &str) -> io::Result<()> {
        fs::create_dir_all(self.0.join(name))
    }
}

fn write_error(error: io::Error) -> Error {
    Error::host("cannot write the image", error)
}
