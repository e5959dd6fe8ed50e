//! `config.toml` in the state directory: defaults of sandboxes, image aliases, registries, image
//! limits, spawn policies, sandbox profiles and server limits.
//!
//! The file is parsed completely when it is read. An error names its line. A missing file means the
//! defaults; an unknown key is an error.

use msb_spec::{
    Bytes, Ceiling, Cpus, Error, Name, Reference, Result, SandboxDefaults, SpawnPolicy,
};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

/// The parsed settings file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Defaults for new sandboxes.
    pub defaults: SandboxDefaults,
    #[serde(deserialize_with = "unique_keys")]
    aliases: BTreeMap<Alias, Reference>,
    #[serde(deserialize_with = "unique_keys")]
    registries: BTreeMap<RegistryHost, RegistrySettings>,
    /// Size limits of images.
    pub image_limits: ImageLimits,
    #[serde(deserialize_with = "unique_keys")]
    spawn: BTreeMap<SpawnSubject, SpawnPolicy>,
    /// Profiles for sandboxes that are created by name alone.
    #[serde(deserialize_with = "unique_keys")]
    pub profile: BTreeMap<Name, SandboxProfile>,
    /// Settings of `msb serve`.
    pub server: ServerSettings,
}

/// Settings of `msb serve`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerSettings {
    /// Upper limits for requests of clients.
    pub ceiling: Ceiling,
}

/// Settings for the sandbox with a certain name. Unset fields keep the default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxProfile {
    /// Number of CPUs, possibly fractional.
    pub cpus: Option<Cpus>,
    /// Memory limit; in the file a number without a unit is MiB.
    pub memory: Option<Bytes>,
    /// Whether it must be a microVM.
    pub virtualization: bool,
}

/// How to connect to one registry.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RegistrySettings {
    /// Allows plain HTTP and TLS without a verified certificate.
    pub insecure: bool,
    /// PEM file with CA certificates, in addition to those of the system.
    pub ca: Option<PathBuf>,
    /// Mirrors that are tried first, in this order.
    pub mirrors: Vec<Mirror>,
    /// Whether clients of the server may use it at any address, also a private one or through a
    /// proxy. Other registries must have a public address.
    pub trusted: bool,
}

/// Size limits of images. An error names the limit by its key, as in `image_limits.bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ImageLimits {
    /// Unpacked size of all layers together. Images with a model or an SDK reach 20 GiB; a few
    /// kilobytes that unpack to more than this are an attack or a mistake.
    pub bytes: Bytes,
    /// Files, links and directories of all layers together. Ten times a large node_modules; each
    /// costs an inode and some memory, whatever its size.
    pub entries: NonZeroU64,
    /// Components of a path. Real trees stay below 50; each level costs stack or a descriptor in
    /// code that recurses.
    pub depth: NonZeroU64,
    /// Layers of an image. Docker makes no more than 127, and the kernel stacks no more than
    /// 500 in one overlay.
    pub layers: NonZeroU64,
    /// Size of a manifest or a config, which are held in memory. Registries refuse manifests
    /// larger than this.
    pub manifest: Bytes,
}

impl Default for ImageLimits {
    fn default() -> Self {
        const fn count(n: u64) -> NonZeroU64 {
            NonZeroU64::new(n).expect("not zero")
        }
        Self {
            bytes: Bytes(32 << 30),
            entries: count(1_000_000),
            depth: count(256),
            layers: count(256),
            manifest: Bytes::mib(4),
        }
    }
}

/// A mirror of a registry: `https://host` or `http://host:port`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Mirror {
    tls: bool,
    host: String,
}

impl Mirror {
    /// Parses a URL with a scheme and a host. Credentials, paths and queries are refused.
    pub fn parse(text: &str) -> Result<Self> {
        let tls = text.strip_prefix("https://").map(|rest| (true, rest));
        let found = tls.or_else(|| text.strip_prefix("http://").map(|rest| (false, rest)));
        let host = found.and_then(|(tls, rest)| {
            let host = msb_spec::registry(rest.strip_suffix('/').unwrap_or(rest)).ok()?;
            Some(Self { tls, host })
        });
        host.ok_or_else(|| {
            // The text before `@` may be a password.
            let shown = text.rsplit('@').next().unwrap_or_default();
            Error::invalid(format!("not the URL of a mirror: `{}`", msb_spec::shown(shown)))
                .hint("it looks like `https://mirror.example` or `http://127.0.0.1:5001`")
        })
    }

    /// Whether the mirror is contacted over TLS.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// The host, with a port if it is not the default.
    pub fn host(&self) -> &str {
        &self.host
    }
}

impl fmt::Display for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.host)
    }
}

impl TryFrom<String> for Mirror {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

impl std::str::FromStr for Mirror {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

/// A registry host as key of a table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct RegistryHost(String);

impl fmt::Display for RegistryHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for RegistryHost {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        msb_spec::registry(&text).map(Self).map_err(serde::de::Error::custom)
    }
}

/// An image name that stands for another one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Alias(Reference);

impl fmt::Display for Alias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Alias {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let wrong = |why: &str| serde::de::Error::custom(format!("{why}: `{text}`"));
        let name = Reference::parse(&text).map_err(serde::de::Error::custom)?;
        match name.digest() {
            _ if text == "host" => Err(wrong("the built-in image cannot be an alias")),
            Some(_) => Err(wrong("a reference with a digest cannot be an alias")),
            None => Ok(Self(name)),
        }
    }
}

/// The sandboxes that a spawn policy applies to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum SpawnSubject {
    Name(Name),
    /// Sandboxes with this label, as `label:KEY=VALUE`.
    Label(String, String),
}

impl fmt::Display for SpawnSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "{name}"),
            Self::Label(key, value) => write!(f, "label:{key}={value}"),
        }
    }
}

impl<'de> Deserialize<'de> for SpawnSubject {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        match text.strip_prefix("label:").map(|label| label.split_once('=')) {
            Some(Some((key, value))) => Ok(Self::Label(key.to_owned(), value.to_owned())),
            Some(None) => Err(serde::de::Error::custom(format!("not `label:KEY=VALUE`: `{text}`"))),
            None => Name::parse(&text).map(Self::Name).map_err(serde::de::Error::custom),
        }
    }
}

/// Adds `M` to sizes of memory and disk without a unit. Limits of images stay bytes: they are
/// measured in bytes, and a manifest has some kilobytes.
fn add_units(table: &mut toml::Table) {
    const SIZES: [&str; 3] = ["memory", "disk", "child_memory"];
    for section in ["profile", "spawn"] {
        let tables = table.get_mut(section).and_then(toml::Value::as_table_mut);
        let tables = tables.into_iter().flat_map(toml::Table::iter_mut);
        for (_, value) in tables {
            if let Some(table) = value.as_table_mut() {
                crate::plain_sizes_are_mib(table, &SIZES);
            }
        }
    }
    if let Some(defaults) = table.get_mut("defaults").and_then(toml::Value::as_table_mut) {
        crate::plain_sizes_are_mib(defaults, &SIZES);
    }
    let server = table.get_mut("server").and_then(toml::Value::as_table_mut);
    let ceiling = server.and_then(|server| server.get_mut("ceiling"));
    if let Some(ceiling) = ceiling.and_then(toml::Value::as_table_mut) {
        crate::plain_sizes_are_mib(ceiling, &SIZES);
    }
}

/// A table without equivalent keys. TOML refuses only identical keys; of `docker.io` and
/// `index.docker.io` one would silently win.
fn unique_keys<'de, D, K, V>(from: D) -> Result<BTreeMap<K, V>, D::Error>
where
    D: Deserializer<'de>,
    K: Deserialize<'de> + Ord + fmt::Display,
    V: Deserialize<'de>,
{
    struct UniqueKeys<K, V>(PhantomData<(K, V)>);
    impl<'de, K, V> Visitor<'de> for UniqueKeys<K, V>
    where
        K: Deserialize<'de> + Ord + fmt::Display,
        V: Deserialize<'de>,
    {
        type Value = BTreeMap<K, V>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((key, value)) = from.next_entry::<K, V>()? {
                if map.contains_key(&key) {
                    return Err(serde::de::Error::custom(format!("two entries mean `{key}`")));
                }
                map.insert(key, value);
            }
            Ok(map)
        }
    }
    from.deserialize_map(UniqueKeys(PhantomData))
}

/// Label of sandboxes of a namespace. The server sets it; clients cannot.
pub const NAMESPACE_LABEL: &str = "msb.namespace";

/// File name in the state directory.
pub const FILE: &str = "config.toml";

/// Largest settings file that is read.
const SIZE_LIMIT: u64 = 1 << 20;

impl Settings {
    /// Reads the settings of a state directory.
    pub fn read(home: &Path) -> Result<Self> {
        let path = home.join(FILE);
        let about = |error: Error| error.under(format!("cannot use `{}`", path.display()));
        let Some(text) = read_text(&path).map_err(about)? else {
            return Ok(Self::default());
        };
        let mut settings = Self::parse(&text).map_err(about)?;
        settings.check().map_err(about)?;
        for registry in settings.registries.values_mut() {
            registry.ca = registry.ca.take().map(|ca| home.join(ca));
        }
        Ok(settings)
    }

    /// Parses settings from TOML text.
    pub fn parse(text: &str) -> Result<Self> {
        crate::parse_toml(text, add_units).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            msb_spec::file_mistake(line, error.message())
        })
    }

    /// Checks what no single field can check.
    pub fn check(&self) -> Result<()> {
        for (subject, policy) in &self.spawn {
            policy.check().map_err(|error| error.under(format!("spawn.{subject}")))?;
        }
        self.defaults.spec().validate().map_err(|error| error.under("defaults"))
    }

    /// The spawn policy of a sandbox of a client. Clients choose their labels, so only the
    /// namespace label counts.
    pub fn client_spawn(
        &self,
        name: &Name,
        labels: &BTreeMap<String, String>,
    ) -> Option<&SpawnPolicy> {
        let namespace = labels.get_key_value(NAMESPACE_LABEL);
        let labels = namespace.map(|(key, value)| (key.clone(), value.clone())).into_iter();
        self.spawn(name, &labels.collect())
    }

    /// The spawn policy of a sandbox, by its name or else by a label.
    pub fn spawn(&self, name: &Name, labels: &BTreeMap<String, String>) -> Option<&SpawnPolicy> {
        let labelled = |subject: &SpawnSubject| match subject {
            SpawnSubject::Name(_) => false,
            SpawnSubject::Label(key, value) => labels.get(key) == Some(value),
        };
        let by_label = || self.spawn.iter().find(|(subject, _)| labelled(subject));
        let by_name = self.spawn.get_key_value(&SpawnSubject::Name(name.clone()));
        by_name.or_else(by_label).map(|(_, policy)| policy)
    }

    /// Resolves an alias, once. Other names are returned as they are.
    pub fn meant<'a>(&'a self, name: &'a Reference) -> &'a Reference {
        self.aliases.get(&Alias(name.clone())).unwrap_or(name)
    }

    /// Hosts of the registries that clients may use at any address.
    pub fn trusted_registries(&self) -> impl Iterator<Item = &str> {
        self.registries.iter().filter(|(_, it)| it.trusted).map(|(host, _)| host.0.as_str())
    }

    /// Settings of a registry, by the host of a [`Reference`].
    pub fn registry(&self, host: &str) -> RegistrySettings {
        self.registries.get(&RegistryHost(host.to_owned())).cloned().unwrap_or_default()
    }
}

/// The text of the file; none if it does not exist.
fn read_text(path: &Path) -> Result<Option<String>> {
    let mut text = String::new();
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file,
    };
    let read = file.and_then(|file| file.take(SIZE_LIMIT + 1).read_to_string(&mut text));
    match read {
        Err(error) => Err(Error::host("it cannot be read", error)),
        Ok(count) if count as u64 > SIZE_LIMIT => {
            Err(Error::invalid(format!("it is larger than {}", Bytes(SIZE_LIMIT))))
        }
        Ok(_) => Ok(Some(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = r#"
[aliases]
python = "registry.local/py:3"
"team/app:1" = "localhost:5000/app"
[registries."registry.local:5000"]
insecure = true
ca = "/etc/ssl/my-ca.pem"
mirrors = ["https://mirror.example:5000", "http://127.0.0.1:5001/"]
[registries."index.docker.io"]
mirrors = ["http://127.0.0.1:5001"]
[image_limits]
bytes = "1G"
entries = 10
depth = 11
layers = 12
manifest = 4096
"#;

    fn name(text: &str) -> Reference {
        Reference::parse(text).unwrap()
    }

    #[test]
    fn a_profile_says_what_the_sandbox_of_a_name_is() {
        let text = "[profile.heavy]\ncpus = 4\nmemory = \"2G\"\nvirtualization = true\n[profile.b]";
        let settings = Settings::parse(text).unwrap();
        let heavy = SandboxProfile {
            cpus: Some(Cpus::whole(4)),
            memory: Some(Bytes::mib(2048)),
            virtualization: true,
        };
        assert_eq!(settings.profile[&Name::parse("heavy").unwrap()], heavy);
        assert_eq!(settings.profile[&Name::parse("b").unwrap()], SandboxProfile::default());
        assert!(Settings::parse("[profile.a]\ncolour = 1").is_err());
    }

    #[test]
    fn a_size_without_a_unit_is_mebibytes() {
        let text = "[profile.a]\nmemory = 512\n[spawn.lead]\nmemory = '1024'\n\
                    [server.ceiling]\nmemory = 2048\ndisk = 4096\n";
        let settings = Settings::parse(text).unwrap();
        assert_eq!(settings.profile[&Name::parse("a").unwrap()].memory, Some(Bytes::mib(512)));
        let lead = settings.spawn(&Name::parse("lead").unwrap(), &BTreeMap::new()).unwrap();
        assert_eq!(lead.memory, Bytes::mib(1024));
        let ceiling = settings.server.ceiling;
        assert_eq!(ceiling.memory.zip(ceiling.disk), Some((Bytes::mib(2048), Bytes::mib(4096))));
        let wrong = Settings::parse("[profile.a]\ncpus = 1\nmemory = 'much'").unwrap_err();
        assert!(wrong.message().starts_with("line 3: "), "{wrong:?}");
    }

    #[test]
    fn everything_can_be_settled() {
        let settings = Settings::parse(ALL).unwrap();
        assert_eq!(settings.meant(&name("python")), &name("registry.local/py:3"));
        assert_eq!(settings.meant(&name("team/app:1")), &name("localhost:5000/app:latest"));
        for other in ["python:3", "team/app", "ghcr.io/python"] {
            assert_eq!(settings.meant(&name(other)), &name(other));
        }
        let registry = settings.registry("registry.local:5000");
        assert!(registry.insecure);
        assert_eq!(registry.ca, Some(PathBuf::from("/etc/ssl/my-ca.pem")));
        let mirrors: Vec<String> = registry.mirrors.iter().map(Mirror::to_string).collect();
        assert_eq!(mirrors, ["https://mirror.example:5000", "http://127.0.0.1:5001"]);
        assert_eq!(settings.registry("docker.io").mirrors[0].host(), "127.0.0.1:5001");
        assert_eq!(settings.registry("ghcr.io"), RegistrySettings::default());
        let limits = settings.image_limits;
        assert_eq!((limits.bytes, limits.manifest), (Bytes(1 << 30), Bytes(4096)));
        assert_eq!([limits.entries, limits.depth, limits.layers].map(u64::from), [10, 11, 12]);
    }

    #[test]
    fn what_is_not_settled_is_the_default() {
        assert_eq!(Settings::parse("").unwrap(), Settings::default());
        let settings = Settings::parse("[image_limits]\nlayers = 2\n").unwrap();
        assert_eq!(settings.image_limits.entries, ImageLimits::default().entries);
    }

    #[test]
    fn a_mistake_is_told_with_its_line() {
        for (text, expected) in [
            ("aliasses = 1", "line 1: unknown field `aliasses`"),
            ("[aliases]\npython = 'No Such'", "line 2: not the name of an image: `No Such`"),
            ("[aliases]\n'A B' = 'x'", "line 2: not the name of an image: `A B`"),
            ("[aliases]\nhost = 'x'", "line 2: the built-in image cannot be an alias: `host`"),
            ("[registries.'a/b']", "line 1: not the name of a registry: `a/b`"),
            ("[registries.'a.b']\ninsecur = true", "line 2: unknown field `insecur`"),
            ("[registries.'a.b']\ninsecure = 'yes'", "line 2: invalid type: string \"yes\""),
            ("[registries.'a.b']\nmirrors = ['ftp://x.y']", "line 2: not the URL of a mirror"),
            (
                "[registries.'docker.io']\n[registries.'index.docker.io']",
                "line 1: two entries mean `docker.io`",
            ),
            (
                "[aliases]\na = 'x'\n'a:latest' = 'y'",
                "line 1: two entries mean `docker.io/library/a:latest`",
            ),
            ("[image_limits]\nbytes = '1X'", "line 2: not an amount of bytes: `1X`"),
            ("[image_limits]\nentries = 0", "line 2: invalid value: integer `0`"),
            ("[image_limits]\n\ndepth = -1", "line 3: invalid value: integer `-1`"),
            ("\n\nx", "line 3: "),
        ] {
            let error = Settings::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_mirror_is_a_scheme_and_a_host() {
        for good in ["https://a.b", "http://localhost:1", "http://[::1]:5000"] {
            assert_eq!(Mirror::parse(good).unwrap().to_string(), good);
        }
        for bad in [
            "",
            "a.b",
            "ftp://a.b",
            "file:///etc",
            "https://",
            "https://word",
            "https://a.b/path",
            "https://a.b?x",
            "https://a.b#x",
            "https://a.b:0",
            "https://a b",
            "HTTPS://a.b",
        ] {
            assert!(Mirror::parse(bad).is_err(), "{bad:?}");
        }
        let error = Mirror::parse("https://me:hunter2@a.b").unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[test]
    fn a_file_is_found_bounded_and_named() {
        let home = std::env::temp_dir().join(format!("msb-settings-{}", std::process::id()));
        std::fs::create_dir_all(&home).unwrap();
        let write = |text: &str| std::fs::write(home.join(FILE), text).unwrap();
        assert_eq!(Settings::read(&home).unwrap(), Settings::default());
        write("[registries.'a.b']\nca = 'my.pem'\n");
        assert_eq!(Settings::read(&home).unwrap().registry("a.b").ca, Some(home.join("my.pem")));
        write("\nnonsense = 1\n");
        let error = Settings::read(&home).unwrap_err();
        let path = home.join(FILE).display().to_string();
        assert_eq!(error.message(), format!("cannot use `{path}`"));
        assert!(error.causes()[0].starts_with("line 2: unknown field"), "{error}");
        write(&"#\n".repeat(1 << 20));
        let error = Settings::read(&home).unwrap_err().to_string();
        assert!(error.ends_with("it is larger than 1M"), "{error}");
        std::fs::remove_dir_all(&home).unwrap();
    }
}
