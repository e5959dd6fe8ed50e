//! Public keys of users and host keys of sandboxes, parsed from OpenSSH text.
//!
//! This module does no I/O. A line with options is refused and not stripped of them: `command=` is
//! a restriction that its author relies on.

use msb_spec::{Error, Kind, Result};
use russh::keys::ssh_key::LineEnding;
use russh::keys::ssh_key::private::Ed25519Keypair;
use russh::keys::{Algorithm, HashAlg, PrivateKey, PublicKey};
use std::fmt;

/// Public key of a user that may log in.
#[derive(Debug, Clone)]
pub struct Key(PublicKey);

/// Longest `authorized_keys` text, in bytes.
const TEXT_LIMIT: usize = 1 << 20;
const PRIVATE: &str = "PRIVATE KEY";
const CERTIFICATE: &str = "-cert-v01@openssh.com";

impl Key {
    /// Parses one line of an OpenSSH public key.
    pub fn parse(line: &str) -> Result<Self> {
        let line = line.trim();
        if line.contains(PRIVATE) {
            return Err(Error::invalid("that is a private key")
                .hint("give the file that ends in `.pub`; never share the other one"));
        }
        let first = line.split_whitespace().next().unwrap_or_default();
        if first.ends_with(CERTIFICATE) {
            return Err(Error::unsupported("certificates are not accepted")
                .hint("give the plain public key of the certificate"));
        }
        let has_type = ["ssh-", "ecdsa-", "sk-"].iter().any(|kind| first.starts_with(kind));
        if !has_type && line.split_whitespace().any(|word| word.starts_with("AAAA")) {
            return Err(Error::unsupported(format!(
                "options before a key are not supported: `{}`",
                excerpt(first)
            ))
            .hint("give the key without them; msb does not enforce them"));
        }
        let key = PublicKey::from_openssh(line).map_err(|error| {
            Error::invalid(format!("not an SSH public key: `{}`", excerpt(line))).cause(error).hint(
                "give a `.pub` file, or its line, as in `ssh-ed25519 AAAA… ann@laptop`; `-` is stdin",
            )
        })?;
        match key.algorithm() {
            kind if is_fido(&kind) => Err(Error::unsupported(
                "keys that live in a security key are not accepted",
            )
            .hint("msb cannot verify the touch; create another with `ssh-keygen -t ed25519`")),
            Algorithm::Dsa => Err(Error::unsupported("DSA keys are too weak")
                .hint("create another with `ssh-keygen -t ed25519`")),
            _ => Ok(Self(key)),
        }
    }

    /// Parses an `authorized_keys` text; empty lines and comments are skipped. Fails at the first
    /// invalid line.
    pub fn parse_all(text: &str) -> Result<Vec<Self>> {
        if text.len() > TEXT_LIMIT {
            return Err(Error::invalid("too long for a file of keys"));
        }
        if text.contains(PRIVATE) {
            return Self::parse(PRIVATE).map(|_| Vec::new());
        }
        text.lines().filter_map(Self::parse_line).collect()
    }

    /// Parses a line of such a text; `None` if it is empty or a comment.
    pub fn parse_line(line: &str) -> Option<Result<Self>> {
        let line = line.trim();
        (!line.is_empty() && !line.starts_with('#')).then(|| Self::parse(line))
    }

    /// SHA-256 fingerprint, as `ssh-keygen -l` shows it.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.0)
    }

    /// Comment of the key; may be empty.
    pub fn comment(&self) -> String {
        excerpt(self.0.comment().as_ref())
    }

    /// Name of the algorithm, such as `ssh-ed25519`.
    pub fn algorithm(&self) -> String {
        self.0.algorithm().to_string()
    }

    /// Whether both are the same key, whatever their comments.
    pub fn is(&self, other: &Self) -> bool {
        self.matches(&other.0)
    }

    pub(crate) fn matches(&self, other: &PublicKey) -> bool {
        self.0.key_data() == other.key_data()
    }
}

/// Keys of an `authorized_keys` text: an invalid line does not affect the others.
#[derive(Debug, Default)]
pub struct Keys {
    /// Keys that may log in.
    pub good: Vec<Key>,
    /// Errors of the other lines of the text.
    pub faults: Vec<Error>,
}

impl Keys {
    /// Parses each line of a text.
    pub fn read(text: &str) -> Self {
        let mut keys = Self::default();
        for line in text.lines().filter_map(Key::parse_line) {
            match line {
                Ok(key) => keys.good.push(key),
                Err(fault) => keys.faults.push(fault),
            }
        }
        // Lines of a private key must not be shown.
        if let (true, Err(fault)) = (text.contains(PRIVATE), Key::parse(PRIVATE)) {
            keys.faults = vec![fault];
        }
        keys
    }

    /// Adds the keys of another source, or its error.
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

/// A line of an `authorized_keys` file.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut key = self.0.clone();
        key.set_comment(self.comment());
        f.write_str(key.to_openssh().unwrap_or_default().trim())
    }
}

/// Private host key of a sandbox.
#[derive(Debug, Clone)]
pub struct HostKey(PrivateKey);

impl HostKey {
    /// Generates a new ed25519 key.
    pub fn generate() -> Result<Self> {
        let mut seed = [0; 32];
        let filled = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Error::host("cannot generate a host key", error))?;
        // getrandom(2) fills requests of up to 256 bytes completely.
        debug_assert_eq!(filled, seed.len());
        let pair = Ed25519Keypair::from_seed(&seed);
        PrivateKey::new(pair.into(), "")
            .map(Self)
            .map_err(|error| Error::new(Kind::Host, "cannot generate a host key").cause(error))
    }

    /// Parses a stored key; the text is not trusted.
    pub fn parse(text: &str) -> Result<Self> {
        let key = PrivateKey::from_openssh(text).map_err(|error| {
            Error::new(Kind::State, "the host key of the sandbox cannot be read").cause(error)
        })?;
        match key.algorithm() {
            Algorithm::Ed25519 if !key.is_encrypted() => Ok(Self(key)),
            _ => {
                Err(Error::new(Kind::State, "the host key of the sandbox is no plain ed25519 key"))
            }
        }
    }

    /// The private key in OpenSSH format, for storage.
    pub fn to_text(&self) -> String {
        let text = self.0.to_openssh(LineEnding::LF).expect("an ed25519 key always serialises");
        text.as_str().to_owned()
    }

    /// SHA-256 fingerprint of the public key.
    pub fn fingerprint(&self) -> String {
        fingerprint(self.0.public_key())
    }

    /// Line of a `known_hosts` file for a host of this name.
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

/// Whether it is a FIDO key. The signature says whether the token was touched, but russh does not
/// expose that: a program with access to the token could log in without its user.
pub(crate) fn is_fido(kind: &Algorithm) -> bool {
    matches!(kind, Algorithm::SkEd25519 | Algorithm::SkEcdsaSha2NistP256)
}

/// First 80 characters of a text without control characters, for a message.
fn excerpt(text: &str) -> String {
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
    fn other_texts_than_plain_public_keys_are_refused() {
        let message = |text: &str| Key::parse_all(text).unwrap_err().message().to_owned();
        assert_eq!(
            message(
                "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n"
            ),
            "that is a private key"
        );
        let options = message(&format!("command=\"/bin/true\",no-pty {ANN}"));
        assert!(options.starts_with("options before a key are not supported"), "{options}");
        let from = message(&format!("from=\"10.0.0.1\" {ANN}"));
        assert!(from.starts_with("options before a key are not supported"), "{from}");
        assert_eq!(
            message("ssh-ed25519-cert-v01@openssh.com AAAA x"),
            "certificates are not accepted"
        );
        let kind = "sk-ssh-ed25519@openssh.com";
        let blob = "AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4fAAAABHNzaDo=";
        assert_eq!(
            message(&format!("{kind} {blob} ann@token")),
            "keys that live in a security key are not accepted"
        );
        assert!(is_fido(&kind.parse().unwrap()));
        assert!(is_fido(&"sk-ecdsa-sha2-nistp256@openssh.com".parse().unwrap()));
        for nonsense in ["hello", "ssh-ed25519", "ssh-ed25519 AAAA", "ssh-rsa !!!! x"] {
            assert!(message(nonsense).starts_with("not an SSH public key"), "{nonsense}");
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
