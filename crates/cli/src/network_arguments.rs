//! The flags that describe a sandbox's network.

use crate::output;
use clap::Args;
use msb_spec::{
    Bytes, Decision, Error, Name, NamePattern, NetworkSpec, PublishedPort, Reach, Resolver, Result,
    Rule, SandboxDefaults, Secret, SecretPlace,
};
use std::path::{Path, PathBuf};

/// What a sandbox may connect to.
#[derive(Debug, Args)]
pub(crate) struct EgressArgs {
    /// How far it reaches: public, private, host, all or none [default: public]
    #[arg(long, value_name = "REACH", help_heading = NETWORK)]
    net: Option<Reach>,
    /// No network but loopback
    #[arg(long, conflicts_with = "net", help_heading = NETWORK)]
    no_net: bool,
    /// Rule, the first that matches decides: `allow@example.com`, `deny@10.0.0.0/8:tcp:22`
    #[arg(long = "net-rule", value_name = "RULE", help_heading = NETWORK)]
    rules: Vec<Rule>,
    /// More rules, as `rules = [...]` in a TOML or JSON file
    #[arg(long = "net-rules", value_name = "FILE", help_heading = NETWORK)]
    rule_files: Vec<PathBuf>,
    /// What becomes of what no rule is about, in place of --net: allow or deny
    #[arg(long, value_name = "DECISION", help_heading = NETWORK)]
    net_default: Option<Decision>,
    /// DNS server, in place of the host's
    #[arg(long, value_name = "ADDRESS[:PORT]", help_heading = NETWORK)]
    dns: Vec<Resolver>,
}

/// What a sandbox may connect to, and what may connect to it.
#[derive(Debug, Args)]
pub(crate) struct NetworkArgs {
    #[command(flatten)]
    egress: EgressArgs,
    /// Port of the host that leads to one of the sandbox
    #[arg(
        long = "publish",
        short = 'p',
        value_name = "[ADDRESS:]HOST:GUEST[/udp]",
        help_heading = NETWORK
    )]
    ports: Vec<PublishedPort>,
    /// Secret for these hosts, from the variable of that name; the sandbox sees a placeholder
    #[arg(long = "secret", value_name = "NAME@HOST[,HOST...]", help_heading = NETWORK)]
    secrets: Vec<String>,
    /// Secret from a file
    #[arg(long = "secret-file", value_name = "NAME=FILE@HOST", help_heading = NETWORK)]
    secret_files: Vec<String>,
    /// Secret from the output of a command
    #[arg(long = "secret-command", value_name = "NAME=COMMAND@HOST", help_heading = NETWORK)]
    secret_commands: Vec<String>,
    /// Where else than in headers secrets are put in: cookie, query, body
    #[arg(long, value_name = "PLACE", value_delimiter = ',', help_heading = NETWORK)]
    secret_in: Vec<SecretPlace>,
    /// Refuse requests to the hosts of secrets that bear none
    #[arg(long, help_heading = NETWORK)]
    secret_require: bool,
    /// Never look into what is encrypted for this name
    #[arg(long = "net-bypass", value_name = "NAME", help_heading = NETWORK)]
    bypass: Vec<NamePattern>,
    /// Connections at a time [default: 4096]
    #[arg(long, value_name = "N", help_heading = NETWORK)]
    net_max_connections: Option<u32>,
    /// Bytes a second that may go out, as in `10M`
    #[arg(long, value_name = "SIZE", help_heading = NETWORK)]
    net_egress_rate: Option<Bytes>,
    /// Named network; sandboxes in it reach each other by name
    #[arg(long, value_name = "NAME", help_heading = NETWORK)]
    join: Option<String>,
    /// Trust inside what this host trusts: its CA certificates, those of a company too
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        help_heading = NETWORK
    )]
    trust_host_cas: Option<bool>,
}

const NETWORK: &str = "Network";

impl EgressArgs {
    /// The network that flags and the environment make together.
    pub(crate) fn network(&self) -> Result<NetworkSpec> {
        let defaults = msb_engine::conf::defaults()?;
        let mut network = defaults.network_base();
        self.apply(&mut network)?;
        defaults.network(network, false)
    }

    fn apply(&self, network: &mut NetworkSpec) -> Result<()> {
        if self.no_net {
            network.reach = Some(Reach::None);
        }
        network.reach = self.net.or(network.reach);
        let mut rules = self.rules.clone();
        for file in &self.rule_files {
            rules.extend(rules_of(file)?);
        }
        // Flags come before a file, so that they win.
        network.rules.splice(0..0, rules);
        network.default = self.net_default.or(network.default);
        if !self.dns.is_empty() {
            network.dns.clone_from(&self.dns);
        }
        Ok(())
    }
}

impl NetworkArgs {
    /// The network that flags, a file and the defaults make together.
    pub(crate) fn network(
        &self,
        from_file: Option<NetworkSpec>,
        defaults: &SandboxDefaults,
    ) -> Result<NetworkSpec> {
        let mut network = from_file.unwrap_or_else(|| defaults.network_base());
        self.egress.apply(&mut network)?;
        network.ports.extend(self.ports.iter().cloned());
        network.secrets.extend(self.secrets()?);
        network.bypass.extend(self.bypass.iter().cloned());
        network.max_connections = self.net_max_connections.or(network.max_connections);
        network.egress_rate = self.net_egress_rate.or(network.egress_rate);
        if let Some(join) = &self.join {
            network.join = Some(Name::parse(join)?);
        }
        network.trust_host_cas = self.trust_host_cas.unwrap_or(network.trust_host_cas);
        if network.max_connections == Some(0) || network.egress_rate == Some(Bytes(0)) {
            return Err(Error::invalid("a network for nothing").hint("`--no-net` has none"));
        }
        if let Some((secret, host)) = network.bypassed_secret() {
            return Err(Error::invalid(format!(
                "`{host}` is not intercepted (bypass) and cannot get the secret `{}`",
                secret.name
            ))
            .hint("leave out `--net-bypass`, or the secret"));
        }
        defaults.network(network, self.trust_host_cas == Some(true))
    }

    fn secrets(&self) -> Result<Vec<Secret>> {
        let variables = self.secrets.iter().map(|text| Secret::parse(text));
        let files = self.secret_files.iter().map(|text| Secret::parse_file(text));
        let commands = self.secret_commands.iter().map(|text| Secret::parse_command(text));
        let mut secrets: Vec<Secret> =
            variables.chain(files).chain(commands).collect::<Result<_>>()?;
        if secrets.is_empty() && (self.secret_require || !self.secret_in.is_empty()) {
            output::note(
                "there are no secrets that --secret-in or --secret-require could be about",
            );
        }
        for secret in &mut secrets {
            secret.places.extend(&self.secret_in);
            secret.require |= self.secret_require;
        }
        Ok(secrets)
    }
}

/// Rules out of a file, TOML or JSON.
fn rules_of(path: &Path) -> Result<Vec<Rule>> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::host(format!("cannot read `{}`", path.display()), error))?;
    msb_engine::conf::rules(&text)
        .map_err(|error| error.under(format!("cannot use `{}`", path.display())))
}
