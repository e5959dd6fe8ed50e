//! `msb completion`: completions for a shell.

use crate::table::{Act, whole};
use crate::words::{self, Outcome};
use clap::Parser;
use clap_complete::Shell;

/// Prints completions for a shell.
#[derive(Debug, Parser)]
#[command(override_usage = "msb completion bash|zsh|fish")]
pub(crate) struct Completion {
    /// Which shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Act for Completion {
    fn act(self) -> Outcome {
        let mut out = Vec::new();
        clap_complete::generate(self.shell, &mut whole(), "msb", &mut out);
        words::stdout(&out);
        Ok(0)
    }
}
