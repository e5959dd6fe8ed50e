//! Defaults for new sandboxes: `[defaults]` of config.toml, and the variables that override it.

use crate::{Bytes, Cpus, ImageRef, IsolationChoice, NetworkSpec, Reach, Result, Spec};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// What a new sandbox gets where neither a flag nor a file says otherwise. Fields that are not set
/// keep the defaults of msb.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxDefaults {
    /// The isolation tier of new sandboxes.
    pub isolation: Option<IsolationChoice>,
    /// Limit of the memory; a number without a unit is MiB.
    #[serde(deserialize_with = "memory")]
    pub memory: Option<Bytes>,
    /// Limit of the CPUs, such as `0.5`.
    pub cpus: Option<Cpus>,
    /// How far the network reaches.
    pub network: Option<Reach>,
    /// Image to start from: a name, `host`, `snapshot:NAME` or an absolute path.
    #[serde(deserialize_with = "image")]
    pub image: Option<ImageRef>,
    /// Whether CA certificates of the host are trusted inside.
    #[serde(alias = "trust-host-cas")]
    pub trust_host_cas: Option<bool>,
}

impl SandboxDefaults {
    /// The defaults after the values of `MSB_ISOLATION` and `MSB_NET`, which win over the file.
    pub fn with_variables(self, isolation: Option<&str>, network: Option<&str>) -> Result<Self> {
        Ok(Self {
            isolation: isolation.map(str::parse).transpose()?.or(self.isolation),
            network: network.map(str::parse).transpose()?.or(self.network),
            ..self
        })
    }

    /// A Spec with these defaults, without a network.
    pub fn spec(&self) -> Spec {
        let mut spec = Spec::with_defaults();
        self.fill(&mut spec, |_| false);
        spec
    }

    /// Fills in the fields of a Spec that its file does not set.
    pub fn fill(&self, spec: &mut Spec, is_set: impl Fn(&str) -> bool) {
        if let Some(isolation) = self.isolation.filter(|_| !is_set("isolation")) {
            spec.isolation = isolation;
        }
        if let Some(image) = self.image.as_ref().filter(|_| !is_set("image")) {
            spec.image.clone_from(image);
        }
        spec.memory = spec.memory.or(self.memory);
        spec.cpus = spec.cpus.or(self.cpus);
        if let Some(network) = spec.network.as_mut().filter(|_| !is_set("network.trust_host_cas")) {
            network.trust_host_cas = self.trust_host_cas.unwrap_or(network.trust_host_cas);
        }
    }

    /// The network of a sandbox about which nothing was said yet.
    pub fn network_base(&self) -> NetworkSpec {
        let trust_host_cas = self.trust_host_cas.unwrap_or(false);
        NetworkSpec { trust_host_cas, ..NetworkSpec::default() }
    }

    /// Sets the reach, unless the network has settings of its own. Without a network there is no
    /// use for CA certificates of the host; they are left out unless `trusts` asks for them.
    pub fn network(&self, network: NetworkSpec, trusts: bool) -> Result<NetworkSpec> {
        let mut network = network.or_usual(self.network.map(Reach::as_str))?;
        network.trust_host_cas &= trusts || network.is_wanted();
        Ok(network)
    }
}

/// A size as users write it: a number without a unit is MiB.
fn memory<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<Bytes>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Mebibytes(f64),
        Text(String),
    }
    let text = match Size::deserialize(from)? {
        Size::Mebibytes(number) => format!("{number}M"),
        Size::Text(text) if text.trim().ends_with(|c: char| c.is_ascii_digit()) => {
            format!("{}M", text.trim())
        }
        Size::Text(text) => text,
    };
    Bytes::parse(&text).map(Some).map_err(D::Error::custom)
}

/// An image that means the same in every directory.
fn image<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<ImageRef>, D::Error> {
    match ImageRef::deserialize(from)? {
        ImageRef::Path(path) if path.is_relative() => Err(D::Error::custom(format!(
            "the path of a default image has to be absolute: `{}`",
            path.display()
        ))),
        image => Ok(Some(image)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> std::result::Result<SandboxDefaults, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn a_spec_has_the_defaults_that_its_file_leaves_open() {
        let defaults =
            parse(r#"{"isolation": "process", "memory": 512, "image": "alpine", "cpus": 2}"#);
        let defaults = defaults.unwrap();
        let spec = defaults.spec();
        assert_eq!(spec.isolation, IsolationChoice::Process);
        assert_eq!(spec.memory, Some(Bytes::mib(512)));
        assert_eq!(spec.image, ImageRef::parse("alpine").unwrap());
        let mut given = Spec { memory: Some(Bytes::mib(1)), ..Spec::with_defaults() };
        defaults.fill(&mut given, |field| matches!(field, "image" | "isolation"));
        assert_eq!((given.image, given.isolation), (ImageRef::Host, IsolationChoice::Auto));
        assert_eq!((given.memory, given.cpus), (Some(Bytes::mib(1)), Some(Cpus::whole(2))));
    }

    #[test]
    fn variables_win_over_the_file() {
        let defaults = parse(r#"{"isolation": "vm", "network": "none"}"#).unwrap();
        let defaults = defaults.with_variables(Some("process"), Some("private")).unwrap();
        assert_eq!(defaults.isolation, Some(IsolationChoice::Process));
        assert_eq!(defaults.network, Some(Reach::Private));
        assert!(defaults.with_variables(Some("jail"), None).is_err());
    }

    #[test]
    fn host_cas_are_trusted_where_there_is_a_network() {
        let defaults = parse(r#"{"trust-host-cas": true}"#).unwrap();
        let base = defaults.network_base();
        assert!(defaults.network(base.clone(), false).unwrap().trust_host_cas);
        let none = NetworkSpec { reach: Some(Reach::None), ..base };
        assert!(!defaults.network(none.clone(), false).unwrap().trust_host_cas);
        assert!(defaults.network(none, true).unwrap().trust_host_cas);
    }

    #[test]
    fn mistakes_are_refused() {
        assert_eq!(parse(r#"{"memory": "64"}"#).unwrap().memory, Some(Bytes::mib(64)));
        for bad in [
            r#"{"memory": "1x"}"#,
            r#"{"cpus": 0}"#,
            r#"{"network": "some"}"#,
            r#"{"image": "./rootfs"}"#,
            r#"{"memroy": 1}"#,
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
