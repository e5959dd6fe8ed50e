//! `msb completion`: completions for a shell.

use crate::output::{self, Outcome};
use crate::verb_table::{LocalVerb, whole};
use clap::Parser;
use clap_complete::Shell;

/// Prints completions for a shell.
#[derive(Debug, Parser)]
#[command(override_usage = "msb completion bash|zsh|fish")]
pub(crate) struct CompletionArgs {
    /// Which shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl LocalVerb for CompletionArgs {
    fn run(self) -> Outcome {
        let mut out = Vec::new();
        clap_complete::generate(self.shell, &mut whole(), "msb", &mut out);
        output::write_stdout(&out);
        Ok(0)
    }
}
