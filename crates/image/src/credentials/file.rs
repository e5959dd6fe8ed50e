//! Files of logins in Docker's format: `auths`, `credHelpers` and `credsStore`.
//!
//! What cannot be understood is told by its place alone, because what stands there may be a
//! secret.

use super::{Credential, Login, Secret, key_of, program, registry_of};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_PAD_INDIFFERENT as BASE64;
use msb_spec::{Bytes, Error, Kind, Result};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A file of logins, as far as we understand it.
pub(super) struct AuthFile {
    path: PathBuf,
    fields: Fields,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Fields {
    auths: Option<BTreeMap<String, Entry>>,
    cred_helpers: Option<BTreeMap<String, String>>,
    creds_store: Option<String>,
}

/// What a file has for one key; nothing at all where a program keeps it.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

/// Our own file in the state directory.
pub(super) const OWN: &str = "auth.json";
/// Held while it is changed, so that of two logins at once none is lost.
const LOCK: &str = "auth.lock";

/// Thousands of logins; what is larger is something else.
const SIZE_LIMIT: u64 = 1 << 20;

/// Whoever changes the file needs a few milliseconds for it, and a flush of a slow disk.
const LOCK_LIMIT: Duration = Duration::from_secs(10);

impl AuthFile {
    /// Our own file; none if there is none. One that others may read is refused.
    pub(super) fn own(home: &Path) -> Result<Option<Self>> {
        let path = home.join(OWN);
        match own_bytes(&path)? {
            Some(bytes) => Self::parse(&path, &bytes).map(Some),
            None => Ok(None),
        }
    }

    /// A file of Docker or podman; none if there is none.
    pub(super) fn foreign(path: &Path) -> Result<Option<Self>> {
        let bytes = match File::open(path) {
            // Whoever may not enter another's directory has no login there.
            Err(error) if absent(&error) || error.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(None);
            }
            file => {
                file.and_then(|file| bounded(&file)).map_err(|error| unreadable(path, error))?
            }
        };
        Self::parse(path, &bytes).map(Some)
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        // Podman is often pointed to /dev/null.
        let empty = bytes.iter().all(u8::is_ascii_whitespace);
        let fields = if empty { Fields::default() } else { understood(path, bytes)? };
        Ok(Self { path: path.to_owned(), fields })
    }

    /// The program that keeps the credentials of a registry.
    pub(super) fn program(&self, registry: &str) -> Option<&str> {
        let mut own = self.fields.cred_helpers.iter().flatten();
        let own = own.find(|(key, _)| registry_of(key).as_deref() == Some(registry));
        let program = own.map(|(_, program)| program).or(self.fields.creds_store.as_ref());
        program.map(String::as_str).filter(|program| !program.is_empty())
    }

    /// What stands in the file itself for a registry.
    pub(super) fn entry(&self, registry: &str) -> Option<&Entry> {
        let auths = self.fields.auths.as_ref()?;
        let exact = auths.get(key_of(registry));
        let meant = |(key, _): &(&String, &Entry)| registry_of(key).as_deref() == Some(registry);
        exact.or_else(|| auths.iter().find(meant).map(|(_, entry)| entry))
    }

    /// The credential that an entry is; none if it is just a mark.
    pub(super) fn credential(&self, registry: &str, entry: &Entry) -> Result<Option<Credential>> {
        let some = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        if let Some(token) = some(&entry.identitytoken) {
            return Ok(Some(Credential::IdentityToken(Secret::new(token))));
        }
        let pair = match some(&entry.auth) {
            Some(auth) => Some(decoded(&auth).ok_or_else(|| {
                Error::invalid("its `auth` is not a user and a password in base64").under(format!(
                    "`{}` cannot be understood at `{registry}`",
                    self.path.display()
                ))
            })?),
            None => some(&entry.username).zip(some(&entry.password)),
        };
        Ok(pair.map(|(user, secret)| Credential::Password { user, secret: Secret::new(secret) }))
    }

    /// All registries that the file has something for.
    pub(super) fn logins(&self) -> Result<Vec<Login>> {
        let mut logins = Vec::new();
        let login = |registry: String, user, program: Option<&str>| Login {
            registry,
            user,
            program: program.map(program::full_name),
            file: self.path.clone(),
        };
        for (key, program) in self.fields.cred_helpers.iter().flatten() {
            if let Some(registry) = registry_of(key).filter(|_| !program.is_empty()) {
                logins.push(login(registry, None, Some(program)));
            }
        }
        for (key, entry) in self.fields.auths.iter().flatten() {
            let Some(registry) = registry_of(key) else { continue };
            let credential = self.credential(&registry, entry)?;
            let program = self.program(&registry);
            let user = match &credential {
                Some(Credential::Password { user, .. }) => Some(user.clone()),
                _ => None,
            };
            if credential.is_some() || program.is_some() {
                logins.push(login(registry, user, program));
            }
        }
        Ok(logins)
    }
}

/// Changes `auths` of our own file: nobody sees it half written, nobody else may read it.
pub(super) fn change(
    home: &Path,
    act: impl FnOnce(&mut Map<String, Value>) -> bool,
) -> Result<bool> {
    let path = home.join(OWN);
    let failed = |error| Error::host(format!("cannot write `{}`", path.display()), error);
    let _lock = locked(&home.join(LOCK))?;
    let mut whole: Map<String, Value> = match own_bytes(&path)? {
        Some(bytes) if !bytes.is_empty() => understood(&path, &bytes)?,
        _ => Map::new(),
    };
    let auths = whole.entry("auths").or_insert_with(|| json!({}));
    let Some(auths) = auths.as_object_mut() else {
        return Err(Error::invalid("its `auths` is not a table")
            .under(format!("`{}` cannot be understood", path.display())));
    };
    if !act(auths) {
        return Ok(false);
    }
    let text = serde_json::to_vec_pretty(&whole).expect("JSON always serialises");
    replace(&path, &text).map_err(failed)?;
    Ok(true)
}

/// Forgets everything that is about a registry.
pub(super) fn remove(auths: &mut Map<String, Value>, registry: &str) -> bool {
    let before = auths.len();
    auths.retain(|key, _| registry_of(key).as_deref() != Some(registry));
    auths.len() < before
}

/// Notes a user and a password as Docker does.
pub(super) fn add(auths: &mut Map<String, Value>, registry: &str, user: &str, secret: &Secret) {
    let auth = BASE64.encode(format!("{user}:{}", secret.reveal()));
    auths.insert(key_of(registry).to_owned(), json!({ "auth": auth }));
}

fn decoded(auth: &str) -> Option<(String, String)> {
    let pair = String::from_utf8(BASE64.decode(auth.trim()).ok()?).ok()?;
    let (user, secret) = pair.split_once(':')?;
    // Old versions of Docker wrote zeros behind it.
    Some((user.to_owned(), secret.trim_end_matches('\0').to_owned()))
}

/// What is in our own file, if nobody else may read it.
fn own_bytes(path: &Path) -> Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if absent(&error) => return Ok(None),
        file => file.map_err(|error| unreadable(path, error))?,
    };
    let meta = file.metadata().map_err(|error| unreadable(path, error))?;
    let shown = path.display();
    let refuse = |why: String| {
        let hint = format!("`chmod 600 {shown}` closes it, if you trust what is in it");
        Error::invalid(format!("will not use `{shown}`")).cause(why).hint(hint)
    };
    let own = rustix::process::geteuid().as_raw();
    if meta.uid() != own {
        return Err(refuse(format!("it belongs to user {}, not to {own}", meta.uid())));
    }
    if meta.mode() & 0o077 != 0 {
        return Err(refuse(format!("others may read it (mode {:o})", meta.mode() & 0o777)));
    }
    bounded(&file).map(Some).map_err(|error| unreadable(path, error))
}

fn absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn bounded(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(SIZE_LIMIT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > SIZE_LIMIT {
        let message = format!("it is larger than {}", Bytes(SIZE_LIMIT));
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

fn unreadable(path: &Path, error: io::Error) -> Error {
    Error::host(format!("cannot read `{}`", path.display()), error)
}

/// The parser's own words would quote what it found.
fn understood<'a, T: Deserialize<'a>>(path: &Path, bytes: &'a [u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        Error::invalid(format!("`{}` cannot be understood", path.display()))
            .cause(format!("not as Docker writes it at line {}", error.line()))
    })
}

fn locked(path: &Path) -> Result<File> {
    let about = |error| Error::host(format!("cannot lock `{}`", path.display()), error);
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = file.map_err(about)?;
    let begun = Instant::now();
    while !msb_sys::lock::try_lock(&file).map_err(about)? {
        if begun.elapsed() > LOCK_LIMIT {
            let message = format!("`{}` was locked for {LOCK_LIMIT:?}", path.display());
            return Err(Error::new(Kind::Timeout, message).hint("another login may hang; end it"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(file)
}

/// Writes a file aside and puts it in place once it is on the disk. The lock is held, so the
/// name aside is ours; what a killed one left there goes.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let aside = path.with_extension("json.new");
    let _ = fs::remove_file(&aside);
    let written = || -> io::Result<()> {
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&aside)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(&aside, path)
    };
    let done = written();
    if done.is_err() {
        let _ = fs::remove_file(&aside);
        return done;
    }
    let directory = path.parent().unwrap_or(Path::new("."));
    File::open(directory).and_then(|directory| directory.sync_all())
}
