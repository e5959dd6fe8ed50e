//! `msb ssh authorize`, `revoke` and `keys`: the keys that may log in through a port.

use crate::listing::{self, Listing};
use crate::output::{self, Outcome};
use crate::target::bare_engine;
use crate::verb_table::LocalVerb;
use clap::Parser;
use msb_engine::{Engine, SshFile, SshFiles};
use msb_spec::{Error, Kind, Name, Result, env};
use msb_ssh::Key;
use serde::Serialize;
use std::fs::File;
use std::io::{Read, stdin};
use std::path::{Path, PathBuf};

/// More than a file of keys ever has.
const TEXT_LIMIT: u64 = 1 << 20;

/// Lets the owner of a key log in where `msb ssh serve` listens.
#[derive(Debug, Parser)]
#[command(override_usage = "msb ssh authorize [OPTIONS] KEY")]
pub(crate) struct SshAuthorizeArgs {
    /// Public key: a `.pub` file, its line, or `-` for stdin
    #[arg(value_name = "KEY", required_unless_present = "my_keys")]
    key: Option<String>,
    /// Your own keys, those of `~/.ssh/*.pub`
    #[arg(long, conflicts_with = "key")]
    my_keys: bool,
    /// For this sandbox alone, instead of all
    #[arg(long = "for", value_name = "NAME")]
    sandbox: Option<String>,
}

/// Lets the owner of a key log in no more; sessions that are open go on.
#[derive(Debug, Parser)]
#[command(override_usage = "msb ssh revoke [OPTIONS] KEY")]
pub(crate) struct SshRevokeArgs {
    /// Public key as for `authorize`, its fingerprint, or its comment
    #[arg(value_name = "KEY")]
    key: String,
    /// For this sandbox alone, instead of everywhere
    #[arg(long = "for", value_name = "NAME")]
    sandbox: Option<String>,
}

/// Lists the keys that may log in.
#[derive(Debug, Parser)]
pub(crate) struct SshKeysArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    fingerprint: String,
    kind: String,
    comment: String,
    /// The sandbox that it is for; all if there is none.
    sandbox: Option<Name>,
}

impl LocalVerb for SshAuthorizeArgs {
    fn run(self) -> Outcome {
        let engine = bare_engine()?;
        let files = place(&engine, self.sandbox.as_deref())?;
        let keys = match &self.key {
            Some(key) => given(key)?,
            None => {
                let mut mine = my_keys()?;
                if let (true, Some(fault)) = (mine.good.is_empty(), mine.faults.pop()) {
                    return Err(fault.into());
                }
                mine.faults.iter().for_each(output::print_error);
                mine.good
            }
        };
        let added = files.change(SshFile::AuthorizedKeys, |old| {
            let mut known = msb_ssh::Keys::read(old).good;
            let mut lines: Vec<String> = old.lines().map(str::to_owned).collect();
            let mut added = Vec::new();
            for key in keys {
                if !known.iter().any(|other| other.is(&key)) {
                    added.push(key.fingerprint());
                    lines.push(key.to_string());
                    known.push(key);
                }
            }
            Ok((text_of(&lines), added))
        })?;
        for fingerprint in &added {
            output::result("fingerprint", fingerprint);
        }
        if added.is_empty() {
            output::note("it may log in already");
        }
        Ok(0)
    }
}

impl LocalVerb for SshRevokeArgs {
    fn run(self) -> Outcome {
        let engine = bare_engine()?;
        let places = match &self.sandbox {
            Some(_) => vec![place(&engine, self.sandbox.as_deref())?],
            None => engine.ssh_files_everywhere().into_iter().map(|(_, files)| files).collect(),
        };
        // A fingerprint or comment may look like anything, so what is there is asked first.
        let keys = given(&self.key).unwrap_or_default();
        let meant = |key: &Key| {
            key.fingerprint() == self.key
                || (!self.key.is_empty() && key.comment() == self.key)
                || keys.iter().any(|other| other.is(key))
        };
        let mut removed = Vec::new();
        for files in places {
            if files.read(SshFile::AuthorizedKeys)?.is_none() {
                continue;
            }
            removed.extend(files.change(SshFile::AuthorizedKeys, |old| {
                let (mut gone, mut stays) = (Vec::new(), Vec::new());
                // A line that is no key grants nothing; it is kept as it is.
                for line in old.lines() {
                    match Key::parse_line(line) {
                        Some(Ok(key)) if meant(&key) => gone.push(key.fingerprint()),
                        _ => stays.push(line),
                    }
                }
                Ok((text_of(&stays), gone))
            })?);
        }
        if removed.is_empty() {
            return Err(Error::new(Kind::NotFound, "no such key may log in")
                .hint("`msb ssh keys` lists those that may")
                .into());
        }
        removed.sort();
        removed.dedup();
        removed.iter().for_each(|key| output::result("fingerprint", key));
        Ok(0)
    }
}

impl LocalVerb for SshKeysArgs {
    fn run(self) -> Outcome {
        let mut rows = Vec::new();
        for (sandbox, files) in bare_engine()?.ssh_files_everywhere() {
            let keys = listed(&files)?;
            keys.faults.iter().for_each(output::print_error);
            for key in keys.good {
                rows.push(Row {
                    fingerprint: key.fingerprint(),
                    kind: key.algorithm(),
                    comment: key.comment(),
                    sandbox: sandbox.clone(),
                });
            }
        }
        if self.json {
            listing::json(&rows);
            return Ok(0);
        }
        let mut listing = Listing::new(&["FINGERPRINT", "KIND", "COMMENT", "FOR"]);
        for row in rows {
            let sandbox = row.sandbox.map_or_else(|| "all".to_owned(), |name| name.to_string());
            listing.row(&[row.fingerprint, row.kind, row.comment, sandbox]);
        }
        listing.print();
        Ok(0)
    }
}

/// The keys that may log in to a sandbox, read anew.
pub(super) fn authorized(engine: &Engine, name: &Name, mine: bool) -> msb_ssh::Keys {
    let mut keys = msb_ssh::Keys::default();
    keys.add(listed(&engine.ssh_files_of_all()));
    keys.add(engine.ssh_files(name).and_then(|files| listed(&files)));
    if mine {
        keys.add(my_keys());
    }
    keys
}

fn listed(files: &SshFiles) -> Result<msb_ssh::Keys> {
    let text = files.read(SshFile::AuthorizedKeys)?.unwrap_or_default();
    Ok(read(&text, &files.path(SshFile::AuthorizedKeys)))
}

/// The keys of a file, and where it is that something is wrong.
fn read(text: &str, path: &Path) -> msb_ssh::Keys {
    let mut keys = msb_ssh::Keys::read(text);
    let about = |fault: Error| fault.under(format!("a line of `{}` is no key", path.display()));
    keys.faults = keys.faults.into_iter().map(about).collect();
    keys
}

fn place(engine: &Engine, sandbox: Option<&str>) -> Result<SshFiles> {
    match sandbox {
        Some(name) => engine.ssh_files(&Name::parse(name)?),
        None => Ok(engine.ssh_files_of_all()),
    }
}

fn text_of(lines: &[impl std::fmt::Display]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Keys as given on the command line: a file, stdin, or a line.
fn given(key: &str) -> Result<Vec<Key>> {
    let keys = match key {
        "-" => Key::parse_all(&text(stdin().lock(), Path::new("stdin"))?)?,
        _ => match File::open(key) {
            Ok(file) => Key::parse_all(&text(file, Path::new(key))?)
                .map_err(|error| error.under(format!("cannot use the key in `{key}`")))?,
            Err(_) => vec![Key::parse(key)?],
        },
    };
    match keys.is_empty() {
        true => Err(Error::invalid("no key was given").hint("a `.pub` file has one")),
        false => Ok(keys),
    }
}

fn text(from: impl Read, path: &Path) -> Result<String> {
    let mut text = String::new();
    from.take(TEXT_LIMIT)
        .read_to_string(&mut text)
        .map_err(|error| Error::host(format!("cannot read `{}`", path.display()), error))?;
    Ok(text)
}

/// The public keys of the current user. Certificates beside them are not keys.
pub(super) fn my_keys() -> Result<msb_ssh::Keys> {
    // A relative HOME would lead below the current directory, which may belong to another user.
    let home =
        std::env::var_os(env::USER_HOME).map(PathBuf::from).filter(|home| home.is_absolute());
    let directory = home.map(|home| home.join(".ssh")).ok_or_else(|| {
        Error::invalid(format!("your keys cannot be found: `{}` is no path", env::USER_HOME))
    })?;
    let entries =
        std::fs::read_dir(&directory).into_iter().flatten().filter_map(|entry| entry.ok());
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.ends_with(".pub") && !name.ends_with("-cert.pub")
        })
        .collect();
    paths.sort();
    let mut keys = msb_ssh::Keys::default();
    for path in &paths {
        let file = File::open(path);
        let file =
            file.map_err(|error| Error::host(format!("cannot read `{}`", path.display()), error))?;
        keys.add(Ok(read(&text(file, path)?, path)));
    }
    match keys.good.is_empty() && keys.faults.is_empty() {
        true => Err(Error::new(Kind::NotFound, format!("no keys in `{}`", directory.display()))
            .hint("`ssh-keygen -t ed25519` makes one")),
        false => Ok(keys),
    }
}
