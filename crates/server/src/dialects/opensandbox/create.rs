//! Making sandboxes.

use super::arguments::{Action, Create, NetworkPolicy};
use super::shown::{Ready, Sandbox};
use super::{Said, Surface, names, wrong};
use crate::dialect::Call;
use msb_api::{Happened, Login, Part, Registry, Status, Watch};
use msb_spec::{
    Bytes, Cpus, Decision, Direction, Ending, Error, ImageRef, Name, NetworkSpec, Profile, Reach,
    Result, Rule, Span, Spec, Target, Traffic,
};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What a sandbox has whose client does not say.
const USUAL_CPUS: Cpus = Cpus::whole(1);
const USUAL_MEMORY: Bytes = Bytes::mib(2048);

/// Nobody means more; clocks can still count it.
const LONGEST: f64 = 10.0 * 366.0 * 86_400.0;

/// How long one that has expired can still be asked why.
const KEPT: Duration = Duration::from_secs(3600);

impl Surface {
    pub(super) fn create(&self, call: &Call, arguments: Create) -> Result<Said> {
        call.tell("Validating input", 0.1);
        let ready = span("ready_timeout_seconds", arguments.ready_timeout_seconds)?;
        let interval = Duration::from_millis(arguments.health_check_polling_interval_ms);
        let look = !arguments.skip_health_check;
        let ask = self.ask(arguments)?;
        call.tell("Creating sandbox", 0.3);
        self.sweep();
        let name = self.api().sandbox_create(&ask, &Between(call))?.name;
        let begun = self.begun(call, &name, look.then_some((ready, interval)));
        if begun.is_err() {
            // Nobody has its id, so nobody would ever end it.
            self.known.forget(name.as_str());
            let _ = self.api().sandbox_remove(&name, true);
        }
        begun
    }

    /// The rest, once it runs.
    fn begun(&self, call: &Call, name: &Name, look: Option<(Duration, Duration)>) -> Result<Said> {
        if let Some((limit, interval)) = look {
            self.await_health(call, name, limit, interval)?;
        }
        if call.cancel.is_cancelled() {
            return Err(Error::invalid("the call was cancelled"));
        }
        call.tell("Fetching sandbox info", 0.8);
        let info = self.info(name)?;
        self.keep(&call.who, name.clone())?;
        let said = Said::one(&Ready { sandbox_id: name.to_string(), info })?;
        call.tell("Done", 1.0);
        Ok(said)
    }

    /// Everything about a sandbox.
    pub(super) fn info(&self, name: &Name) -> Result<Sandbox> {
        let found = self.api().sandbox_inspect(name)?;
        let events = self.api().sandbox_events(name)?.more()?;
        Ok(Sandbox::of(found, &events))
    }

    fn ask(&self, arguments: Create) -> Result<msb_api::Create> {
        let id = names::new_id()?;
        let mut spec = self.world.defaults.clone();
        spec.image = self.image(&arguments.image)?;
        spec.max_duration = Some(Span(span("timeout_seconds", arguments.timeout_seconds)?));
        spec.env.extend(arguments.env.unwrap_or_default());
        spec.entrypoint = arguments.entrypoint.unwrap_or_default();
        resources(&mut spec, arguments.resource.unwrap_or_default())?;
        if let Some(policy) = &arguments.network_policy {
            spec.network = Some(network(policy)?);
        }
        let extensions = arguments.extensions.unwrap_or_default();
        extend(&mut spec, &extensions)?;
        let metadata = arguments.metadata.unwrap_or_default();
        spec.labels.extend(names::labels(&id, metadata, extensions)?);
        spec.name = Some(id);
        let login = login(arguments.auth_username, arguments.auth_password)?;
        let registry = Registry { login, ..Registry::default() };
        Ok(msb_api::Create { spec, replace: false, registry })
    }

    /// A path of this host only if this server allows it.
    fn image(&self, text: &str) -> Result<ImageRef> {
        let image = ImageRef::parse(text);
        match image.map_err(|error| error.under("argument `image` is none"))? {
            ImageRef::Path(path) => Ok(ImageRef::Path(self.world.paths.check(&path)?)),
            image => Ok(image),
        }
    }

    /// Removes those of ours that have expired long ago. OpenSandbox removes them at once, but then
    /// nobody could be told what became of theirs.
    fn sweep(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let expired = |name: &Name| {
            let events = self.api().sandbox_events(name).and_then(|mut events| events.more());
            let last = events.ok().and_then(|mut events| events.pop());
            last.is_some_and(|last| {
                let since = now.saturating_sub(Duration::from_millis(last.time));
                let ending = Ending::MaxDuration;
                matches!(last.happened, Happened::Stopped { ending: by, .. } if by == ending)
                    && since > KEPT
            })
        };
        for found in self.api().sandbox_list().unwrap_or_default() {
            let ours = found.labels.contains_key(names::ID) && found.status == Status::Stopped;
            if ours && expired(&found.name) {
                // Somebody may have started it again; then it stays.
                let _ = self.api().sandbox_remove(&found.name, false);
            }
        }
    }
}

/// Seconds, as clients write them.
pub(super) fn span(argument: &str, seconds: f64) -> Result<Duration> {
    if !(seconds > 0.0 && seconds <= LONGEST) {
        return Err(wrong(argument, format!("not a number of seconds: `{seconds}`"))
            .hint("it is more than 0 and at most ten years"));
    }
    // In whole milliseconds, which is how it is kept and told.
    Ok(Duration::from_millis(Duration::from_secs_f64(seconds).as_millis().max(1) as u64))
}

fn resources(spec: &mut Spec, asked: BTreeMap<String, String>) -> Result<()> {
    spec.cpus = Some(USUAL_CPUS);
    spec.memory = Some(USUAL_MEMORY);
    for (what, amount) in asked {
        let about = |error: Error| error.under(format!("argument `resource.{what}`"));
        match what.as_str() {
            "cpu" => spec.cpus = Some(cpus(&amount).map_err(about)?),
            "memory" => spec.memory = Some(bytes(&amount).map_err(about)?),
            "disk" | "ephemeral-storage" => spec.disk = Some(bytes(&amount).map_err(about)?),
            _ => {
                let text = format!("argument `resource`: sandboxes have no `{what}` to give");
                return Err(Error::unsupported(text)
                    .hint("it takes `cpu`, `memory` and `disk`; leave the rest out"));
            }
        }
    }
    Ok(())
}

/// `2`, `0.5`, or `500m` for thousandths.
fn cpus(text: &str) -> Result<Cpus> {
    match text.strip_suffix('m').map(str::parse::<u32>) {
        Some(Ok(millis)) => Cpus::parse(&format!("{}.{:03}", millis / 1000, millis % 1000)),
        _ => Cpus::parse(text),
    }
}

/// `512Mi` is what we write as `512M`.
fn bytes(text: &str) -> Result<Bytes> {
    Bytes::parse(text.strip_suffix('i').unwrap_or(text))
}

/// The internet where everything is allowed: neither this machine nor its networks, as without any
/// policy.
fn network(policy: &NetworkPolicy) -> Result<NetworkSpec> {
    let mut rules = Vec::new();
    for (number, rule) in policy.egress.iter().flatten().enumerate() {
        let argument = format!("network_policy.egress[{number}].target");
        let parsed = Rule::parse(&format!("{}@{}", rule.action.as_str(), rule.target))
            .map_err(|error| wrong(&argument, error))?;
        let plain = parsed.direction == Direction::Egress
            && parsed.traffic == Traffic::Any
            && !matches!(parsed.target, Target::Group(_));
        if !plain {
            let what =
                format!("neither a name nor an address: `{}`", msb_spec::shown(&rule.target));
            return Err(wrong(&argument, what)
                .hint("write it as `example.org`, `*.example.org` or `10.0.0.0/8`"));
        }
        rules.push(parsed);
    }
    let network = match policy.default_action.unwrap_or(Action::Deny) {
        Action::Allow => NetworkSpec { reach: Some(Reach::Public), ..NetworkSpec::default() },
        Action::Deny => NetworkSpec { default: Some(Decision::Deny), ..NetworkSpec::default() },
    };
    Ok(NetworkSpec { rules, ..network })
}

/// What the extensions ask for that we know; the rest is only kept.
fn extend(spec: &mut Spec, extensions: &BTreeMap<String, String>) -> Result<()> {
    for (key, value) in extensions {
        match (key.as_str(), value.as_str()) {
            ("msb.isolation", value) => {
                spec.isolation = value
                    .parse()
                    .map_err(|error: Error| error.under("argument `extensions.msb.isolation`"))?;
            }
            ("msb.security", "default") => spec.security = Profile::Default,
            ("msb.security", "restricted") => spec.security = Profile::Restricted,
            ("msb.security", other) => {
                let what = format!("no such profile: `{}`", msb_spec::shown(other));
                return Err(
                    wrong("extensions.msb.security", what).hint("it is `default` or `restricted`")
                );
            }
            ("poolRef", _) => {
                return Err(Error::unsupported(
                    "argument `extensions.poolRef`: there are no pools",
                )
                .hint("leave it out: sandboxes start in milliseconds"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn login(user: Option<String>, password: Option<String>) -> Result<Option<Login>> {
    match (user, password) {
        (Some(user), Some(password)) => Ok(Some(Login { user, password })),
        (None, None) => Ok(None),
        (Some(_), None) => Err(wrong("auth_password", "it is missing beside `auth_username`")),
        (None, Some(_)) => Err(wrong("auth_username", "it is missing beside `auth_password`")),
    }
}

/// Passes on what the engine does, between the steps that the contract has before and after it.
struct Between<'a>(&'a Call);

impl Watch for Between<'_> {
    fn step(&self, what: &str, done: Option<Part>) {
        match done.filter(|part| part.of > 0) {
            #[expect(clippy::cast_precision_loss, reason = "nobody sees the last of 53 bits")]
            Some(part) => {
                let share = (part.done as f64 / part.of as f64).clamp(0.0, 1.0);
                self.0.tell(what, 0.3 + 0.5 * share);
            }
            None => self.0.watch.step(what, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_clusters_write_them() {
        for (text, millis) in [("1", 1000), ("500m", 500), ("1500m", 1500), ("0.5", 500)] {
            assert_eq!(cpus(text).unwrap().millis, millis, "{text}");
        }
        for (text, amount) in [("512Mi", 512 << 20), ("2Gi", 2 << 30), ("1048576", 1 << 20)] {
            assert_eq!(bytes(text).unwrap().0, amount, "{text}");
        }
        for bad in ["", "m", "-1", "1mm", "0"] {
            assert!(cpus(bad).is_err(), "{bad}");
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_policy_is_written_as_our_rules() {
        let policy = |value| serde_json::from_value::<NetworkPolicy>(value).unwrap();
        let rules = |value| {
            let network = network(&policy(value))?;
            let rules: Vec<String> = network.rules.iter().map(ToString::to_string).collect();
            Ok::<_, Error>((network.reach, network.default, rules))
        };
        let rule =
            |action: &str, target: &str| serde_json::json!({"action": action, "target": target});
        let denied =
            rules(serde_json::json!({"egress": [rule("allow", "*.example.org")]})).unwrap();
        assert_eq!(denied, (None, Some(Decision::Deny), vec!["allow@*.example.org".to_owned()]));
        let allowed = rules(serde_json::json!({
            "defaultAction": "allow", "egress": [rule("deny", "10.0.0.0/8")]
        }));
        let expected = (Some(Reach::Public), None, vec!["deny@10.0.0.0/8".to_owned()]);
        assert_eq!(allowed.unwrap(), expected);
        for bad in ["host", "metadata", "example.org:tcp:22", "", "a b"] {
            let error = rules(serde_json::json!({"egress": [rule("allow", bad)]})).unwrap_err();
            assert!(error.message().contains("network_policy.egress[0].target"), "{error}");
        }
    }

    #[test]
    fn seconds_are_some_and_not_for_ever() {
        assert_eq!(span("t", 0.0005).unwrap(), Duration::from_millis(1));
        assert_eq!(span("t", 1.5).unwrap(), Duration::from_millis(1500));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e12] {
            assert!(span("t", bad).is_err(), "{bad}");
        }
    }
}
