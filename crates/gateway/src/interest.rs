//! Which names have to be looked into, as a plain value that any thread may hold.

use msb_spec::{DomainName, NamePattern, PlannedSecret, Policy};

/// The names whose flows are intercepted: those with rules for requests and those that may get a
/// Secret, unless they are never to be looked into.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Interest {
    wanted: Vec<NamePattern>,
    bypass: Vec<NamePattern>,
}

impl Interest {
    /// Made again whenever the rules change.
    pub(crate) fn of<'a>(
        policy: &Policy,
        secrets: impl IntoIterator<Item = &'a PlannedSecret>,
        bypass: &[NamePattern],
    ) -> Self {
        let hosts = secrets.into_iter().flat_map(|planned| &planned.secret.hosts);
        let mut wanted: Vec<_> = policy.names_with_http_rules().chain(hosts).cloned().collect();
        wanted.sort();
        wanted.dedup();
        Self { wanted, bypass: bypass.to_vec() }
    }

    /// Whether flows to `name` go through the Interceptor.
    pub(crate) fn must_intercept(&self, name: &DomainName) -> bool {
        let among = |patterns: &[NamePattern]| patterns.iter().any(|one| one.matches(name));
        among(&self.wanted) && !among(&self.bypass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::{Decision, Rule, Secret};

    #[test]
    fn only_names_that_need_it_are_looked_into() {
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
        let interest = Interest::of(&policy, [&secret], &bypass);
        for (name, wanted) in [
            ("ruled.example", true),
            ("api.example", true),
            ("a.keys.example", true),
            ("keys.example", false),
            ("pinned.keys.example", false),
            ("free.example", false),
            ("other.example", false),
        ] {
            let name = DomainName::parse(name).unwrap();
            assert_eq!(interest.must_intercept(&name), wanted, "{name}");
        }
    }
}
