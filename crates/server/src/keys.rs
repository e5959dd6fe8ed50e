//! API keys: which namespace a client may use, and until when.
//!
//! A key is `msb_` followed by a JWT. It is signed with HMAC-SHA-256 by a secret in the state
//! directory. The algorithm that a key claims is ignored: there is only one. A new secret revokes
//! every key.

use crate::namespace::Scope;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use msb_spec::clock::now_seconds as now;
use msb_spec::encoding::hex;
use msb_spec::{Error, Kind, Result};
use ring::hmac;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Every key starts with this.
const PREFIX: &str = "msb_";
/// File name of the signing secret in the state directory.
const FILE: &str = "server.key";
/// Bytes of a generated secret.
const SECRET: usize = 32;
/// Fewest bytes of a secret that the caller supplies: as many as the id of a key has.
const SHORTEST_SECRET: usize = 16;
/// Longest key in bytes that is parsed; ours have about 250.
const LONGEST: usize = 4096;
/// How long a key is valid by default.
pub const USUAL_EXPIRY: Duration = Duration::from_secs(24 * 3600);
/// Bytes of a key's id.
const ID: usize = 16;

/// Creates and verifies API keys.
pub struct Keys {
    signer: hmac::Key,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

/// A key that was just created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// The key itself. It is shown only once.
    pub token: String,
    /// What the key grants.
    pub key: ApiKey,
}

/// The claims of a valid key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ApiKey {
    /// The id of the key, which is not secret.
    pub id: String,
    /// The namespaces that it grants.
    pub scope: Scope,
    /// When it expires, in seconds since 1970.
    pub expires: u64,
}

/// Why a key is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyError {
    /// The request has no key.
    Missing,
    /// The text is not an API key.
    FrameError,
    /// The signature does not match: another secret, or the key was changed.
    Signature,
    /// The key has expired.
    Expired,
    /// The key is for another namespace.
    Namespace,
}

impl KeyError {
    /// The reason, as the client reads it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "an API key is needed",
            Self::FrameError => "that is not an API key",
            Self::Signature => "the API key was not issued by this server",
            Self::Expired => "the API key has expired",
            Self::Namespace => "the API key is for another namespace",
        }
    }
}

impl From<KeyError> for Error {
    fn from(refused: KeyError) -> Self {
        let error = Self::new(Kind::Denied, refused.as_str());
        match refused {
            KeyError::Namespace => error.hint("leave out the namespace, or use a key for it"),
            _ => {
                error.hint("`msb server keygen` makes one; send it as `Authorization: Bearer KEY`")
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Claims {
    exp: u64,
    iat: u64,
    namespace: String,
    id: String,
}

impl Keys {
    /// Reads the secret of a state directory, or creates it.
    pub fn open(state: &Path) -> Result<Self> {
        let path = state.join(FILE);
        match read(&path)? {
            Some(secret) => Self::of(&secret),
            None => {
                let secret = secret()?;
                let about = |error| secret_file_error(&path, error);
                let new = write_beside(&path, &secret)?;
                // link(2) fails if another process has created the file meanwhile; its secret is
                // used then.
                let linked = fs::hard_link(&new, &path);
                let _ = fs::remove_file(&new);
                match linked {
                    Ok(()) => Self::of(&secret),
                    Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                        let theirs = read(&path)?;
                        Self::of(&theirs.ok_or_else(|| about(error))?)
                    }
                    Err(error) => Err(about(error)),
                }
            }
        }
    }

    /// Replaces the secret; every key created before is rejected from now on.
    pub fn reset(state: &Path) -> Result<Self> {
        let path = state.join(FILE);
        let secret = secret()?;
        let new = write_beside(&path, &secret)?;
        fs::rename(&new, &path).map_err(|error| secret_file_error(&path, error))?;
        Self::of(&secret)
    }

    /// Uses a secret that the caller supplies; 16 bytes or more.
    pub fn of(secret: &[u8]) -> Result<Self> {
        if secret.len() < SHORTEST_SECRET {
            return Err(Error::invalid("the secret of the server is too short")
                .hint(format!("it needs {SHORTEST_SECRET} bytes or more")));
        }
        Ok(Self { signer: hmac::Key::new(hmac::HMAC_SHA256, secret) })
    }

    /// Creates a key that is valid for `expire`, which must be a second or more.
    pub fn keygen(&self, expire: Duration, scope: &Scope) -> Result<NewKey> {
        self.keygen_at(expire, scope, now())
    }

    fn keygen_at(&self, expire: Duration, scope: &Scope, now: u64) -> Result<NewKey> {
        let expires = now.checked_add(expire.as_secs()).filter(|_| expire.as_secs() > 0);
        let expires = expires
            .ok_or_else(|| Error::invalid("an API key must be valid for at least one second"))?;
        let id = hex(random::<ID>()?);
        let claims =
            Claims { exp: expires, iat: now, namespace: scope.as_str().to_owned(), id: id.clone() };
        let claims = serde_json::to_vec(&claims)
            .map_err(|error| Error::host("cannot encode the API key", error))?;
        let header = URL_SAFE_NO_PAD.encode(br#"{"alg":"HS256","typ":"JWT"}"#);
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims));
        let tag = hmac::sign(&self.signer, signed.as_bytes());
        let token = format!("{PREFIX}{signed}.{}", URL_SAFE_NO_PAD.encode(tag));
        Ok(NewKey { token, key: ApiKey { id, scope: scope.clone(), expires } })
    }

    /// The claims of a key, if it is valid now.
    pub fn verify(&self, token: &str) -> Result<ApiKey, KeyError> {
        self.verify_at(token, now())
    }

    fn verify_at(&self, token: &str, now: u64) -> Result<ApiKey, KeyError> {
        if token.is_empty() {
            return Err(KeyError::Missing);
        }
        if token.len() > LONGEST {
            return Err(KeyError::FrameError);
        }
        let token = token.strip_prefix(PREFIX).ok_or(KeyError::FrameError)?;
        let (signed, tag) = token.rsplit_once('.').ok_or(KeyError::FrameError)?;
        let (_, claims) = signed.split_once('.').ok_or(KeyError::FrameError)?;
        let tag = URL_SAFE_NO_PAD.decode(tag).map_err(|_| KeyError::FrameError)?;
        // In constant time, and before any part of the key is parsed.
        hmac::verify(&self.signer, signed.as_bytes(), &tag).map_err(|_| KeyError::Signature)?;
        let claims = URL_SAFE_NO_PAD.decode(claims).map_err(|_| KeyError::FrameError)?;
        let claims: Claims = serde_json::from_slice(&claims).map_err(|_| KeyError::FrameError)?;
        if claims.exp <= now {
            return Err(KeyError::Expired);
        }
        let scope = Scope::parse(&claims.namespace).map_err(|_| KeyError::FrameError)?;
        Ok(ApiKey { id: claims.id, scope, expires: claims.exp })
    }
}

fn secret_file_error(path: &Path, error: std::io::Error) -> Error {
    Error::host(format!("cannot access the signing secret `{}`", path.display()), error)
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)
            .map_err(|error| Error::host("cannot read random bytes from the host", error))?;
    }
    Ok(bytes)
}

fn secret() -> Result<[u8; SECRET]> {
    random()
}

/// The secret in the file; none if there is no file. Only the owner may be able to read it.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let nofollow = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = nofollow.bits().cast_signed();
    let mut file = match File::options().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(secret_file_error(path, error)),
    };
    let meta = file.metadata().map_err(|error| secret_file_error(path, error))?;
    let ours = meta.uid() == rustix::process::geteuid().as_raw();
    if !meta.is_file() || !ours || meta.mode() & 0o077 != 0 {
        let message = format!("other users can read the signing secret: `{}`", path.display());
        return Err(Error::new(Kind::Denied, message)
            .hint("it may have leaked: `msb server start --reset-key` replaces it"));
    }
    let mut secret = Vec::new();
    // Reads one byte more than allowed, so that a longer file is noticed.
    let read = (&mut file).take(SECRET as u64 + 1).read_to_end(&mut secret);
    read.map_err(|error| secret_file_error(path, error))?;
    match secret.len() {
        SECRET => Ok(Some(secret)),
        _ => Err(Error::new(Kind::State, format!("not a signing secret: `{}`", path.display()))
            .hint("`msb server start --reset-key` replaces it")),
    }
}

/// Writes the secret to a new temporary file in the same directory.
fn write_beside(path: &Path, secret: &[u8]) -> Result<PathBuf> {
    let suffix = u64::from_ne_bytes(random()?);
    let new = path.with_extension(format!("{suffix:016x}.new"));
    let mut options = File::options();
    let opened = options.write(true).create_new(true).mode(0o600).open(&new);
    let written = opened.and_then(|mut file| file.write_all(secret).and_then(|()| file.sync_all()));
    written.map_err(|error| {
        let _ = fs::remove_file(&new);
        secret_file_error(&new, error)
    })?;
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::Namespace;
    use std::os::unix::fs::{PermissionsExt, symlink};

    const HOUR: Duration = Duration::from_secs(3600);

    fn keys() -> Keys {
        Keys::of(&[7; SECRET]).unwrap()
    }

    fn team() -> Scope {
        Scope::One(Namespace::parse("team").unwrap())
    }

    /// A correctly signed token with any claims.
    fn signed(keys: &Keys, header: &str, claims: &str) -> String {
        let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let signed = format!("{}.{}", encode(header), encode(claims));
        let tag = hmac::sign(&keys.signer, signed.as_bytes());
        format!("{PREFIX}{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
    }

    #[test]
    fn a_key_carries_its_scope_and_expiry() {
        let new_key = keys().keygen_at(HOUR, &team(), 1000).unwrap();
        assert!(
            new_key.token.starts_with("msb_") && new_key.token.len() < 300,
            "{}",
            new_key.token
        );
        assert_eq!(keys().verify_at(&new_key.token, 1000), Ok(new_key.key.clone()));
        assert_eq!(new_key.key.scope, team());
        let other = keys().keygen_at(HOUR, &Scope::All, 1000).unwrap();
        assert_ne!(other.key.id, new_key.key.id);
        assert_eq!(keys().verify_at(&other.token, 1000).unwrap().scope, Scope::All);
    }

    #[test]
    fn a_key_is_valid_until_it_expires() {
        let new_key = keys().keygen_at(HOUR, &team(), 1000).unwrap();
        assert!(keys().verify_at(&new_key.token, 4599).is_ok());
        assert_eq!(keys().verify_at(&new_key.token, 4600), Err(KeyError::Expired));
        for never in [Duration::ZERO, Duration::from_secs(u64::MAX)] {
            assert!(keys().keygen_at(never, &team(), 1000).is_err());
        }
    }

    #[test]
    fn no_part_of_a_key_can_be_changed() {
        let token = keys().keygen_at(HOUR, &team(), 1000).unwrap().token;
        for at in 0..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(keys().verify_at(&changed, 1000).is_err(), "{at}");
        }
        let other = Keys::of(&[8; SECRET]).unwrap();
        assert_eq!(other.verify_at(&token, 1000), Err(KeyError::Signature));
    }

    #[test]
    fn the_algorithm_of_the_header_is_ignored() {
        let claims = r#"{"exp":9999999999,"iat":1,"namespace":"*","id":"x"}"#;
        for header in [r#"{"alg":"none"}"#, r#"{"alg":"RS256"}"#, "{}", ""] {
            let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
            let parts = format!("{PREFIX}{}.{}", encode(header), encode(claims));
            for tag in ["", "AAAA"] {
                let token = format!("{parts}.{tag}");
                assert_eq!(keys().verify_at(&token, 1), Err(KeyError::Signature), "{token}");
            }
            assert_eq!(keys().verify_at(&parts, 1), Err(KeyError::FrameError));
        }
    }

    #[test]
    fn invalid_keys_are_rejected() {
        let long = format!("msb_{}", "a.".repeat(LONGEST));
        for (token, why) in [
            ("", KeyError::Missing),
            ("msb_", KeyError::FrameError),
            ("msb_.", KeyError::FrameError),
            ("msb_..", KeyError::Signature),
            ("msb_a.b.!", KeyError::FrameError),
            ("eyJ.eyJ.AAAA", KeyError::FrameError),
            ("msb_\u{e4}.\u{e4}.AAAA", KeyError::Signature),
            (&long, KeyError::FrameError),
        ] {
            assert_eq!(keys().verify_at(token, 1), Err(why), "{token}");
        }
        for claims in [
            "{}",
            "[]",
            r#"{"exp":9999999999,"iat":1,"id":"x"}"#,
            r#"{"exp":"9999999999","iat":1,"namespace":"*","id":"x"}"#,
            r#"{"exp":9999999999,"iat":1,"namespace":"a--b","id":"x"}"#,
            r#"{"exp":-1,"iat":1,"namespace":"*","id":"x"}"#,
        ] {
            let token = signed(&keys(), "{}", claims);
            assert_eq!(keys().verify_at(&token, 1), Err(KeyError::FrameError), "{claims}");
        }
    }

    #[test]
    fn the_secret_is_created_once_and_a_reset_revokes_keys() {
        let state = std::env::temp_dir().join(format!("msb-keys-{}", std::process::id()));
        fs::create_dir_all(&state).unwrap();
        let file = state.join(FILE);
        let token = Keys::open(&state).unwrap().keygen(HOUR, &Scope::All).unwrap().token;
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert!(Keys::open(&state).unwrap().verify(&token).is_ok());
        let new = Keys::reset(&state).unwrap();
        assert_eq!(new.verify(&token), Err(KeyError::Signature));
        assert_eq!(Keys::open(&state).unwrap().verify(&token), Err(KeyError::Signature));
        assert_eq!(fs::read_dir(&state).unwrap().count(), 1, "nothing is left behind");

        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(Keys::open(&state).unwrap_err().kind(), Kind::Denied);
        fs::remove_file(&file).unwrap();
        symlink("/etc/hostname", &file).unwrap();
        assert!(Keys::open(&state).is_err());
        fs::remove_file(&file).unwrap();
        fs::write(&file, "short").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(Keys::open(&state).unwrap_err().kind(), Kind::State);
        assert!(Keys::reset(&state).is_ok());
        fs::remove_dir_all(state).unwrap();
    }

    #[test]
    fn a_short_secret_is_refused() {
        assert!(Keys::of(b"secret").is_err());
        assert!(Keys::of(&[1; SHORTEST_SECRET]).is_ok());
    }
}
