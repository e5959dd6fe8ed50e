//! What the one who starts this dialect decides, read once.

use crate::paths::HostPaths;
use msb_spec::{Error, NamePattern, Result, Secret, SecretSource, env};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// What the one who starts the microsandbox dialect decides.
///
/// **Dangerous operations** are what a client must not be able to do by itself, even if it confirms
/// it: naming any path of the host (`unrestricted` has no effect without them), forcing every sandbox
/// to stop or to go with a selector that names none and has no labels, and, where clients show keys,
/// having the variables of `secret_env` as Secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The directories of the host that clients may name; none if nothing was said.
    pub host_paths: Option<Vec<PathBuf>>,
    /// Whether they may name any. Only with `dangerous`.
    pub unrestricted: bool,
    /// Whether dangerous operations are allowed.
    pub dangerous: bool,
    /// Variables of the server's own environment that clients may use as Secrets, each for its hosts
    /// only (`--secret-env NAME@HOST`). Empty by default: a client reads no variable.
    pub secret_env: Vec<Secret>,
    /// Bytes of a stream, file or line in an answer, where the call does not say.
    pub max_output: usize,
    /// How long a call waits for a command or for a sandbox, where it does not say.
    pub default_timeout: Duration,
    /// After how long without a poll and without output a command is forgotten.
    pub session_ttl: Duration,
    /// Whether `snapshot_export` and `snapshot_import` are there as well.
    pub older_names: bool,
    /// The executable, to tell clients.
    pub program: Option<PathBuf>,
    /// The kernel of microVMs, to tell clients.
    pub kernel: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            host_paths: None,
            unrestricted: false,
            dangerous: false,
            secret_env: Vec::new(),
            max_output: 1 << 20,
            default_timeout: Duration::from_secs(120),
            session_ttl: Duration::from_secs(900),
            older_names: false,
            program: None,
            kernel: None,
        }
    }
}

impl Settings {
    /// Reads them from variables, which are asked for one by one.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let usual = Self::default();
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let number = |name: &str| match set(name) {
            None => Ok(None),
            Some(text) => match text.trim().parse::<u64>() {
                Ok(number @ 1..) => Ok(Some(number)),
                _ => Err(Error::invalid(format!("{name} is not a number above zero: `{text}`"))),
            },
        };
        let switch = |name: &str| match set(name).as_deref().map(str::trim) {
            None | Some("0" | "false") => Ok(false),
            Some("1" | "true") => Ok(true),
            Some(other) => Err(Error::invalid(format!("{name} is neither 0 nor 1: `{other}`"))),
        };
        let policy = set(env::MCP_HOST_PATH_POLICY);
        let unrestricted = match policy.as_deref().map(str::trim) {
            None | Some("allowlist") => false,
            Some("unrestricted") => true,
            Some(other) => {
                let message = format!("no such {}: `{other}`", env::MCP_HOST_PATH_POLICY);
                return Err(Error::invalid(message).hint("it is `allowlist` or `unrestricted`"));
            }
        };
        let host_paths = set(env::MCP_HOST_PATHS).map(|list| {
            list.split(':').map(str::trim).filter(|it| !it.is_empty()).map(PathBuf::from).collect()
        });
        let milliseconds = |name: &str| number(name).map(|ms| ms.map(Duration::from_millis));
        let max_output = number(env::MCP_MAX_OUTPUT_BYTES)?;
        Ok(Self {
            host_paths,
            unrestricted,
            dangerous: switch(env::MCP_ENABLE_DANGEROUS)?,
            // A setting of the command line alone: files that start servers are not all ours.
            secret_env: Vec::new(),
            max_output: max_output.map_or(usual.max_output, bounded),
            default_timeout: milliseconds(env::MCP_DEFAULT_TIMEOUT_MS)?
                .unwrap_or(usual.default_timeout),
            session_ttl: milliseconds(env::MCP_SESSION_TTL_MS)?.unwrap_or(usual.session_ttl),
            older_names: switch(env::MCP_OLDER_NAMES)?,
            program: None,
            kernel: None,
        })
    }

    /// The files of the host that clients may name; none if nothing was said about them.
    pub fn paths(&self) -> Option<HostPaths> {
        if self.is_unrestricted() {
            return Some(HostPaths::unrestricted());
        }
        let listed = self.host_paths.clone();
        listed.map(|listed| HostPaths::below(listed, env::MCP_HOST_PATHS))
    }

    /// A variable as the source of a Secret, if the operator listed it for this host.
    pub(super) fn granted(&self, variable: &str, host: &NamePattern) -> Option<SecretSource> {
        let covers = |own: &NamePattern| match host {
            NamePattern::Exactly(name) => own.matches(name),
            NamePattern::Below(_) => own == host,
        };
        let mut listed = self.secret_env.iter();
        let listed = listed.find(|it| it.name == variable && it.hosts.iter().any(covers))?;
        Some(listed.source.clone())
    }

    /// How many bytes of something an answer holds.
    pub(super) fn limit(&self, asked: Option<u64>) -> usize {
        asked.map_or(self.max_output, bounded)
    }

    pub(super) fn is_unrestricted(&self) -> bool {
        self.unrestricted && self.dangerous
    }

    /// As clients are told.
    pub(super) fn told(&self, paths: &HostPaths) -> Value {
        let roots = paths.roots().unwrap_or_default();
        let roots: Vec<String> = roots.iter().map(|root| root.display().to_string()).collect();
        json!({
            "hostPathPolicy": if paths.roots().is_some() { "allowlist" } else { "unrestricted" },
            "hostPaths": roots,
            "dangerousEnabled": self.dangerous,
            "maxOutputBytes": self.max_output,
            "defaultTimeoutMs": milliseconds(self.default_timeout),
            "sessionTtlMs": milliseconds(self.session_ttl),
        })
    }
}

/// No answer is larger, whatever a client asks for: it is held in memory more than once.
const LARGEST: u64 = 64 << 20;

fn bounded(bytes: u64) -> usize {
    usize::try_from(bytes.min(LARGEST)).unwrap_or(usize::MAX)
}

pub(super) fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)]) -> Result<Settings> {
        let found = |name: &str| set.iter().find(|(it, _)| *it == name);
        Settings::read(|name| found(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn variables_are_read_and_nonsense_is_refused() {
        assert_eq!(read(&[]).unwrap(), Settings::default());
        let settings = read(&[
            (env::MCP_HOST_PATHS, "/a: /b:"),
            (env::MCP_ENABLE_DANGEROUS, "1"),
            (env::MCP_MAX_OUTPUT_BYTES, "64"),
            (env::MCP_DEFAULT_TIMEOUT_MS, "1500"),
            (env::MCP_SESSION_TTL_MS, "10"),
            (env::MCP_OLDER_NAMES, "1"),
        ])
        .unwrap();
        let wanted = Settings {
            host_paths: Some(vec!["/a".into(), "/b".into()]),
            dangerous: true,
            max_output: 64,
            default_timeout: Duration::from_millis(1500),
            session_ttl: Duration::from_millis(10),
            older_names: true,
            ..Settings::default()
        };
        assert_eq!(settings, wanted);
        for (name, value) in [
            (env::MCP_HOST_PATH_POLICY, "none"),
            (env::MCP_ENABLE_DANGEROUS, "yes"),
            (env::MCP_MAX_OUTPUT_BYTES, "0"),
            (env::MCP_SESSION_TTL_MS, "1s"),
        ] {
            assert!(read(&[(name, value)]).is_err(), "{name}={value}");
        }
    }

    #[test]
    fn any_path_may_be_named_only_where_danger_is_allowed() {
        let policy = (env::MCP_HOST_PATH_POLICY, "unrestricted");
        assert_eq!(read(&[policy]).unwrap().paths(), None);
        let listed = [policy, (env::MCP_HOST_PATHS, "/")];
        assert!(read(&listed).unwrap().paths().unwrap().roots().is_some());
        let both = [policy, (env::MCP_ENABLE_DANGEROUS, "1")];
        assert_eq!(read(&both).unwrap().paths(), Some(HostPaths::unrestricted()));
    }

    #[test]
    fn a_variable_is_granted_for_its_listed_hosts_only() {
        let secret_env = ["TOKEN@api.example.com,*.b.example", "OTHER@evil.example"];
        let secret_env = secret_env.iter().map(|text| Secret::parse(text).unwrap()).collect();
        let settings = Settings { secret_env, ..Settings::default() };
        for (variable, host, well) in [
            ("TOKEN", "api.example.com", true),
            ("TOKEN", "API.example.com", true),
            ("TOKEN", "x.b.example", true),
            ("TOKEN", "*.b.example", true),
            ("TOKEN", "b.example", false),
            ("TOKEN", "*.x.b.example", false),
            ("TOKEN", "*.example.com", false),
            ("TOKEN", "evil.example", false),
            ("OTHER", "api.example.com", false),
            ("token", "api.example.com", false),
            ("HOME", "api.example.com", false),
        ] {
            let granted = settings.granted(variable, &NamePattern::parse(host).unwrap());
            assert_eq!(granted.is_some(), well, "{variable} {host}");
        }
        let host = NamePattern::parse("api.example.com").unwrap();
        assert_eq!(Settings::default().granted("TOKEN", &host), None);
    }

    #[test]
    fn no_answer_is_larger_than_memory_allows() {
        let settings = Settings::default();
        assert_eq!(settings.limit(None), 1 << 20);
        assert_eq!(settings.limit(Some(7)), 7);
        assert_eq!(settings.limit(Some(u64::MAX)), 64 << 20);
    }
}
