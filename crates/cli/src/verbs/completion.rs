//! `msb completion`: completions for a shell.

use crate::completion;
use crate::output::{self, Outcome};
use crate::verb_table::LocalVerb;
use clap::{Parser, ValueEnum};

/// Prints completions for a shell.
#[derive(Debug, Parser)]
#[command(override_usage = "msb completion bash|zsh|fish")]
pub(crate) struct CompletionArgs {
    /// Which shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Fish,
    Zsh,
}

impl LocalVerb for CompletionArgs {
    fn run(self) -> Outcome {
        let script = match self.shell {
            Shell::Bash => completion::BASH,
            Shell::Fish => completion::FISH,
            Shell::Zsh => completion::ZSH,
        };
        output::write_stdout(script.as_bytes());
        Ok(0)
    }
}
