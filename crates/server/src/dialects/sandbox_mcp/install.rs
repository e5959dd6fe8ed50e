//! Installs packages with the package manager of the image.

use super::SandboxMcpState;
use super::commands::ShellCommand;
use super::format::{chomped, exact, quoted};
use crate::dialect::ToolCall;
use msb_spec::{Error, Kind, Result};
use serde::Deserialize;

/// Timeout in seconds for downloads and installation.
const LIMIT: f64 = 120.0;
/// Output lines of the package manager in a result.
const MOST_LINES: usize = 5;

/// Package managers in order of preference: program and command line before the package names.
///
/// With the image `host`, those of the distribution are skipped: their databases describe the files
/// of the host, of which the sandbox has an overlay. pip may then change system packages, because
/// no distribution upgrade runs in a sandbox.
const WAYS: [(&str, &str); 5] = [
    ("apk", "apk add --no-cache"),
    ("apt-get", "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq"),
    ("dnf", "dnf install -y -q"),
    ("python3", "PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install"),
    ("npm", "npm install -g"),
];

#[derive(Debug, Deserialize)]
pub(super) struct InstallArgs {
    packages: String,
    sandbox: String,
}

impl SandboxMcpState {
    pub(super) fn install(&self, call: &ToolCall, args: &InstallArgs) -> Result<String> {
        let words: Vec<&str> = args.packages.split_whitespace().collect();
        if words.is_empty() {
            return Err(Error::invalid("no packages are given"));
        }
        if let Some(option) = words.iter().find(|word| word.starts_with('-')) {
            return Err(Error::invalid(format!("not a package name: `{option}`"))
                .hint("options are not allowed; use exec to call the package manager"));
        }
        let handle = self.ensure_active(call, &args.sandbox)?;
        let is_host = self.listed(&handle)?.summary.image == "host";
        let ways: Vec<&(&str, &str)> = WAYS
            .iter()
            .filter(|(program, _)| !is_host || matches!(*program, "python3" | "npm"))
            .collect();
        let names: Vec<&str> = ways.iter().map(|(program, _)| *program).collect();
        let find = format!(
            "for p in {}; do command -v $p >/dev/null 2>&1 && echo $p && break; done",
            names.join(" ")
        );
        let found = self.run_quietly(call, &handle, &ShellCommand::new(&find, LIMIT))?;
        let Some((program, way)) = ways.iter().find(|(program, _)| *program == found.stdout.trim())
        else {
            return Err(Error::new(
                Kind::Unsupported,
                "this image has no supported package manager",
            )
            .hint(format!("looked for {}", names.join(", "))));
        };
        let quoted: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        let command = format!("{way} {}", quoted.join(" "));
        let output = self.run_quietly(call, &handle, &ShellCommand::new(&command, LIMIT))?;
        self.records.add(&handle.name, &command, output.status, output.taken);
        let taken = exact(output.taken);
        if output.status != 0 {
            let text =
                if output.stderr.trim().is_empty() { &output.stdout } else { &output.stderr };
            return Ok(format!("Error: {}\n{taken}", chomped(text)));
        }
        let text = |line: &&str| {
            *program == "apk" && (line.contains("OK:") || line.contains("Installing"))
        };
        let lines: Vec<&str> = output.stdout.lines().filter(text).collect();
        let lines = &lines[lines.len().saturating_sub(MOST_LINES)..];
        Ok(match lines.is_empty() {
            true => format!("Installed {}\n{taken}", words.join(" ")),
            false => format!("{}\n{taken}", lines.join("\n")),
        })
    }
}
