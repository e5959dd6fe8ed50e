//! `msb discard`: what was changed in a workspace is forgotten.

use super::diff::{counted, paths, tell_rest};
use crate::output::{self, Outcome};
use crate::target::Target;
use crate::verb_table::TargetVerb;
use clap::Parser;
use msb_spec::Name;
use std::path::PathBuf;

/// Forgets what a stopped sandbox has changed in its workspace; it sees the host's files again.
#[derive(Debug, Parser)]
#[command(override_usage = "msb discard NAME [PATH...]")]
pub(crate) struct DiscardArgs {
    /// Name of the sandbox
    #[arg(value_name = "NAME")]
    name: String,
    /// Only what lies there
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Say nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

impl TargetVerb for DiscardArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let name = Name::parse(&self.name)?;
        let paths = paths(&*api, &name, &self.paths)?;
        let count = api.workspace_discard(&name, &paths)?;
        if !self.quiet {
            output::note(format!("forgot {}", counted(count, "change", "changes")));
            tell_rest(&*api, &name);
        }
        Ok(0)
    }
}
