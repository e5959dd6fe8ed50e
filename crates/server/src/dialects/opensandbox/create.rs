//! The tool that creates sandboxes.

use super::arguments::{CreateArgs, NetworkPolicy, RuleAction};
use super::output::{ReadyOutput, SandboxInfo};
use super::{OpenSandboxState, ToolOutput, argument_error, labels};
use crate::dialect::ToolCall;
use msb_api::{EventKind, Login, Part, Registry, Status, Watch};
use msb_spec::{
    Bytes, Cpus, Decision, Direction, Ending, Error, ImageRef, Name, NetworkSpec, Profile, Reach,
    Result, Rule, Span, Spec, Target, Traffic,
};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Default resources of a sandbox.
const USUAL_CPUS: Cpus = Cpus::whole(1);
const USUAL_MEMORY: Bytes = Bytes::mib(2048);

/// Longest duration in seconds, so that adding it to a clock cannot overflow.
const LONGEST: f64 = 10.0 * 366.0 * 86_400.0;

/// How long an expired sandbox is kept, so that clients can ask why it ended.
const KEPT: Duration = Duration::from_secs(3600);

impl OpenSandboxState {
    pub(super) fn create(&self, call: &ToolCall, arguments: CreateArgs) -> Result<ToolOutput> {
        call.tell("Validating input", 0.1);
        let ready = parse_seconds("ready_timeout_seconds", arguments.ready_timeout_seconds)?;
        let interval = Duration::from_millis(arguments.health_check_polling_interval_ms);
        let look = !arguments.skip_health_check;
        let create_request = self.create_request(arguments)?;
        call.tell("Creating sandbox", 0.3);
        self.remove_expired();
        let name = self.api().sandbox_create(&create_request, &EngineProgress(call))?.name;
        let finish_create = self.finish_create(call, &name, look.then_some((ready, interval)));
        if finish_create.is_err() {
            // The client has not received the id, so it could never remove the sandbox.
            self.connections.forget(name.as_str());
            let _ = self.api().sandbox_remove(&name, true);
        }
        finish_create
    }

    /// Waits for health and builds the result, after the start.
    fn finish_create(
        &self,
        call: &ToolCall,
        name: &Name,
        look: Option<(Duration, Duration)>,
    ) -> Result<ToolOutput> {
        if let Some((limit, interval)) = look {
            self.await_health(call, name, limit, interval)?;
        }
        if call.cancel.is_cancelled() {
            return Err(Error::invalid("the call was cancelled"));
        }
        call.tell("Fetching sandbox info", 0.8);
        let info = self.info(name)?;
        self.remember(&call.caller, name.clone())?;
        let result = ToolOutput::one(&ReadyOutput { sandbox_id: name.to_string(), info })?;
        call.tell("Done", 1.0);
        Ok(result)
    }

    /// All details of a sandbox.
    pub(super) fn info(&self, name: &Name) -> Result<SandboxInfo> {
        let found = self.api().sandbox_inspect(name)?;
        let events = self.api().sandbox_events(name)?.more()?;
        Ok(SandboxInfo::from_inspection(found, &events))
    }

    fn create_request(&self, arguments: CreateArgs) -> Result<msb_api::Create> {
        let id = labels::new_id()?;
        let mut spec = self.config.defaults.clone();
        spec.image = self.image(&arguments.image)?;
        spec.max_duration =
            Some(Span(parse_seconds("timeout_seconds", arguments.timeout_seconds)?));
        spec.env.extend(arguments.env.unwrap_or_default());
        spec.entrypoint = arguments.entrypoint.unwrap_or_default();
        resources(&mut spec, arguments.resource.unwrap_or_default())?;
        if let Some(policy) = &arguments.network_policy {
            spec.network = Some(network(policy)?);
        }
        let extensions = arguments.extensions.unwrap_or_default();
        apply_extensions(&mut spec, &extensions)?;
        let metadata = arguments.metadata.unwrap_or_default();
        spec.labels.extend(labels::labels(&id, metadata, extensions)?);
        spec.name = Some(id);
        let login = login(arguments.auth_username, arguments.auth_password)?;
        let registry = Registry { login, ..Registry::default() };
        Ok(msb_api::Create { spec, replace: false, registry })
    }

    /// Parses an image reference; a host path must be allowed.
    fn image(&self, text: &str) -> Result<ImageRef> {
        let image = ImageRef::parse(text);
        match image.map_err(|error| error.under("argument `image` is not an image"))? {
            ImageRef::Path(path) => Ok(ImageRef::Path(self.config.paths.check(&path)?)),
            image => Ok(image),
        }
    }

    /// Removes sandboxes of this dialect that expired long ago. OpenSandbox removes them at once;
    /// here
    /// clients can still ask why theirs ended.
    fn remove_expired(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let expired = |name: &Name| {
            let events = self.api().sandbox_events(name).and_then(|mut events| events.more());
            let last = events.ok().and_then(|mut events| events.pop());
            last.is_some_and(|last| {
                let since = now.saturating_sub(Duration::from_millis(last.time));
                let ending = Ending::MaxDuration;
                matches!(last.happened, EventKind::Stopped { ending: by, .. } if by == ending)
                    && since > KEPT
            })
        };
        for found in self.api().sandbox_list().unwrap_or_default() {
            let ours = found.labels.contains_key(labels::ID) && found.status == Status::Stopped;
            if ours && expired(&found.name) {
                // Without force: a sandbox that was started again stays.
                let _ = self.api().sandbox_remove(&found.name, false);
            }
        }
    }
}

/// Parses a duration in seconds.
pub(super) fn parse_seconds(argument: &str, seconds: f64) -> Result<Duration> {
    if !(seconds > 0.0 && seconds <= LONGEST) {
        return Err(argument_error(argument, format!("not a number of seconds: `{seconds}`"))
            .hint("it is more than 0 and at most ten years"));
    }
    // In whole milliseconds, as it is stored and reported.
    Ok(Duration::from_millis(Duration::from_secs_f64(seconds).as_millis().max(1) as u64))
}

fn resources(spec: &mut Spec, requested: BTreeMap<String, String>) -> Result<()> {
    spec.cpus = Some(USUAL_CPUS);
    spec.memory = Some(USUAL_MEMORY);
    for (what, amount) in requested {
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

/// Parses `2`, `0.5`, or `500m` for thousandths.
fn cpus(text: &str) -> Result<Cpus> {
    match text.strip_suffix('m').map(str::parse::<u32>) {
        Some(Ok(millis)) => Cpus::parse(&format!("{}.{:03}", millis / 1000, millis % 1000)),
        _ => Cpus::parse(text),
    }
}

/// Parses a size as Kubernetes writes it: `512Mi` is our `512M`.
fn bytes(text: &str) -> Result<Bytes> {
    Bytes::parse(text.strip_suffix('i').unwrap_or(text))
}

/// Network rules of a policy. Allowing everything means the internet: the host and its networks
/// stay blocked, as they are without any policy.
fn network(policy: &NetworkPolicy) -> Result<NetworkSpec> {
    let mut rules = Vec::new();
    for (number, rule) in policy.egress.iter().flatten().enumerate() {
        let argument = format!("network_policy.egress[{number}].target");
        let parsed = Rule::parse(&format!("{}@{}", rule.action.as_str(), rule.target))
            .map_err(|error| argument_error(&argument, error))?;
        let plain = parsed.direction == Direction::Egress
            && parsed.traffic == Traffic::Any
            && !matches!(parsed.target, Target::Group(_));
        if !plain {
            let what =
                format!("neither a name nor an address: `{}`", msb_spec::shown(&rule.target));
            return Err(argument_error(&argument, what)
                .hint("write it as `example.org`, `*.example.org` or `10.0.0.0/8`"));
        }
        rules.push(parsed);
    }
    let network = match policy.default_action.unwrap_or(RuleAction::Deny) {
        RuleAction::Allow => NetworkSpec { reach: Some(Reach::Public), ..NetworkSpec::default() },
        RuleAction::Deny => NetworkSpec { default: Some(Decision::Deny), ..NetworkSpec::default() },
    };
    Ok(NetworkSpec { rules, ..network })
}

/// Applies the extensions that we know; the others are only stored.
fn apply_extensions(spec: &mut Spec, extensions: &BTreeMap<String, String>) -> Result<()> {
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
                return Err(argument_error("extensions.msb.security", what)
                    .hint("it is `default` or `restricted`"));
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
        (Some(_), None) => Err(argument_error("auth_password", "required with `auth_username`")),
        (None, Some(_)) => Err(argument_error("auth_username", "required with `auth_password`")),
    }
}

/// Maps the progress of the engine into the range between the steps of the contract.
struct EngineProgress<'a>(&'a ToolCall);

impl Watch for EngineProgress<'_> {
    fn step(&self, what: &str, done: Option<Part>) {
        match done.filter(|part| part.of > 0) {
            #[expect(clippy::cast_precision_loss, reason = "display needs no 53 bits of precision")]
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
        assert_eq!(parse_seconds("t", 0.0005).unwrap(), Duration::from_millis(1));
        assert_eq!(parse_seconds("t", 1.5).unwrap(), Duration::from_millis(1500));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e12] {
            assert!(parse_seconds("t", bad).is_err(), "{bad}");
        }
    }
}
