//! Flags and environment variables of OpenSandbox's MCP server.

use msb_spec::{Error, Result, env};
use std::time::Duration;

/// Values of the flags. The defaults are for sandboxes of this host.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct OpenSandboxSettings {
    /// The API key for a remote server. Sandboxes of this host need none.
    pub api_key: Option<String>,
    /// `HOST[:PORT]` of a remote server; none for this host.
    pub domain: Option<String>,
    /// `http` or `https`, for a remote server.
    pub protocol: Option<String>,
    /// Time limit of calls that neither create a sandbox nor run a command.
    pub request_timeout: Option<Duration>,
    /// Whether ports of sandboxes are reached through the remote server.
    pub use_server_proxy: bool,
}

impl std::fmt::Debug for OpenSandboxSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the key, which is secret.
        f.debug_struct("Settings").field("domain", &self.domain).finish_non_exhaustive()
    }
}

/// Address and key of a remote server, for the client that implements the `Api`.
#[derive(Clone, PartialEq, Eq)]
pub struct OpenSandboxRemote {
    /// The URL, without a path.
    pub url: String,
    /// The API key for the server.
    pub key: Option<String>,
}

impl std::fmt::Debug for OpenSandboxRemote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("url", &self.url).finish_non_exhaustive()
    }
}

impl OpenSandboxSettings {
    /// Fills flags that are not set from the environment.
    #[must_use]
    pub fn or_environment(self) -> Self {
        self.or(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn or(mut self, variable: impl Fn(&str) -> Option<String>) -> Self {
        self.api_key = self.api_key.or_else(|| variable(env::OPEN_SANDBOX_API_KEY));
        self.domain = self.domain.or_else(|| variable(env::OPEN_SANDBOX_DOMAIN));
        self
    }

    /// The remote server; none for this host. The client checks whether it is an msb server.
    pub fn remote(&self) -> Result<Option<OpenSandboxRemote>> {
        let scheme = match self.protocol.as_deref() {
            None | Some("http") => "http",
            Some("https") => "https",
            Some(other) => {
                return Err(Error::invalid(format!("no protocol `{}`", msb_spec::shown(other)))
                    .hint("it is `http` or `https`"));
            }
        };
        let Some(domain) = &self.domain else {
            if self.use_server_proxy {
                return Err(Error::invalid("`--use-server-proxy` needs a remote server")
                    .hint("name one with `--domain`, or leave the flag out"));
            }
            return Ok(None);
        };
        if !is_place(domain) {
            let shown = msb_spec::shown(domain);
            return Err(Error::invalid(format!("not a host and port: `{shown}`"))
                .hint("write it as `HOST[:PORT]`; `--protocol` selects http or https"));
        }
        let url = format!("{scheme}://{domain}");
        Ok(Some(OpenSandboxRemote { url, key: self.api_key.clone() }))
    }
}

/// Whether this is `HOST[:PORT]` or `[ADDRESS][:PORT]`.
fn is_place(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    let six = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let host = match six {
        Some(six) => six.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            host.parse::<std::net::Ipv4Addr>().is_ok() || msb_spec::DomainName::parse(host).is_ok()
        }
    };
    host && port
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_a_host_and_a_port() {
        let remote = |domain: &str, protocol: Option<&str>| {
            let settings = OpenSandboxSettings {
                domain: Some(domain.to_owned()),
                protocol: protocol.map(str::to_owned),
                ..OpenSandboxSettings::default()
            };
            settings.remote().map(|remote| remote.map(|remote| remote.url))
        };
        for (domain, protocol, url) in [
            ("localhost:5555", None, "http://localhost:5555"),
            ("box.example.org", Some("https"), "https://box.example.org"),
            ("[::1]:8080", None, "http://[::1]:8080"),
            ("192.0.2.1", None, "http://192.0.2.1"),
        ] {
            assert_eq!(remote(domain, protocol).unwrap().unwrap(), url);
        }
        for bad in ["", "http://x", "x/y", "x:0", "x:99999", "x y", "user@x", "::1"] {
            assert!(remote(bad, None).is_err(), "{bad}");
        }
        assert!(remote("x", Some("ftp")).is_err());
        assert_eq!(OpenSandboxSettings::default().remote().unwrap(), None);
        assert!(
            OpenSandboxSettings { use_server_proxy: true, ..OpenSandboxSettings::default() }
                .remote()
                .is_err()
        );
    }

    #[test]
    fn flags_come_before_the_environment() {
        let variable = |name: &str| Some(format!("{name} of the environment"));
        let flags = OpenSandboxSettings {
            domain: Some("flag".to_owned()),
            ..OpenSandboxSettings::default()
        };
        let settings = flags.or(variable);
        assert_eq!(settings.domain.as_deref(), Some("flag"));
        assert_eq!(settings.api_key.as_deref(), Some("OPEN_SANDBOX_API_KEY of the environment"));
        let shown = format!("{settings:?} {:?}", settings.remote().unwrap());
        assert!(!shown.contains("environment"), "{shown}");
    }
}
