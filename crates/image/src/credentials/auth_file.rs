//! Login files in the format of Docker: `auths`, `credHelpers` and `credsStore`.
//!
//! Errors name the place in the file and never its text, which may be a secret.

use super::{Credential, Login, Secret, credential_helper, key_of, registry_of};
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

/// A parsed login file; unknown fields are ignored.
pub(super) struct AuthFile {
    path: PathBuf,
    fields: AuthFields,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AuthFields {
    auths: Option<BTreeMap<String, AuthEntry>>,
    cred_helpers: Option<BTreeMap<String, String>>,
    creds_store: Option<String>,
}

/// The entry of one registry; empty if a credential helper has the secret.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct AuthEntry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

/// File name of the logins of msb.
pub(super) const OWN: &str = "auth.json";
/// File name of the lock for changes, so that concurrent logins are not lost.
const LOCK: &str = "auth.lock";

/// Largest login file that is read. It has room for thousands of logins.
const SIZE_LIMIT: u64 = 1 << 20;

/// Longest wait for the lock: a change takes milliseconds and one sync.
const LOCK_LIMIT: Duration = Duration::from_secs(10);

impl AuthFile {
    /// Reads the file of msb; none if it does not exist. Refused if others may read it.
    pub(super) fn own(home: &Path) -> Result<Option<Self>> {
        let path = home.join(OWN);
        match own_bytes(&path)? {
            Some(bytes) => Self::parse(&path, &bytes).map(Some),
            None => Ok(None),
        }
    }

    /// Reads a file of Docker or podman; none if it does not exist.
    pub(super) fn foreign(path: &Path) -> Result<Option<Self>> {
        let bytes = match File::open(path) {
            // No permission to the directory of another user: no login there.
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
        // REGISTRY_AUTH_FILE is often /dev/null.
        let empty = bytes.iter().all(u8::is_ascii_whitespace);
        let fields = if empty { AuthFields::default() } else { parse_json(path, bytes)? };
        Ok(Self { path: path.to_owned(), fields })
    }

    /// The credential helper of a registry.
    pub(super) fn program(&self, registry: &str) -> Option<&str> {
        let mut own = self.fields.cred_helpers.iter().flatten();
        let own = own.find(|(key, _)| registry_of(key).as_deref() == Some(registry));
        let program = own.map(|(_, program)| program).or(self.fields.creds_store.as_ref());
        program.map(String::as_str).filter(|program| !program.is_empty())
    }

    /// The entry of a registry in the file itself.
    pub(super) fn entry(&self, registry: &str) -> Option<&AuthEntry> {
        let auths = self.fields.auths.as_ref()?;
        let exact = auths.get(key_of(registry));
        let meant =
            |(key, _): &(&String, &AuthEntry)| registry_of(key).as_deref() == Some(registry);
        exact.or_else(|| auths.iter().find(meant).map(|(_, entry)| entry))
    }

    /// The credential in an entry; none if the entry is empty.
    pub(super) fn credential(
        &self,
        registry: &str,
        entry: &AuthEntry,
    ) -> Result<Option<Credential>> {
        let some = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        if let Some(token) = some(&entry.identitytoken) {
            return Ok(Some(Credential::IdentityToken(Secret::new(token))));
        }
        let pair = match some(&entry.auth) {
            Some(auth) => Some(decoded(&auth).ok_or_else(|| {
                Error::invalid("`auth` is not a user and a password in base64")
                    .under(format!("`{}` cannot be parsed at `{registry}`", self.path.display()))
            })?),
            None => some(&entry.username).zip(some(&entry.password)),
        };
        Ok(pair.map(|(user, secret)| Credential::Password { user, secret: Secret::new(secret) }))
    }

    /// All logins in the file.
    pub(super) fn logins(&self) -> Result<Vec<Login>> {
        let mut logins = Vec::new();
        let login = |registry: String, user, program: Option<&str>| Login {
            registry,
            user,
            program: program.map(credential_helper::full_name),
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

/// Changes `auths` in the file of msb. The file is replaced by `rename(2)` and has mode 0600.
pub(super) fn change(
    home: &Path,
    act: impl FnOnce(&mut Map<String, Value>) -> bool,
) -> Result<bool> {
    let path = home.join(OWN);
    let failed = |error| Error::host(format!("cannot write `{}`", path.display()), error);
    let _lock = locked(&home.join(LOCK))?;
    let mut whole: Map<String, Value> = match own_bytes(&path)? {
        Some(bytes) if !bytes.is_empty() => parse_json(&path, &bytes)?,
        _ => Map::new(),
    };
    let auths = whole.entry("auths").or_insert_with(|| json!({}));
    let Some(auths) = auths.as_object_mut() else {
        return Err(Error::invalid("`auths` is not a table")
            .under(format!("`{}` cannot be parsed", path.display())));
    };
    if !act(auths) {
        return Ok(false);
    }
    let text = serde_json::to_vec_pretty(&whole).expect("JSON always serialises");
    replace(&path, &text).map_err(failed)?;
    Ok(true)
}

/// Removes all entries of a registry.
pub(super) fn remove(auths: &mut Map<String, Value>, registry: &str) -> bool {
    let before = auths.len();
    auths.retain(|key, _| registry_of(key).as_deref() != Some(registry));
    auths.len() < before
}

/// Adds a user and a password in the format of Docker.
pub(super) fn add(auths: &mut Map<String, Value>, registry: &str, user: &str, secret: &Secret) {
    let auth = BASE64.encode(format!("{user}:{}", secret.reveal()));
    auths.insert(key_of(registry).to_owned(), json!({ "auth": auth }));
}

fn decoded(auth: &str) -> Option<(String, String)> {
    let pair = String::from_utf8(BASE64.decode(auth.trim()).ok()?).ok()?;
    let (user, secret) = pair.split_once(':')?;
    // Old versions of Docker wrote NUL bytes at the end.
    Some((user.to_owned(), secret.trim_end_matches('\0').to_owned()))
}

/// Content of the file of msb. Refused if others may read it.
fn own_bytes(path: &Path) -> Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if absent(&error) => return Ok(None),
        file => file.map_err(|error| unreadable(path, error))?,
    };
    let meta = file.metadata().map_err(|error| unreadable(path, error))?;
    let shown = path.display();
    let refuse = |why: String| {
        let hint = format!("`chmod 600 {shown}` makes it private, if you trust its content");
        Error::invalid(format!("refusing to use `{shown}`")).cause(why).hint(hint)
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

/// Parses JSON. The error of the parser would quote the input.
fn parse_json<'a, T: Deserialize<'a>>(path: &Path, bytes: &'a [u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        Error::invalid(format!("`{}` cannot be parsed", path.display()))
            .cause(format!("not in the format of Docker at line {}", error.line()))
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
            return Err(Error::new(Kind::Timeout, message).hint("another login may hang; stop it"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(file)
}

/// Writes a temporary file, syncs it and renames it. The lock makes the temporary name exclusive; a
/// leftover of a killed process is removed.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let temp = path.with_extension("json.new");
    let _ = fs::remove_file(&temp);
    let written = || -> io::Result<()> {
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temp)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(&temp, path)
    };
    let done = written();
    if done.is_err() {
        let _ = fs::remove_file(&temp);
        return done;
    }
    let directory = path.parent().unwrap_or(Path::new("."));
    File::open(directory).and_then(|directory| directory.sync_all())
}
