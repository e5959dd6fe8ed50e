//! The set of names that are intercepted, as a plain value.

use msb_spec::{DomainName, NamePattern, PlannedSecret, Policy};

/// Names that are intercepted: those with HTTP rules and those that may get a Secret, but for
/// bypassed ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct InterceptSet {
    intercepted: Vec<NamePattern>,
    bypass: Vec<NamePattern>,
}

impl InterceptSet {
    /// Builds the set; built again whenever the rules change.
    pub(crate) fn new<'a>(
        policy: &Policy,
        secrets: impl IntoIterator<Item = &'a PlannedSecret>,
        bypass: &[NamePattern],
    ) -> Self {
        let hosts = secrets.into_iter().flat_map(|planned| &planned.secret.hosts);
        let mut intercepted: Vec<_> =
            policy.names_with_http_rules().chain(hosts).cloned().collect();
        intercepted.sort();
        intercepted.dedup();
        Self { intercepted, bypass: bypass.to_vec() }
    }

    /// Whether flows to `name` go through the Interceptor.
    pub(crate) fn must_intercept(&self, name: &DomainName) -> bool {
        let any_matches = |patterns: &[NamePattern]| patterns.iter().any(|one| one.matches(name));
        any_matches(&self.intercepted) && !any_matches(&self.bypass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::{Decision, Rule, Secret};

    #[test]
    fn only_names_that_need_it_are_intercepted() {
        let rules = ["allow@ruled.example:http:GET:/", "allow@free.example", "deny@public"];
        let policy = Policy {
            rules: rules.iter().map(|rule| Rule::parse(rule).unwrap()).collect(),
            default: Decision::Deny,
        };
        let secret = PlannedSecret {
            secret: Secret::parse("KEY@api.example,*.keys.example").unwrap(),
            placeholder: "placeholder".to_owned(),
        };
        let bypass = [NamePattern::parse("pinned.keys.example").unwrap()];
        let set = InterceptSet::new(&policy, [&secret], &bypass);
        for (name, intercepted) in [
            ("ruled.example", true),
            ("api.example", true),
            ("a.keys.example", true),
            ("keys.example", false),
            ("pinned.keys.example", false),
            ("free.example", false),
            ("other.example", false),
        ] {
            let name = DomainName::parse(name).unwrap();
            assert_eq!(set.must_intercept(&name), intercepted, "{name}");
        }
    }
}
