//! How OpenSandbox's MCP server is set up: its flags and variables.

use msb_spec::{Error, Result, env};
use std::time::Duration;

/// What its flags say. What is absent is as it is for sandboxes of this machine.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// The key for a remote server. Sandboxes of this machine need none.
    pub api_key: Option<String>,
    /// `HOST[:PORT]` of a remote server; none is this machine.
    pub domain: Option<String>,
    /// `http` or `https`, for a remote server.
    pub protocol: Option<String>,
    /// How long a call may take that neither makes a sandbox nor runs a command.
    pub request_timeout: Option<Duration>,
    /// Reach ports of sandboxes through the remote server.
    pub use_server_proxy: bool,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the key.
        f.debug_struct("Settings").field("domain", &self.domain).finish_non_exhaustive()
    }
}

/// A server elsewhere, for whoever makes the Api that the dialect works on.
#[derive(Clone, PartialEq, Eq)]
pub struct Remote {
    /// Where, without a path.
    pub url: String,
    /// The key that it wants.
    pub key: Option<String>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Settings {
    /// The same with what the environment says where no flag does.
    #[must_use]
    pub fn or_environment(self) -> Self {
        self.or(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn or(mut self, variable: impl Fn(&str) -> Option<String>) -> Self {
        self.api_key = self.api_key.or_else(|| variable(env::OPEN_SANDBOX_API_KEY));
        self.domain = self.domain.or_else(|| variable(env::OPEN_SANDBOX_DOMAIN));
        self
    }

    /// The remote server that is meant; none is this machine. Whether it is one of ours is found
    /// out by whoever speaks to it.
    pub fn remote(&self) -> Result<Option<Remote>> {
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
                return Err(Error::invalid(
                    "there is no server that ports could be reached through",
                )
                .hint("leave out `--use-server-proxy`, or name a server with `--domain`"));
            }
            return Ok(None);
        };
        if !is_place(domain) {
            let shown = msb_spec::shown(domain);
            return Err(Error::invalid(format!("not a host and port: `{shown}`"))
                .hint("write it as `HOST[:PORT]`; `--protocol` says how it is spoken to"));
        }
        let url = format!("{scheme}://{domain}");
        Ok(Some(Remote { url, key: self.api_key.clone() }))
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
            let settings = Settings {
                domain: Some(domain.to_owned()),
                protocol: protocol.map(str::to_owned),
                ..Settings::default()
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
        assert_eq!(Settings::default().remote().unwrap(), None);
        assert!(Settings { use_server_proxy: true, ..Settings::default() }.remote().is_err());
    }

    #[test]
    fn flags_come_before_the_environment() {
        let variable = |name: &str| Some(format!("{name} of the environment"));
        let flags = Settings { domain: Some("flag".to_owned()), ..Settings::default() };
        let settings = flags.or(variable);
        assert_eq!(settings.domain.as_deref(), Some("flag"));
        assert_eq!(settings.api_key.as_deref(), Some("OPEN_SANDBOX_API_KEY of the environment"));
        let shown = format!("{settings:?} {:?}", settings.remote().unwrap());
        assert!(!shown.contains("environment"), "{shown}");
    }
}
