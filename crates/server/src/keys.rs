//! API keys: who may use the server, in which namespace, until when.
//!
//! A key is `msb_` and a JWT that is signed with HMAC-SHA-256 by a secret of the state directory.
//! What algorithm a key claims is never looked at: there is one. A new secret revokes every key.

use crate::namespace::Reaches;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use msb_spec::{Error, Kind, Result};
use ring::hmac;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What stands before every key.
const PREFIX: &str = "msb_";
/// The file of the state directory that holds the secret.
const FILE: &str = "server.key";
/// Bytes of a secret that we make.
const SECRET: usize = 32;
/// The shortest secret that somebody may bring: as much as a key of ours has in it.
const SHORTEST_SECRET: usize = 16;
/// The longest key that is looked at; ours have some 250 letters.
const LONGEST: usize = 4096;
/// How long a key is good where nobody says so.
pub const USUAL_EXPIRY: Duration = Duration::from_secs(24 * 3600);
/// Bytes of the id of a key.
const ID: usize = 16;

/// Makes keys and knows them again.
pub struct Keys {
    signer: hmac::Key,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

/// A key that was just made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// The key itself: the only time that it is seen.
    pub token: String,
    /// What it says.
    pub key: Key,
}

/// What a good key says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    /// Its own id, which is no secret.
    pub id: String,
    /// What it is for.
    pub reaches: Reaches,
    /// Until when it is good, in seconds since 1970.
    pub expires: u64,
}

/// Why a key is not good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// There is none.
    Missing,
    /// It is no key at all.
    Malformed,
    /// It was signed with another secret, or changed since.
    Signature,
    /// Its time is over.
    Expired,
    /// It is for another namespace.
    Namespace,
}

impl Refused {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "an API key is needed",
            Self::Malformed => "that is not an API key",
            Self::Signature => "this server does not know the API key",
            Self::Expired => "the API key has expired",
            Self::Namespace => "the API key is for another namespace",
        }
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        let error = Self::new(Kind::Denied, refused.as_str());
        match refused {
            Refused::Namespace => error.hint("leave out the namespace, or use a key for it"),
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
    /// The secret of a state directory; it is made if there is none.
    pub fn open(state: &Path) -> Result<Self> {
        let path = state.join(FILE);
        match read(&path)? {
            Some(secret) => Self::of(&secret),
            None => {
                let secret = secret()?;
                let about = |error| about_file(&path, error);
                let new = write_beside(&path, &secret)?;
                // A link is refused if somebody else was quicker; then theirs holds.
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

    /// A new secret: every key made before is refused from now on.
    pub fn reset(state: &Path) -> Result<Self> {
        let path = state.join(FILE);
        let secret = secret()?;
        let new = write_beside(&path, &secret)?;
        fs::rename(&new, &path).map_err(|error| about_file(&path, error))?;
        Self::of(&secret)
    }

    /// A secret that somebody brings.
    pub fn of(secret: &[u8]) -> Result<Self> {
        if secret.len() < SHORTEST_SECRET {
            return Err(Error::invalid("the secret of the server is too short")
                .hint(format!("it needs {SHORTEST_SECRET} bytes or more")));
        }
        Ok(Self { signer: hmac::Key::new(hmac::HMAC_SHA256, secret) })
    }

    /// Makes a key.
    pub fn keygen(&self, expire: Duration, reaches: &Reaches) -> Result<Made> {
        self.keygen_at(expire, reaches, now())
    }

    fn keygen_at(&self, expire: Duration, reaches: &Reaches, now: u64) -> Result<Made> {
        let expires = now.checked_add(expire.as_secs()).filter(|_| expire.as_secs() > 0);
        let expires = expires.ok_or_else(|| Error::invalid("a key that is never good"))?;
        let id = random::<ID>()?.iter().fold(String::new(), |mut id, byte| {
            let _ = write!(id, "{byte:02x}");
            id
        });
        let claims = Claims {
            exp: expires,
            iat: now,
            namespace: reaches.as_str().to_owned(),
            id: id.clone(),
        };
        let claims = serde_json::to_vec(&claims).map_err(|error| Error::host("a key", error))?;
        let header = URL_SAFE_NO_PAD.encode(br#"{"alg":"HS256","typ":"JWT"}"#);
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims));
        let tag = hmac::sign(&self.signer, signed.as_bytes());
        let token = format!("{PREFIX}{signed}.{}", URL_SAFE_NO_PAD.encode(tag));
        Ok(Made { token, key: Key { id, reaches: reaches.clone(), expires } })
    }

    /// What a key says, if it is good.
    pub fn verify(&self, token: &str) -> Result<Key, Refused> {
        self.verify_at(token, now())
    }

    fn verify_at(&self, token: &str, now: u64) -> Result<Key, Refused> {
        if token.is_empty() {
            return Err(Refused::Missing);
        }
        if token.len() > LONGEST {
            return Err(Refused::Malformed);
        }
        let token = token.strip_prefix(PREFIX).ok_or(Refused::Malformed)?;
        let (signed, tag) = token.rsplit_once('.').ok_or(Refused::Malformed)?;
        let (_, claims) = signed.split_once('.').ok_or(Refused::Malformed)?;
        let tag = URL_SAFE_NO_PAD.decode(tag).map_err(|_| Refused::Malformed)?;
        // In constant time, and before anything of it is read.
        hmac::verify(&self.signer, signed.as_bytes(), &tag).map_err(|_| Refused::Signature)?;
        let claims = URL_SAFE_NO_PAD.decode(claims).map_err(|_| Refused::Malformed)?;
        let claims: Claims = serde_json::from_slice(&claims).map_err(|_| Refused::Malformed)?;
        if claims.exp <= now {
            return Err(Refused::Expired);
        }
        let reaches = Reaches::parse(&claims.namespace).map_err(|_| Refused::Malformed)?;
        Ok(Key { id: claims.id, reaches, expires: claims.exp })
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn about_file(path: &Path, error: std::io::Error) -> Error {
    Error::host(format!("cannot keep the secret of the server in `{}`", path.display()), error)
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)
            .map_err(|error| Error::host("the host gives no random bytes", error))?;
    }
    Ok(bytes)
}

fn secret() -> Result<[u8; SECRET]> {
    random()
}

/// The secret that is there. Others than its owner must not be able to read it.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let nofollow = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = nofollow.bits().cast_signed();
    let mut file = match File::options().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(about_file(path, error)),
    };
    let meta = file.metadata().map_err(|error| about_file(path, error))?;
    let ours = meta.uid() == rustix::process::geteuid().as_raw();
    if !meta.is_file() || !ours || meta.mode() & 0o077 != 0 {
        let message = format!("the secret of the server is open to others: `{}`", path.display());
        return Err(Error::new(Kind::Denied, message)
            .hint("it may be known: `msb server start --reset-key` makes a new one"));
    }
    let mut secret = Vec::new();
    // One more than there may be, so that a longer one is seen.
    let read = (&mut file).take(SECRET as u64 + 1).read_to_end(&mut secret);
    read.map_err(|error| about_file(path, error))?;
    match secret.len() {
        SECRET => Ok(Some(secret)),
        _ => Err(Error::new(
            Kind::State,
            format!("that is no secret of a server: `{}`", path.display()),
        )
        .hint("`msb server start --reset-key` makes a new one")),
    }
}

/// A file of ours beside the one that is meant, with this in it.
fn write_beside(path: &Path, secret: &[u8]) -> Result<PathBuf> {
    let suffix = u64::from_ne_bytes(random()?);
    let new = path.with_extension(format!("{suffix:016x}.new"));
    let mut options = File::options();
    let opened = options.write(true).create_new(true).mode(0o600).open(&new);
    let written = opened.and_then(|mut file| file.write_all(secret).and_then(|()| file.sync_all()));
    written.map_err(|error| {
        let _ = fs::remove_file(&new);
        about_file(&new, error)
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

    fn team() -> Reaches {
        Reaches::One(Namespace::parse("team").unwrap())
    }

    /// Signed well, whatever it says.
    fn signed(keys: &Keys, header: &str, claims: &str) -> String {
        let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let signed = format!("{}.{}", encode(header), encode(claims));
        let tag = hmac::sign(&keys.signer, signed.as_bytes());
        format!("{PREFIX}{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
    }

    #[test]
    fn a_key_says_what_it_was_made_for() {
        let made = keys().keygen_at(HOUR, &team(), 1000).unwrap();
        assert!(made.token.starts_with("msb_") && made.token.len() < 300, "{}", made.token);
        assert_eq!(keys().verify_at(&made.token, 1000), Ok(made.key.clone()));
        assert_eq!(made.key.reaches, team());
        let other = keys().keygen_at(HOUR, &Reaches::All, 1000).unwrap();
        assert_ne!(other.key.id, made.key.id);
        assert_eq!(keys().verify_at(&other.token, 1000).unwrap().reaches, Reaches::All);
    }

    #[test]
    fn a_key_is_good_until_its_time_is_over() {
        let made = keys().keygen_at(HOUR, &team(), 1000).unwrap();
        assert!(keys().verify_at(&made.token, 4599).is_ok());
        assert_eq!(keys().verify_at(&made.token, 4600), Err(Refused::Expired));
        for never in [Duration::ZERO, Duration::from_secs(u64::MAX)] {
            assert!(keys().keygen_at(never, &team(), 1000).is_err());
        }
    }

    #[test]
    fn nothing_of_a_key_can_be_changed() {
        let token = keys().keygen_at(HOUR, &team(), 1000).unwrap().token;
        for at in 0..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(keys().verify_at(&changed, 1000).is_err(), "{at}");
        }
        let other = Keys::of(&[8; SECRET]).unwrap();
        assert_eq!(other.verify_at(&token, 1000), Err(Refused::Signature));
    }

    #[test]
    fn no_algorithm_of_the_header_is_believed() {
        let claims = r#"{"exp":9999999999,"iat":1,"namespace":"*","id":"x"}"#;
        for header in [r#"{"alg":"none"}"#, r#"{"alg":"RS256"}"#, "{}", ""] {
            let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
            let parts = format!("{PREFIX}{}.{}", encode(header), encode(claims));
            for tag in ["", "AAAA"] {
                let token = format!("{parts}.{tag}");
                assert_eq!(keys().verify_at(&token, 1), Err(Refused::Signature), "{token}");
            }
            assert_eq!(keys().verify_at(&parts, 1), Err(Refused::Malformed));
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let long = format!("msb_{}", "a.".repeat(LONGEST));
        for (token, why) in [
            ("", Refused::Missing),
            ("msb_", Refused::Malformed),
            ("msb_.", Refused::Malformed),
            ("msb_..", Refused::Signature),
            ("msb_a.b.!", Refused::Malformed),
            ("eyJ.eyJ.AAAA", Refused::Malformed),
            ("msb_\u{e4}.\u{e4}.AAAA", Refused::Signature),
            (&long, Refused::Malformed),
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
            assert_eq!(keys().verify_at(&token, 1), Err(Refused::Malformed), "{claims}");
        }
    }

    #[test]
    fn the_secret_is_made_once_and_a_new_one_revokes() {
        let state = std::env::temp_dir().join(format!("msb-keys-{}", std::process::id()));
        fs::create_dir_all(&state).unwrap();
        let file = state.join(FILE);
        let token = Keys::open(&state).unwrap().keygen(HOUR, &Reaches::All).unwrap().token;
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert!(Keys::open(&state).unwrap().verify(&token).is_ok());
        let new = Keys::reset(&state).unwrap();
        assert_eq!(new.verify(&token), Err(Refused::Signature));
        assert_eq!(Keys::open(&state).unwrap().verify(&token), Err(Refused::Signature));
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
