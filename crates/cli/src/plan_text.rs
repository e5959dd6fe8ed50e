//! A Plan as people read it; `--json` has every field.

use msb_spec::{
    Health, Ids, Limit, Network, Plan, PlannedSecret, Profile, SecretSource, SpawnPolicy, Upper,
    WayOut,
};
use std::fmt::{Display, Write};

/// The Plan, a line for each thing that was decided.
pub(crate) fn written(plan: &Plan) -> String {
    let mut text = String::new();
    let mut line = |what: &str, value: String| {
        let _ = writeln!(text, "{what:<11} {value}");
    };
    let fate = if plan.ephemeral { "removed when it ends" } else { "kept until it is removed" };
    line("sandbox", format!("{}, {fate}", plan.name));
    line(
        "isolation",
        match &plan.isolation_reason {
            Some(reason) => format!("{}, not a microVM: {reason}", plan.isolation),
            None => plan.isolation.to_string(),
        },
    );
    line(
        "image",
        match &plan.image_digest {
            Some(digest) => format!("{}, {digest}", plan.image),
            None => plan.image.to_string(),
        },
    );
    if let Some(command) = &plan.command {
        line("command", command.argv.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "));
    }
    if let Some(init) = &plan.init {
        line("init", format!("{}, as PID 1", quoted(&init.program.to_string())));
    }
    line("user", plan.user.as_ref().map_or("root".to_owned(), ToString::to_string));
    line("ids", ids(&plan.ids));
    line("workdir", plan.workdir.clone());
    line("host name", plan.hostname.as_str().to_owned());
    match &plan.network {
        None => line("network", "none but loopback".to_owned()),
        Some(network) => network_lines(network, &mut line),
    }
    line("security", security(plan));
    line(
        "writable",
        match &plan.rootfs.upper {
            Upper::Memory { size } => format!("in memory, {}", msb_spec::Bytes(*size)),
            Upper::Directory { path } | Upper::Disk { path } => path.display().to_string(),
        },
    );
    let limits = &plan.limits;
    line("memory", limit(limits.memory));
    line("cpus", limit(limits.cpus));
    line("pids", limit(limits.pids));
    line("disk", limit(limits.disk));
    if let Some(span) = plan.max_duration {
        line("ends after", span.to_string());
    }
    if let Some(span) = plan.idle_timeout {
        line("ends idle", span.to_string());
    }
    if let Some(span) = plan.idle_pause {
        line("pauses idle", span.to_string());
    }
    if plan.restart.is_some() {
        line("restart", plan.restart.to_string());
    }
    if let Some(health) = &plan.health {
        let Health { command, interval, timeout, retries, .. } = health;
        let often = format!("every {interval}, at most {timeout}, {retries} times");
        line("health", format!("{}, {often}", quoted(command)));
    }
    if let Some(policy) = &plan.spawn {
        let SpawnPolicy { max_concurrent, max_total, cpus, memory, .. } = policy;
        let budget = format!("{cpus} cpus and {memory} together");
        line("children", format!("{max_concurrent} at once, {max_total} in all, {budget}"));
        if policy.net == WayOut::Parent {
            line("children", "reach what it reaches".to_owned());
        }
        if policy.ports {
            line("children", "may have published ports".to_owned());
        }
    }
    if let Some(family) = &plan.family {
        line("child of", family.parent.to_string());
        if let Some(alias) = &family.alias {
            line("called", format!("{alias} by its parent"));
        }
    }
    if let Some(network) = plan.family_network() {
        line("joined", format!("the family of {}", network.root));
    }
    for mount in &plan.mounts {
        let how = mount_text(mount.read_only, mount.no_exec);
        match &mount.volume {
            Some(volume) => line("volume", format!("{} at {}, {how}", volume.name, mount.guest)),
            None => line("mount", format!("{} at {}, {how}", mount.host.display(), mount.guest)),
        }
    }
    if let Some(workspace) = &plan.workspace {
        let host = workspace.host.display();
        line("workspace", format!("{host} at {}, copy-on-write", workspace.guest));
    }
    for tmpfs in &plan.tmpfs {
        let how = mount_text(tmpfs.read_only, tmpfs.no_exec);
        line("tmpfs", format!("{}, {}, {how}", tmpfs.guest, tmpfs.size));
    }
    for (name, value) in &plan.env {
        line("env", format!("{name}={}", quoted(value)));
    }
    if !plan.patches.is_empty() {
        line("changes", format!("{} before the first command", plan.patches.len()));
    }
    text
}

/// How a mount may be used, in words.
fn mount_text(read_only: bool, no_exec: bool) -> String {
    let access = if read_only { "read-only" } else { "writable" };
    let exec = if no_exec { ", not executable" } else { "" };
    format!("{access}{exec}")
}

fn network_lines(network: &Network, line: &mut impl FnMut(&str, String)) {
    for rule in &network.policy.rules {
        line("network", rule.to_string());
    }
    line("network", format!("{} everything else", network.policy.default));
    for resolver in &network.dns {
        line("dns", resolver.to_string());
    }
    if let Some(limit) = network.dns_timeout {
        line("dns", format!("{limit} for a server to answer"));
    }
    if network.dns_private {
        line("dns", "keeps private addresses in answers".to_owned());
    }
    for port in &network.ports {
        line("port", port.to_string());
    }
    for PlannedSecret { secret, .. } in &network.secrets {
        let hosts: Vec<String> = secret.hosts.iter().map(ToString::to_string).collect();
        let from = match &secret.source {
            SecretSource::Variable(name) => format!("the variable {name}"),
            SecretSource::File(path) => path.display().to_string(),
            SecretSource::Command(_) => "a command".to_owned(),
            SecretSource::Given => "the program that starts it".to_owned(),
        };
        line("secret", format!("{} for {}, from {from}", secret.name, hosts.join(", ")));
    }
    for name in &network.bypass {
        line("network", format!("never looks into {name}"));
    }
    line("connections", format!("{} at a time", network.max_connections));
    line("gateway", format!("{} of memory at most", network.gateway_memory));
    if let Some(rate) = network.egress_rate {
        line("rate out", format!("{} a second", msb_spec::Bytes(rate)));
    }
    if network.trust_host_cas {
        line("trusts", "the CA certificates of this host".to_owned());
    }
    if let Some(join) = &network.join {
        line("joined", join.to_string());
    }
}

fn limit<T: Display>(limit: Option<Limit<T>>) -> String {
    limit.map_or("not limited".to_owned(), |limit| format!("{} ({})", limit.value, limit.by))
}

fn ids(ids: &Ids) -> String {
    match ids {
        Ids::Single { uid, .. } => format!("root inside is {uid} outside; no other ids exist"),
        Ids::Subordinate { uid, uids, .. } => {
            format!("root inside is {uid} outside; others are {} and up", uids.start)
        }
        Ids::Shifted { range } => format!("0 and up inside are {} and up outside", range.start),
    }
}

fn security(plan: &Plan) -> String {
    let mut words = vec![match plan.security.profile {
        Profile::Default => "default profile",
        Profile::Restricted => "restricted profile",
    }];
    if plan.security.allow_userns {
        words.push("user namespaces allowed");
    }
    if !plan.security.allow_setid {
        words.push("no setuid files, because a host path is writable");
    }
    words.join(", ")
}

/// Text of a user, safe on a terminal.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=,+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", msb_spec::shown(text))
}
