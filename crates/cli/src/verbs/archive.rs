//! `msb load`, `msb save` and `msb push`: images to and from elsewhere.

use super::bare_engine;
use crate::listing;
use crate::output::{self, Outcome};
use crate::pull_progress::{Bars, ReachArgs};
use crate::verb_table::LocalVerb;
use clap::{Parser, ValueEnum};
use msb_engine::images;
use msb_spec::{Error, Platform, Reference, Result};
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::PathBuf;

/// Reads images from a file: docker save, OCI archive (gzip, zstd or plain) or OCI directory.
#[derive(Debug, Parser)]
#[command(override_usage = "msb load [OPTIONS]")]
pub(crate) struct LoadArgs {
    /// File or directory to read; stdin without it
    #[arg(long, short, value_name = "PATH")]
    input: Option<PathBuf>,
    /// Name that the image gets, whatever it says itself
    #[arg(long, short, value_name = "NAME")]
    tag: Option<Reference>,
    /// Platform to take, where there are several
    #[arg(long, value_name = "PLATFORM")]
    platform: Option<Platform>,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl LocalVerb for LoadArgs {
    fn run(self) -> Outcome {
        let engine = bare_engine()?;
        let store = engine.images()?;
        let bars = Bars::new(self.quiet);
        let load = images::LoadOptions { name: self.tag, platform: self.platform };
        let input = self.input.filter(|path| path.as_os_str() != "-");
        let about = |error: Error| match &input {
            Some(path) => error.under(format!("cannot load `{}`", path.display())),
            None => error.under("cannot load what comes on stdin"),
        };
        let loaded = match &input {
            None if std::io::stdin().is_terminal() => {
                return Err(Error::invalid("there is nothing on stdin to load")
                    .hint("`-i FILE` names the file to read")
                    .into());
            }
            None => store.load_archive(&mut std::io::stdin().lock(), &load, &bars),
            Some(path) if path.is_dir() => store.load_directory(path, &load, &bars),
            Some(path) => File::open(path)
                .map_err(|error| Error::host(format!("cannot read `{}`", path.display()), error))
                .and_then(|mut file| store.load_archive(&mut file, &load, &bars)),
        };
        let loaded = loaded.map_err(about)?;
        if self.json {
            let shown = loaded.iter().map(|image| engine.image_inspect(&image.reference));
            listing::json(&shown.collect::<Result<Vec<_>>>()?);
        } else {
            loaded.iter().for_each(|image| output::print(image.reference.at(&image.digest)));
        }
        Ok(0)
    }
}

/// How images are saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One tar that is an OCI archive and a docker archive
    Oci,
    /// An OCI layout directory
    Dir,
}

/// Writes images to a file that msb, docker, podman and skopeo can read.
#[derive(Debug, Parser)]
#[command(override_usage = "msb save [OPTIONS] IMAGE...")]
pub(crate) struct SaveArgs {
    /// Names of images that are here
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<Reference>,
    /// File or directory to write; stdout without it
    #[arg(long, short, value_name = "PATH")]
    output: Option<PathBuf>,
    /// What to write
    #[arg(long, value_name = "FORMAT", default_value = "oci")]
    format: Format,
}

impl LocalVerb for SaveArgs {
    fn run(self) -> Outcome {
        let engine = bare_engine()?;
        let store = engine.images()?;
        let found = self.images.iter().map(|name| engine.image(&store, name));
        let found = found.collect::<Result<Vec<_>>>()?;
        match (self.format, &self.output) {
            (Format::Dir, Some(path)) => store.save_directory(&found, path)?,
            (Format::Dir, None) => {
                return Err(Error::invalid("a directory cannot be written to stdout")
                    .hint("`-o PATH` names the directory")
                    .into());
            }
            (Format::Oci, None) if std::io::stdout().is_terminal() => {
                return Err(Error::invalid("an archive would not look good on a terminal")
                    .hint("`-o FILE` names a file, or send it through a pipe")
                    .into());
            }
            (Format::Oci, None) => {
                let mut out = BufWriter::new(std::io::stdout().lock());
                store.save_archive(&found, &mut out)?;
                out.flush().map_err(|error| Error::host("cannot write the image", error))?;
            }
            (Format::Oci, Some(path)) => {
                let about =
                    |error| Error::host(format!("cannot write `{}`", path.display()), error);
                let mut out = BufWriter::new(File::create(path).map_err(about)?);
                let saved = store.save_archive(&found, &mut out);
                if saved.is_err() {
                    // Half an archive is none.
                    let _ = std::fs::remove_file(path);
                }
                saved?;
                out.flush().map_err(about)?;
            }
        }
        Ok(0)
    }
}

/// Sends an image to a registry.
#[derive(Debug, Parser)]
#[command(override_usage = "msb push [OPTIONS] IMAGE [DEST]")]
pub(crate) struct PushArgs {
    /// Name of an image that is here
    #[arg(value_name = "IMAGE")]
    image: Reference,
    /// Name that it gets there; its own without it
    #[arg(value_name = "DEST")]
    dest: Option<Reference>,
    #[command(flatten)]
    reach: ReachArgs,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

impl LocalVerb for PushArgs {
    fn run(self) -> Outcome {
        let engine = bare_engine()?;
        let store = engine.images()?;
        let image = engine.image(&store, &self.image)?;
        let dest = self.dest.as_ref().unwrap_or(&image.reference).without_digest();
        store.push(&image, &dest, &self.reach.reach(), &Bars::new(self.quiet))?;
        output::result("image", dest.at(&image.digest));
        Ok(0)
    }
}
