//! Keys as people hand them over, and the host key of a sandbox.
//!
//! Text in, keys out: where they are kept is for others to know. A line with options is refused, not stripped of
//! them: whoever wrote `command=` meant it.

use msb_spec::{Error, Kind, Result};
use russh::keys::ssh_key::LineEnding;
use russh::keys::ssh_key::private::Ed25519Keypair;
use russh::keys::{Algorithm, HashAlg, PrivateKey, PublicKey};
use std::fmt;

/// The key of somebody who may log in.
#[derive(Debug, Clone)]
pub struct Key(PublicKey);

/// More text than this is not keys of people.
const TEXT_LIMIT: usize = 1 << 20;
const PRIVATE: &str = "PRIVATE KEY";
const CERTIFICATE: &str = "-cert-v01@openssh.com";

impl Key {
    /// Reads one line of an OpenSSH public key.
    pub fn parse(line: &str) -> Result<Self> {
        let line = line.trim();
        if line.contains(PRIVATE) {
            return Err(Error::invalid("that is a private key")
                .hint("give the file that ends in `.pub`; the other one is for nobody else"));
        }
        let first = line.split_whitespace().next().unwrap_or_default();
        if first.ends_with(CERTIFICATE) {
            return Err(Error::unsupported("certificates are not accepted")
                .hint("give the plain public key that it was made of"));
        }
        let plain = ["ssh-", "ecdsa-", "sk-"].iter().any(|kind| first.starts_with(kind));
        if !plain && line.split_whitespace().any(|word| word.starts_with("AAAA")) {
            return Err(Error::unsupported(format!(
                "options before a key are not supported: `{}`",
                shown(first)
            ))
            .hint("give the key without them; nothing would hold what they ask for"));
        }
        let key = PublicKey::from_openssh(line).map_err(|error| {
            Error::invalid(format!("not an SSH public key: `{}`", shown(line))).cause(error).hint(
                "give a `.pub` file, or its line, as in `ssh-ed25519 AAAA… ann@laptop`; `-` is stdin",
            )
        })?;
        match key.algorithm() {
            kind if is_in_a_token(&kind) => Err(Error::unsupported(
                "keys that live in a security key are not accepted",
            )
            .hint("nothing here could see whether it was touched; `ssh-keygen -t ed25519` makes another")),
            Algorithm::Dsa => Err(Error::unsupported("DSA keys are too weak")
                .hint("`ssh-keygen -t ed25519` makes a better one")),
            _ => Ok(Self(key)),
        }
    }

    /// Reads a file of keys, a line each; empty lines and comments are skipped.
    pub fn parse_all(text: &str) -> Result<Vec<Self>> {
        if text.len() > TEXT_LIMIT {
            return Err(Error::invalid("too long for a file of keys"));
        }
        if text.contains(PRIVATE) {
            return Self::parse(PRIVATE).map(|_| Vec::new());
        }
        text.lines().filter_map(Self::parse_line).collect()
    }

    /// Reads a line of such a file; none if there is nothing on it.
    pub fn parse_line(line: &str) -> Option<Result<Self>> {
        let line = line.trim();
        (!line.is_empty() && !line.starts_with('#')).then(|| Self::parse(line))
    }

    /// What it is known by, as `ssh-keygen -l` shows it.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.0)
    }

    /// What its owner calls it; may be empty.
    pub fn comment(&self) -> String {
        shown(self.0.comment().as_ref())
    }

    /// What kind it is.
    pub fn algorithm(&self) -> String {
        self.0.algorithm().to_string()
    }

    /// Whether both are the same key, whatever they are called.
    pub fn is(&self, other: &Self) -> bool {
        self.matches(&other.0)
    }

    pub(crate) fn matches(&self, other: &PublicKey) -> bool {
        self.0.key_data() == other.key_data()
    }
}

/// What was found where keys are kept: a line that is none takes nothing from the others.
#[derive(Debug, Default)]
pub struct Keys {
    /// Who may come in.
    pub good: Vec<Key>,
    /// What is wrong with the rest.
    pub faults: Vec<Error>,
}

impl Keys {
    /// Takes each line of a text.
    pub fn read(text: &str) -> Self {
        let mut keys = Self::default();
        for line in text.lines().filter_map(Key::parse_line) {
            match line {
                Ok(key) => keys.good.push(key),
                Err(fault) => keys.faults.push(fault),
            }
        }
        // Its lines must not be shown to anybody.
        if let (true, Err(fault)) = (text.contains(PRIVATE), Key::parse(PRIVATE)) {
            keys.faults = vec![fault];
        }
        keys
    }

    /// Adds what was found elsewhere.
    pub fn add(&mut self, others: Result<Self>) {
        match others {
            Ok(others) => {
                self.good.extend(others.good);
                self.faults.extend(others.faults);
            }
            Err(fault) => self.faults.push(fault),
        }
    }
}

/// The line of a file of keys.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut key = self.0.clone();
        key.set_comment(self.comment());
        f.write_str(key.to_openssh().unwrap_or_default().trim())
    }
}

/// The key by which a sandbox is known to those who connect.
#[derive(Debug, Clone)]
pub struct HostKey(PrivateKey);

impl HostKey {
    /// Makes a new one.
    pub fn generate() -> Result<Self> {
        let mut seed = [0; 32];
        let filled = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Error::host("cannot make a host key", error))?;
        // The kernel fills requests of up to 256 bytes whole.
        debug_assert_eq!(filled, seed.len());
        let pair = Ed25519Keypair::from_seed(&seed);
        PrivateKey::new(pair.into(), "")
            .map(Self)
            .map_err(|error| Error::new(Kind::Host, "cannot make a host key").cause(error))
    }

    /// Reads one back, as something that anybody could have written.
    pub fn parse(text: &str) -> Result<Self> {
        let key = PrivateKey::from_openssh(text).map_err(|error| {
            Error::new(Kind::State, "the host key of the sandbox cannot be read").cause(error)
        })?;
        match key.algorithm() {
            Algorithm::Ed25519 if !key.is_encrypted() => Ok(Self(key)),
            _ => Err(Error::new(Kind::State, "the host key of the sandbox is not one of ours")),
        }
    }

    /// How it is kept.
    pub fn to_text(&self) -> String {
        let text = self.0.to_openssh(LineEnding::LF).expect("an ed25519 key always serialises");
        text.as_str().to_owned()
    }

    /// What it is known by.
    pub fn fingerprint(&self) -> String {
        fingerprint(self.0.public_key())
    }

    /// The line of a known_hosts file for a host of this name.
    pub fn known_as(&self, host: &str) -> String {
        let key = self.0.public_key().to_openssh().unwrap_or_default();
        format!("{host} {}\n", key.trim())
    }

    pub(crate) fn private(&self) -> PrivateKey {
        self.0.clone()
    }
}

pub(crate) fn fingerprint(key: &PublicKey) -> String {
    key.fingerprint(HashAlg::Sha256).to_string()
}

/// Whether it is a FIDO key. What its token signs says whether somebody has touched it, and russh does not
/// show that: a program that reaches the token could log in while nobody is there.
pub(crate) fn is_in_a_token(kind: &Algorithm) -> bool {
    matches!(kind, Algorithm::SkEd25519 | Algorithm::SkEcdsaSha2NistP256)
}

/// A few words of what somebody gave, fit for a message.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO7uDvOmkLBTO9ZvAkdFOjC2nv0wEAG1r3oKAOhPkjYi ann@laptop";

    #[test]
    fn a_key_is_its_line_and_its_fingerprint() {
        let key = Key::parse(&format!("  {ANN}\n")).unwrap();
        assert_eq!(key.to_string(), ANN);
        assert_eq!(key.comment(), "ann@laptop");
        assert!(key.fingerprint().starts_with("SHA256:"), "{}", key.fingerprint());
        let all = Key::parse_all(&format!("# mine\n\n{ANN}\n")).unwrap();
        assert!(all.len() == 1 && all[0].is(&key));
        let mixed = Keys::read(&format!("command=\"x\" {ANN}\n# mine\n{ANN}\nnonsense\n"));
        assert!(mixed.good.len() == 1 && mixed.good[0].is(&key));
        assert_eq!(mixed.faults.len(), 2);
        let private = Keys::read(&format!("{ANN}\n-- BEGIN PRIVATE KEY --\nsecret\nsecrets\n"));
        assert_eq!((private.good.len(), private.faults.len()), (1, 1));
        assert!(!format!("{:?}", private.faults).contains("secret"));
    }

    #[test]
    fn what_is_no_plain_public_key_is_refused_in_words() {
        let said = |text: &str| Key::parse_all(text).unwrap_err().message().to_owned();
        assert_eq!(
            said("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n"),
            "that is a private key"
        );
        let options = said(&format!("command=\"/bin/true\",no-pty {ANN}"));
        assert!(options.starts_with("options before a key are not supported"), "{options}");
        let from = said(&format!("from=\"10.0.0.1\" {ANN}"));
        assert!(from.starts_with("options before a key are not supported"), "{from}");
        assert_eq!(
            said("ssh-ed25519-cert-v01@openssh.com AAAA x"),
            "certificates are not accepted"
        );
        let kind = "sk-ssh-ed25519@openssh.com";
        let blob = "AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4fAAAABHNzaDo=";
        assert_eq!(
            said(&format!("{kind} {blob} ann@token")),
            "keys that live in a security key are not accepted"
        );
        assert!(is_in_a_token(&kind.parse().unwrap()));
        assert!(is_in_a_token(&"sk-ecdsa-sha2-nistp256@openssh.com".parse().unwrap()));
        for nonsense in ["hello", "ssh-ed25519", "ssh-ed25519 AAAA", "ssh-rsa !!!! x"] {
            assert!(said(nonsense).starts_with("not an SSH public key"), "{nonsense}");
        }
    }

    #[test]
    fn a_host_key_reads_back() {
        let key = HostKey::generate().unwrap();
        let again = HostKey::parse(&key.to_text()).unwrap();
        assert_eq!(again.fingerprint(), key.fingerprint());
        assert_ne!(HostKey::generate().unwrap().fingerprint(), key.fingerprint());
        assert!(key.known_as("msb-box").starts_with("msb-box ssh-ed25519 AAAA"));
        assert!(HostKey::parse("nonsense").is_err());
    }
}
