//! Settings of the dialect `microsandbox`, from the operator.

use crate::paths::HostPaths;
use msb_spec::{Error, NamePattern, Result, Secret, SecretSource, env};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// Settings of the dialect `microsandbox`, which only the operator can change.
///
/// **Dangerous operations** are those that a client must not perform by itself, even with a
/// confirmation:
///
/// - naming any host path (`unrestricted` has no effect without `dangerous`);
/// - forcing all sandboxes to stop or be removed, by a selector without names and labels;
/// - on a server with keys, using the variables of `secret_env` as secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicrosandboxSettings {
    /// The host directories that clients may name; none if the operator has set none.
    pub host_paths: Option<Vec<PathBuf>>,
    /// Whether clients may name any host path. Only with `dangerous`.
    pub unrestricted: bool,
    /// Whether dangerous operations are allowed. Default false.
    pub dangerous: bool,
    /// Variables of the server's environment that clients may use as secrets, each for its hosts
    /// only
    /// (`--secret-env NAME@HOST`). Empty by default: clients read no variables.
    pub secret_env: Vec<Secret>,
    /// Default limit in bytes of a stream, file or line in a result.
    pub max_output: usize,
    /// Default time limit of a call that waits for a command or a sandbox.
    pub default_timeout: Duration,
    /// A session is removed after this time without a poll or output.
    pub session_ttl: Duration,
    /// Whether the old tool names `snapshot_export` and `snapshot_import` are listed, too.
    pub older_names: bool,
    /// The path of the executable, shown to clients.
    pub program: Option<PathBuf>,
    /// The path of the microVM kernel, shown to clients.
    pub kernel: Option<PathBuf>,
}

impl Default for MicrosandboxSettings {
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

impl MicrosandboxSettings {
    /// Reads the settings from environment variables, by a lookup function.
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
            // Only on the command line: other programs may write the files that start servers.
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

    /// The allowlist of host paths; none if the operator has set none.
    pub fn paths(&self) -> Option<HostPaths> {
        if self.is_unrestricted() {
            return Some(HostPaths::unrestricted());
        }
        let listed = self.host_paths.clone();
        listed.map(|listed| HostPaths::below(listed, env::MCP_HOST_PATHS))
    }

    /// A variable as the source of a secret, if the operator allows it for this host.
    pub(super) fn granted(&self, variable: &str, host: &NamePattern) -> Option<SecretSource> {
        let covers = |own: &NamePattern| match host {
            NamePattern::Exactly(name) => own.matches(name),
            NamePattern::Below(_) => own == host,
        };
        let mut listed = self.secret_env.iter();
        let listed = listed.find(|it| it.name == variable && it.hosts.iter().any(covers))?;
        Some(listed.source.clone())
    }

    /// The limit in bytes for a result.
    pub(super) fn limit(&self, params: Option<u64>) -> usize {
        params.map_or(self.max_output, bounded)
    }

    pub(super) fn is_unrestricted(&self) -> bool {
        self.unrestricted && self.dangerous
    }

    /// The settings, as clients see them.
    pub(super) fn public_view(&self, paths: &HostPaths) -> Value {
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

/// Upper bound of every limit in bytes: a result is held in memory more than once.
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

    fn read(set: &[(&str, &str)]) -> Result<MicrosandboxSettings> {
        let found = |name: &str| set.iter().find(|(it, _)| *it == name);
        MicrosandboxSettings::read(|name| found(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn variables_are_read_and_nonsense_is_refused() {
        assert_eq!(read(&[]).unwrap(), MicrosandboxSettings::default());
        let settings = read(&[
            (env::MCP_HOST_PATHS, "/a: /b:"),
            (env::MCP_ENABLE_DANGEROUS, "1"),
            (env::MCP_MAX_OUTPUT_BYTES, "64"),
            (env::MCP_DEFAULT_TIMEOUT_MS, "1500"),
            (env::MCP_SESSION_TTL_MS, "10"),
            (env::MCP_OLDER_NAMES, "1"),
        ])
        .unwrap();
        let expected = MicrosandboxSettings {
            host_paths: Some(vec!["/a".into(), "/b".into()]),
            dangerous: true,
            max_output: 64,
            default_timeout: Duration::from_millis(1500),
            session_ttl: Duration::from_millis(10),
            older_names: true,
            ..MicrosandboxSettings::default()
        };
        assert_eq!(settings, expected);
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
        let settings = MicrosandboxSettings { secret_env, ..MicrosandboxSettings::default() };
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
        assert_eq!(MicrosandboxSettings::default().granted("TOKEN", &host), None);
    }

    #[test]
    fn no_answer_is_larger_than_memory_allows() {
        let settings = MicrosandboxSettings::default();
        assert_eq!(settings.limit(None), 1 << 20);
        assert_eq!(settings.limit(Some(7)), 7);
        assert_eq!(settings.limit(Some(u64::MAX)), 64 << 20);
    }
}
