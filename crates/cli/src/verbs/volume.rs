//! `msb volume …`: storage that outlives sandboxes.

use super::{bare_engine, cp, engine};
use crate::clock;
use crate::listing::{self, Listing};
use crate::output::{self, Failure, Outcome};
use crate::selection::pair;
use crate::target::Target;
use crate::verb_table::TargetVerb;
use clap::Parser;
use msb_api::{Place as Files, Volume};
use msb_spec::{Bytes, Error, Name, Result, VolumeKind, VolumeName, VolumeSpec};
use msb_wire::{EntryKind, Meta};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::path::Path;

/// Makes a volume. `msb run -v NAME:/path` shows it in a sandbox.
#[derive(Debug, Parser)]
#[command(override_usage = "msb volume create [OPTIONS] NAME")]
pub(crate) struct VolumeCreateArgs {
    /// Name of the volume
    #[arg(value_name = "NAME")]
    name: VolumeName,
    /// How much it may hold, as in `2G`; a bare number is MiB (a directory: as root only)
    /// [default of a disk: 2G]
    #[arg(long, value_name = "SIZE", value_parser = Bytes::parse_size)]
    size: Option<Bytes>,
    /// What it is: `dir`, shared by several, or `disk`, for microVMs [default: dir]
    #[arg(long, value_name = "KIND")]
    kind: Option<VolumeKind>,
    /// Label, for finding it again
    #[arg(long = "label", short, value_name = "KEY=VALUE")]
    labels: Vec<String>,
}

impl TargetVerb for VolumeCreateArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let labels = self.labels.iter().map(|label| pair(label)).collect::<Result<Vec<_>>>()?;
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let spec = VolumeSpec {
            name: self.name,
            kind: self.kind.unwrap_or_default(),
            size: self.size,
            labels: labels.into_iter().map(owned).collect(),
        };
        output::result("name", target.api()?.volume_create(&spec)?.name);
        Ok(0)
    }
}

/// Lists volumes, or what a directory of one holds.
#[derive(Debug, Parser)]
#[command(override_usage = "msb volume ls [OPTIONS]\n       msb volume ls [OPTIONS] NAME:PATH")]
pub(crate) struct VolumeLsArgs {
    /// A directory of a volume
    #[arg(value_name = "NAME:PATH")]
    place: Option<OsString>,
    /// Only those with this label (may be given several times; all must match)
    #[arg(long = "label", value_name = "KEY=VALUE", conflicts_with = "place")]
    labels: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print names only
    #[arg(long, short)]
    quiet: bool,
}

impl TargetVerb for VolumeLsArgs {
    fn run_on(self, target: &Target) -> Outcome {
        match &self.place {
            Some(place) => self.list_files(target, &Place::parse(place)?),
            None => self.list_volumes(target),
        }
    }
}

impl VolumeLsArgs {
    fn list_volumes(self, target: &Target) -> Outcome {
        let mut volumes = match target {
            Target::Local => readable()?,
            Target::Remote(server) => server.api()?.volume_list()?,
        };
        let labels = self.labels.iter().map(|label| pair(label)).collect::<Result<Vec<_>>>()?;
        volumes.retain(|volume| {
            labels
                .iter()
                .all(|(key, value)| volume.labels.get(*key).is_some_and(|own| own == value))
        });
        if self.json {
            listing::json(&volumes);
            return Ok(0);
        }
        if self.quiet {
            volumes.iter().for_each(|volume| output::print(&volume.name));
            return Ok(0);
        }
        let mut table =
            Listing::new(&["NAME", "KIND", "SIZE", "USED", "AGE", "SANDBOXES", "LABELS"]);
        for volume in volumes {
            let labels = volume.labels.iter().map(|(key, value)| format!("{key}={value}"));
            table.row(&[
                volume.name.to_string(),
                volume.kind.to_string(),
                volume.size.map_or_else(|| "-".to_owned(), |size| Bytes(size).to_string()),
                Bytes(volume.used).to_string(),
                clock::ago(volume.created),
                volume.sandboxes.iter().map(Name::as_str).collect::<Vec<_>>().join(","),
                labels.collect::<Vec<_>>().join(","),
            ]);
        }
        table.print();
        Ok(0)
    }

    fn list_files(&self, target: &Target, place: &Place) -> Outcome {
        let entries = target.bare_api()?.file_list(&place.files(), &place.path)?;
        if self.json {
            listing::json(&entries.iter().map(Line::of).collect::<Vec<_>>());
            return Ok(0);
        }
        if self.quiet {
            for entry in &entries {
                output::print(msb_spec::shown(&String::from_utf8_lossy(&entry.name)));
            }
            return Ok(0);
        }
        let mut table = Listing::new(&["NAME", "KIND", "MODE", "SIZE", "CHANGED"]);
        for entry in &entries {
            let line = Line::of(entry);
            table.row(&[
                line.name,
                line.kind.to_owned(),
                line.mode,
                Bytes(entry.size).to_string(),
                clock::ago(u64::try_from(entry.modified).unwrap_or(0)),
            ]);
        }
        table.print();
        Ok(0)
    }
}

/// Every volume of this machine that can be read; of the others is said why not.
fn readable() -> Result<Vec<Volume>> {
    let engine = engine()?;
    let mut volumes = Vec::new();
    for name in engine.volumes().names() {
        match engine.volumes().get(&name) {
            Ok(volume) => volumes.push(volume),
            Err(error) => output::note(error),
        }
    }
    Ok(volumes)
}

/// One entry of a directory, for programs.
#[derive(Debug, Serialize)]
struct Line {
    name: String,
    kind: &'static str,
    mode: String,
    size: u64,
    /// Modification time in milliseconds since 1970.
    modified: i64,
    uid: u32,
    gid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl Line {
    fn of(entry: &Meta) -> Self {
        let (kind, target) = match &entry.kind {
            EntryKind::File => ("file", None),
            EntryKind::Directory => ("dir", None),
            EntryKind::Symlink(target) => {
                ("link", Some(String::from_utf8_lossy(target).into_owned()))
            }
            EntryKind::Other | EntryKind::End => ("other", None),
        };
        Self {
            name: String::from_utf8_lossy(&entry.name).into_owned(),
            kind,
            mode: format!("{:04o}", entry.mode),
            size: entry.size,
            modified: entry.modified,
            uid: entry.uid,
            gid: entry.gid,
            target,
        }
    }
}

/// Shows everything about volumes, as JSON.
#[derive(Debug, Parser)]
#[command(override_usage = "msb volume inspect NAME...")]
pub(crate) struct VolumeInspectArgs {
    /// Names of volumes
    #[arg(value_name = "NAME", required = true)]
    names: Vec<VolumeName>,
    /// Print JSON (always so; for symmetry with the other listings)
    #[arg(long)]
    json: bool,
}

impl TargetVerb for VolumeInspectArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let found = self.names.iter().map(|name| api.volume_inspect(name));
        match found.collect::<Result<Vec<Volume>>>()?.as_slice() {
            [one] => listing::json(one),
            several => listing::json(&several),
        }
        Ok(0)
    }
}

/// Removes volumes with all they hold. One that a sandbox uses stays.
#[derive(Debug, Parser)]
#[command(override_usage = "msb volume rm [OPTIONS] NAME...")]
pub(crate) struct VolumeRmArgs {
    /// Names of volumes
    #[arg(value_name = "NAME", required = true)]
    names: Vec<VolumeName>,
    /// Also those of sandboxes that have stopped, which then cannot start
    #[arg(long, short)]
    force: bool,
}

impl TargetVerb for VolumeRmArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let mut failed = false;
        for name in &self.names {
            match api.volume_remove(name, self.force) {
                Ok(()) => output::result("name", name),
                Err(error) => {
                    output::print_error(&error);
                    failed = true;
                }
            }
        }
        if failed { Err(Failure::Reported) } else { Ok(0) }
    }
}

/// Copies a file or tree between the host and a volume; no sandbox has to run for it.
#[derive(Debug, Parser)]
#[command(
    override_usage = "msb volume cp [OPTIONS] SRC NAME:PATH\n       msb volume cp [OPTIONS] NAME:PATH DST"
)]
pub(crate) struct VolumeCpArgs {
    /// What to copy: a path, or NAME:PATH in a volume
    #[arg(value_name = "SRC")]
    from: OsString,
    /// Where to: a path, or NAME:PATH in a volume
    #[arg(value_name = "DST")]
    to: OsString,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

impl TargetVerb for VolumeCpArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let bar = cp::bar(self.quiet);
        let mut progress = |bytes| bar.inc(bytes);
        let copied = match (End::parse(&self.from)?, End::parse(&self.to)?) {
            (End::Host(from), End::Inside(to)) => {
                let from: &Path = from.as_ref();
                match target {
                    Target::Local => {
                        let files = bare_engine()?.volumes().files(&to.volume)?;
                        files.push(from, &to.path, true, &mut progress)?
                    }
                    Target::Remote(server) => {
                        server.api()?.file_push(&to.files(), from, &to.path)?
                    }
                }
            }
            (End::Inside(from), End::Host(to)) => {
                let to: &Path = to.as_ref();
                match target {
                    Target::Local => {
                        let files = bare_engine()?.volumes().files(&from.volume)?;
                        files.pull(&from.path, to, &mut progress)?
                    }
                    Target::Remote(server) => {
                        server.api()?.file_pull(&from.files(), &from.path, to)?
                    }
                }
            }
            (End::Inside(_), End::Inside(_)) => {
                return Err(Error::unsupported("cannot copy from one volume to another")
                    .hint("`msb run -v one:/one -v other:/other -- cp -a /one/x /other` does")
                    .into());
            }
            (End::Host(_), End::Host(_)) => {
                let hint = "one side must be in a volume: `msb volume cp ./x data:/x`";
                return Err(Error::invalid("both paths are on the host").hint(hint).into());
            }
        };
        bar.finish_and_clear();
        if copied.left_out > 0 && !self.quiet {
            output::note(format!("left out {} devices, sockets or pipes", copied.left_out));
        }
        Ok(0)
    }
}

/// Writes a file of a volume to stdout.
#[derive(Debug, Parser)]
#[command(override_usage = "msb volume cat NAME:PATH")]
pub(crate) struct VolumeCatArgs {
    /// A file of a volume
    #[arg(value_name = "NAME:PATH")]
    place: OsString,
}

impl TargetVerb for VolumeCatArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let place = Place::parse(&self.place)?;
        let api = target.bare_api()?;
        // A file may hold what moves the cursor or worse; a pipe gets every byte as it is.
        let shown = std::io::stdout().is_terminal();
        api.file_read(&place.files(), &place.path, 0, None, &mut |bytes| {
            match shown {
                true => output::write_stdout(output::harmless(bytes).as_bytes()),
                false => output::write_stdout(bytes),
            }
            Ok(())
        })?;
        Ok(0)
    }
}

/// A path in a volume.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    volume: VolumeName,
    path: Vec<u8>,
}

impl Place {
    /// The volume, as Operations on files know it.
    fn files(&self) -> Files {
        Files::Volume(self.volume.clone())
    }

    /// `data:/path`; a path need not be UTF-8.
    fn parse(text: &OsStr) -> Result<Self> {
        match End::parse(text)? {
            End::Inside(place) => Ok(place),
            End::Host(_) => Err(Error::invalid(format!(
                "not a path in a volume: `{}`",
                msb_spec::shown(&text.to_string_lossy())
            ))
            .hint("write it as `data:/path`")),
        }
    }
}

/// One end of a copy.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Host(OsString),
    Inside(Place),
}

impl End {
    fn parse(text: &OsStr) -> Result<Self> {
        match cp::named(text) {
            None => Ok(Self::Host(text.to_owned())),
            Some((name, path)) => {
                Ok(Self::Inside(Place { volume: VolumeName::parse(&name)?, path }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_name_before_a_colon_is_a_volume() {
        let inside = |path: &str| {
            End::Inside(Place { volume: VolumeName::parse("data").unwrap(), path: path.into() })
        };
        assert_eq!(End::parse("data:/x/y".as_ref()).unwrap(), inside("/x/y"));
        assert_eq!(End::parse("data:".as_ref()).unwrap(), inside("/"));
        assert_eq!(End::parse("./a:b".as_ref()).unwrap(), End::Host("./a:b".into()));
        assert!(Place::parse("x".as_ref()).is_err());
        assert!(Place::parse("a b:/x".as_ref()).is_err());
        let odd = OsStr::from_bytes(b"data:/\xff");
        assert_eq!(Place::parse(odd).unwrap().path, b"/\xff");
    }
}
