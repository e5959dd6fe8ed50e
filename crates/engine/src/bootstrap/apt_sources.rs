//! Reads the release of this host and its apt sources.
//!
//! Both formats of apt are read: one-line and deb822 paragraphs. Only sources of the release itself
//! are kept, written as paragraphs; those of third parties, such as a browser, are dropped.

use msb_spec::{Error, Result, shown};
use std::fs;
use std::path::Path;

/// The distribution of this host and its apt sources.
#[derive(Debug)]
pub(super) struct HostDistro {
    id: String,
    codename: Option<String>,
    apt_sources: Vec<AptSource>,
}

/// Where the packages of an image come from.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PackageOrigin {
    /// Sources for apt, and the key files that they name.
    Sources {
        /// The sources as deb822 paragraphs.
        text: String,
        /// The paths of the key files.
        keys: Vec<String>,
    },
    /// A mirror at a URL.
    Mirror {
        /// The URL of the mirror.
        url: String,
        /// The components, separated by commas.
        components: &'static str,
    },
}

/// One package source of apt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AptSource {
    uris: Vec<String>,
    suites: Vec<String>,
    components: Vec<String>,
    /// The trust fields, with their values unchanged.
    trust: Vec<(&'static str, String)>,
}

/// The trust fields, as named in paragraphs and in one-line options.
const TRUST: [(&str, &str); 3] = [
    ("Signed-By", "signed-by"),
    ("Trusted", "trusted"),
    ("Check-Valid-Until", "check-valid-until"),
];

/// The suffixes of the suites that belong to a release.
const PARTS: [&str; 6] =
    ["", "-updates", "-security", "/updates", "-backports", "-proposed-updates"];

/// Rolling releases, which have no update suites.
const ROLLING: [&str; 3] = ["sid", "unstable", "experimental"];

impl HostDistro {
    /// Reads /etc/os-release and the sources of apt.
    pub(super) fn read() -> Self {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let mut apt_sources = one_line(&read(Path::new("/etc/apt/sources.list")));
        let entries = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten();
        let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            match path.extension().and_then(|ending| ending.to_str()) {
                Some("list") => apt_sources.extend(one_line(&read(&path))),
                Some("sources") => apt_sources.extend(paragraphs(&read(&path))),
                _ => {}
            }
        }
        Self::of(&release, apt_sources)
    }

    pub(super) fn of(release: &str, apt_sources: Vec<AptSource>) -> Self {
        let field = |name: &str| {
            let line = release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            line.map(|value| value.trim_matches('"').to_owned()).filter(|value| !value.is_empty())
        };
        // A derivative names the release of its packages.
        let codename = field("DEBIAN_CODENAME")
            .or_else(|| field("UBUNTU_CODENAME"))
            .or_else(|| field("VERSION_CODENAME"));
        let id = if field("UBUNTU_CODENAME").is_some() {
            Some("ubuntu".to_owned())
        } else {
            field("ID")
        };
        Self { id: id.unwrap_or_default(), codename, apt_sources }
    }

    /// The name of the distribution, for the image.
    pub(super) fn distribution(&self) -> &'static str {
        if self.id == "ubuntu" { "ubuntu" } else { "debian" }
    }

    /// The requested release, or that of this host.
    pub(super) fn suite(&self, asked: Option<&str>) -> Result<String> {
        let Some(suite) = asked.or(self.codename.as_deref()) else {
            return Err(Error::invalid("this host does not say which release it is")
                .hint("`--suite` names one, as in `--suite bookworm`"));
        };
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if suite.is_empty() || !suite.bytes().all(plain) || suite.starts_with('-') {
            return Err(Error::invalid(format!("not the name of a release: `{}`", shown(suite)))
                .hint("it is a word such as `bookworm`, `trixie` or `sid`"));
        }
        Ok(suite.to_owned())
    }

    /// The origin of the packages of a release.
    pub(super) fn origin(&self, suite: &str, mirror: Option<&str>) -> Result<PackageOrigin> {
        if let Some(url) = mirror {
            let components = if self.id == "ubuntu" { "main,universe" } else { "main" };
            return Ok(PackageOrigin::Mirror { url: checked(url)?.to_owned(), components });
        }
        let own = self.codename.as_deref().unwrap_or(suite);
        let found: Vec<AptSource> =
            self.apt_sources.iter().filter_map(|source| source.narrowed(own, suite)).collect();
        if found.is_empty() {
            let message = format!("apt has no source of `{suite}` on this host");
            return Err(Error::invalid(message)
                .hint("`--mirror URL` names one, as in `--mirror http://deb.debian.org/debian`"));
        }
        let text: Vec<String> = found.iter().map(AptSource::written).collect();
        let mut keys: Vec<String> = found.iter().flat_map(AptSource::keys).collect();
        keys.sort();
        keys.dedup();
        Ok(PackageOrigin::Sources { text: text.join("\n"), keys })
    }
}

impl AptSource {
    /// The suites of this source that belong to `own`, changed to `wanted`; `None` if there are
    /// none.
    fn narrowed(&self, own: &str, wanted: &str) -> Option<Self> {
        let part = |suite: &String| {
            let part = suite.strip_prefix(own)?;
            let apt = part.is_empty() || own == wanted || !ROLLING.contains(&wanted);
            (PARTS.contains(&part) && apt).then(|| format!("{wanted}{part}"))
        };
        let reachable = |uri: &&String| uri.starts_with("http://") || uri.starts_with("https://");
        let narrowed = Self {
            uris: self.uris.iter().filter(reachable).cloned().collect(),
            suites: self.suites.iter().filter_map(part).collect(),
            ..self.clone()
        };
        let some = !narrowed.uris.is_empty() && !narrowed.suites.is_empty();
        (some && self.components.iter().any(|component| component == "main")).then_some(narrowed)
    }

    fn written(&self) -> String {
        let mut text = format!(
            "Types: deb\nURIs: {}\nSuites: {}\nComponents: {}\n",
            self.uris.join(" "),
            self.suites.join(" "),
            self.components.join(" ")
        );
        for (name, value) in &self.trust {
            text.push_str(&format!("{name}: {value}\n"));
        }
        text
    }

    /// The key files. Inline keys and fingerprints are no files.
    fn keys(&self) -> Vec<String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._+-".contains(&byte);
        let signed = self.trust.iter().filter(|(name, _)| *name == "Signed-By");
        let words = signed.flat_map(|(_, value)| value.split([' ', ',', '\n']));
        words
            .filter(|word| word.starts_with('/') && word.bytes().all(plain))
            .map(str::to_owned)
            .collect()
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn checked(url: &str) -> Result<&str> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"\"'`\\<>{}|^[]@#?".contains(&byte);
    match rest {
        Some(rest) if !rest.is_empty() && rest.bytes().all(plain) => Ok(url),
        _ => {
            // The part before an `@` may be a password, which must not be shown or stored.
            let told = url.rsplit('@').next().unwrap_or_default();
            Err(Error::invalid(format!("not the address of a mirror: `{}`", shown(told)))
                .hint("it looks like `http://deb.debian.org/debian`"))
        }
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// `deb [option=value …] URI SUITE COMPONENT…`
fn one_line(text: &str) -> Vec<AptSource> {
    let source = |line: &str| {
        let line = line.split('#').next().unwrap_or_default().trim();
        let rest = line.strip_prefix("deb")?.strip_prefix([' ', '\t'])?.trim_start();
        let (options, rest) = match rest.strip_prefix('[') {
            Some(rest) => rest.split_once(']')?,
            None => ("", rest),
        };
        let mut rest = words(rest).into_iter();
        let mut source = AptSource {
            uris: vec![rest.next()?],
            suites: vec![rest.next()?],
            components: rest.collect(),
            trust: Vec::new(),
        };
        for (name, value) in options.split_whitespace().filter_map(|word| word.split_once('=')) {
            let known = TRUST.iter().find(|(_, option)| option.eq_ignore_ascii_case(name));
            source.trust.extend(known.map(|(field, _)| (*field, value.to_owned())));
        }
        Some(source)
    };
    text.lines().filter_map(source).collect()
}

/// Parses deb822 paragraphs. A line that begins with a space continues the field.
fn paragraphs(text: &str) -> Vec<AptSource> {
    let mut all: Vec<Vec<(String, String)>> = vec![Vec::new()];
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let fields = all.last_mut().expect("there is always one");
        if line.trim().is_empty() {
            all.push(Vec::new());
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push('\n');
                value.push_str(line);
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    all.iter().filter_map(|fields| paragraph(fields)).collect()
}

fn paragraph(fields: &[(String, String)]) -> Option<AptSource> {
    let field = |name: &str| {
        let found = fields.iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    };
    let off = matches!(field("Enabled"), Some("no" | "false" | "0"));
    if off || !words(field("Types")?).iter().any(|kind| kind == "deb") {
        return None;
    }
    let trust = TRUST.iter().filter_map(|(name, _)| Some((*name, field(name)?.to_owned())));
    Some(AptSource {
        uris: words(field("URIs")?),
        suites: words(field("Suites")?),
        components: words(field("Components").unwrap_or_default()),
        trust: trust.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "\
# deb http://commented.example bookworm main
deb http://deb.debian.org/debian bookworm main contrib # why
deb-src http://deb.debian.org/debian bookworm main
deb [ arch=amd64 signed-by=/usr/share/keyrings/a.gpg ] https://sec.example/debian-security bookworm-security main
deb [signed-by=/etc/apt/keyrings/docker.asc] https://download.docker.com/linux/debian bookworm stable
deb https://packages.example/apt cloud-sdk-bookworm main
deb cdrom:[Debian]/ bookworm main
deb http://flat.example ./
";

    const PARAGRAPHS: &str = "\
# where it is from
Types: deb deb-src
URIs: http://deb.debian.org/debian
# in between
Suites: bookworm bookworm-updates
 bookworm-backports
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://off.example
Suites: bookworm
Components: main
Enabled: no

Types: deb
URIs: http://inline.example
Suites: bookworm-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
 -----END PGP PUBLIC KEY BLOCK-----
";

    const BOOKWORM: &str = "ID=debian\nVERSION_CODENAME=bookworm\n";

    fn origin(apt_sources: Vec<AptSource>, suite: &str) -> (String, Vec<String>) {
        match HostDistro::of(BOOKWORM, apt_sources).origin(suite, None).unwrap() {
            PackageOrigin::Sources { text, keys } => (text, keys),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lines_of_the_release_are_kept_with_their_keys() {
        let (text, keys) = origin(one_line(LINES), "bookworm");
        assert_eq!(
            text,
            "Types: deb\nURIs: http://deb.debian.org/debian\nSuites: bookworm\nComponents: main contrib\n\n\
             Types: deb\nURIs: https://sec.example/debian-security\nSuites: bookworm-security\nComponents: main\n\
             Signed-By: /usr/share/keyrings/a.gpg\n"
        );
        assert_eq!(keys, ["/usr/share/keyrings/a.gpg"]);
    }

    #[test]
    fn paragraphs_are_kept_as_they_are() {
        let (text, keys) = origin(paragraphs(PARAGRAPHS), "bookworm");
        assert_eq!(
            text,
            "Types: deb\nURIs: http://deb.debian.org/debian\n\
             Suites: bookworm bookworm-updates bookworm-backports\nComponents: main\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n\
             Types: deb\nURIs: http://inline.example\nSuites: bookworm-security\nComponents: main\n\
             Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n -----END PGP PUBLIC KEY BLOCK-----\n"
        );
        assert_eq!(keys, ["/usr/share/keyrings/debian-archive-keyring.gpg"]);
    }

    #[test]
    fn sources_are_rewritten_for_another_suite() {
        let suites = |suite: &str| -> Vec<String> {
            let (text, _) = origin(paragraphs(PARAGRAPHS), suite);
            text.lines()
                .filter_map(|line| Some(line.strip_prefix("Suites: ")?.to_owned()))
                .collect()
        };
        assert_eq!(suites("trixie"), ["trixie trixie-updates trixie-backports", "trixie-security"]);
        assert_eq!(suites("sid"), ["sid"]);
    }

    #[test]
    fn a_missing_release_or_source_is_reported() {
        let system = HostDistro::of("ID=fedora\n", Vec::new());
        assert!(system.suite(None).unwrap_err().advice().unwrap().contains("--suite"));
        let error = system.origin("bookworm", None).unwrap_err();
        assert!(error.advice().unwrap().contains("--mirror"), "{error:?}");
        for bad in ["", "Book", "a b", "-x", "../x", "a;b"] {
            assert!(system.suite(Some(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_mirror_is_a_plain_address() {
        let system =
            HostDistro::of("ID=linuxmint\nVERSION_CODENAME=x\nUBUNTU_CODENAME=noble\n", vec![]);
        assert_eq!(system.suite(None).unwrap(), "noble");
        let url = "http://mirror.example:8080/ubuntu/".to_owned();
        let mirror = system.origin("noble", Some(&url)).unwrap();
        assert_eq!(mirror, PackageOrigin::Mirror { url, components: "main,universe" });
        for bad in ["", "deb http://x y", "file:///x", "http://", "http://a'b", "http://a b", "-x"]
        {
            assert!(system.origin("noble", Some(bad)).is_err(), "{bad:?}");
        }
        let error = system.origin("noble", Some("http://me:hunter2@a.b/")).unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
