//! `msb net`: open flows of a sandbox, and rules for what it may connect to.

use crate::listing::{self, Listing};
use crate::net_text;
use crate::output::{self, Outcome};
use crate::target::Target;
use crate::verb_table::TargetVerb;
use clap::Parser;
use msb_spec::{Bytes, Error, Name, Result, Rule};
use msb_wire::NetTable;

/// Shows open connections and the rules in force; with flags, puts rules before them.
#[derive(Debug, Parser)]
#[command(override_usage = "msb net [OPTIONS] NAME")]
pub(crate) struct NetArgs {
    /// Name of the sandbox
    #[arg(value_name = "NAME")]
    name: String,
    /// Allow a target, as in `example.com` or `10.0.0.0/8:tcp:22`, until the sandbox stops
    #[arg(long, value_name = "TARGET")]
    allow: Vec<String>,
    /// Refuse a target, and end what is open to it
    #[arg(long, value_name = "TARGET")]
    deny: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl TargetVerb for NetArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let name = Name::parse(&self.name)?;
        let rules = self.rules()?;
        if !rules.is_empty() {
            let policy = api.network_allow(&name, &rules)?;
            if self.json {
                listing::json(&policy);
            } else {
                for rule in &policy.rules {
                    output::print(rule);
                }
                output::print(format!("{} everything else", policy.default));
            }
            return Ok(0);
        }
        let table = api.network_table(&name)?;
        if self.json {
            listing::json(&table);
        } else {
            show(&table);
        }
        Ok(0)
    }
}

impl NetArgs {
    /// Refusals first: with both given, the refusal is the exception.
    fn rules(&self) -> Result<Vec<Rule>> {
        let rule = |decision: &str, target: &String| match target.contains('@') {
            true => Err(Error::invalid(format!("not a target: `{target}`"))
                .hint("write `--allow example.com`, without `allow@`")),
            false => Rule::parse(&format!("{decision}@{target}")),
        };
        let deny = self.deny.iter().map(|target| rule("deny", target));
        deny.chain(self.allow.iter().map(|target| rule("allow", target))).collect()
    }
}

fn show(table: &NetTable) {
    if let Some(policy) = &table.policy {
        for rule in &policy.rules {
            output::print(format!("rule  {rule}"));
        }
        output::print(format!("rule  {} everything else", policy.default));
    }
    for port in &table.ports {
        output::print(format!("port  {port}"));
    }
    if table.flows.is_empty() {
        return;
    }
    output::print("");
    let mut listing = Listing::new(&["FLOW", "KIND", "WITH", "RULE", "OUT", "IN", "AGE"]);
    for flow in &table.flows {
        listing.row(&[
            flow.verdict.flow.to_string(),
            net_text::kind(flow.verdict.kind).to_owned(),
            net_text::whom(&flow.verdict),
            flow.verdict.rule.clone(),
            Bytes(flow.sent).to_string(),
            Bytes(flow.received).to_string(),
            format!("{}s", flow.age / 1000),
        ]);
    }
    listing.print();
}
