//! `msb discard`: what was changed in a workspace is forgotten.

use super::diff::{counted, paths};
use crate::at::At;
use crate::table::ActAt;
use crate::words::{self, Outcome};
use clap::Parser;
use msb_spec::Name;
use std::path::PathBuf;

/// Forgets what a stopped sandbox has changed in its workspace; it sees the host's files again.
#[derive(Debug, Parser)]
#[command(override_usage = "msb discard NAME [PATH...]")]
pub(crate) struct Discard {
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

impl ActAt for Discard {
    fn act_at(self, at: &At) -> Outcome {
        let api = at.api()?;
        let name = Name::parse(&self.name)?;
        let paths = paths(&*api, &name, &self.paths)?;
        let count = api.workspace_discard(&name, &paths)?;
        if !self.quiet {
            words::note(format!("forgot {}", counted(count, "change", "changes")));
        }
        Ok(0)
    }
}
