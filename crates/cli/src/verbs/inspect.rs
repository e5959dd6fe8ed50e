//! `msb inspect`: everything about a sandbox.

use crate::listing;
use crate::output::Outcome;
use crate::selection::Selection;
use crate::target::Target;
use crate::verb_table::TargetVerb;
use clap::Parser;
use msb_spec::Result;

/// Prints the Plan and the state of sandboxes as JSON.
#[derive(Debug, Parser)]
#[command(override_usage = "msb inspect NAME...")]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    which: Selection,
    /// Print JSON (always so; for symmetry with the other listings)
    #[arg(long)]
    json: bool,
}

impl TargetVerb for InspectArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let names = self.which.required(&*api)?;
        let found =
            names.iter().map(|name| api.sandbox_inspect(name)).collect::<Result<Vec<_>>>()?;
        match found.as_slice() {
            [one] => listing::json(one),
            several => listing::json(&several),
        }
        Ok(0)
    }
}
