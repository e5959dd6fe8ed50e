//! `msb inspect`: everything about a sandbox.

use crate::at::At;
use crate::listing;
use crate::selection::Selection;
use crate::table::ActAt;
use crate::words::Outcome;
use clap::Parser;
use msb_spec::Result;

/// Prints the Plan and the state of sandboxes as JSON.
#[derive(Debug, Parser)]
#[command(override_usage = "msb inspect NAME...")]
pub(crate) struct Inspect {
    #[command(flatten)]
    which: Selection,
    /// Print JSON (always so; for symmetry with the other listings)
    #[arg(long)]
    json: bool,
}

impl ActAt for Inspect {
    fn act_at(self, at: &At) -> Outcome {
        let api = at.api()?;
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
