//! Installing packages with whatever the image has for that.

use super::Surface;
use super::commands::Ask;
use super::text::{chomped, exact, quoted};
use crate::dialect::Call;
use msb_spec::{Error, Kind, Result};
use serde::Deserialize;

/// Downloads take long.
const LIMIT: f64 = 120.0;
/// Lines of what a package manager says.
const MOST_LINES: usize = 5;

/// Package managers in the order in which they are looked for: the program, how it is called, and what
/// stands before the packages. Those of a distribution know the host's own files, which a sandbox of `host` has
/// only a view of, so there it is pip, which is told that nobody upgrades a sandbox.
const WAYS: [(&str, &str); 5] = [
    ("apk", "apk add --no-cache"),
    ("apt-get", "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq"),
    ("dnf", "dnf install -y -q"),
    ("python3", "PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install"),
    ("npm", "npm install -g"),
];

#[derive(Debug, Deserialize)]
pub(super) struct Install {
    packages: String,
    sandbox: String,
}

impl Surface {
    pub(super) fn install(&self, call: &Call, asked: &Install) -> Result<String> {
        let words: Vec<&str> = asked.packages.split_whitespace().collect();
        if words.is_empty() {
            return Err(Error::invalid("no packages are named"));
        }
        if let Some(option) = words.iter().find(|word| word.starts_with('-')) {
            return Err(Error::invalid(format!("not the name of a package: `{option}`"))
                .hint("options are refused; use exec to call the package manager yourself"));
        }
        let live = self.used(call, &asked.sandbox)?;
        let is_host = self.of(&live)?.summary.image == "host";
        let ways: Vec<&(&str, &str)> = WAYS
            .iter()
            .filter(|(program, _)| !is_host || matches!(*program, "python3" | "npm"))
            .collect();
        let names: Vec<&str> = ways.iter().map(|(program, _)| *program).collect();
        let find = format!(
            "for p in {}; do command -v $p >/dev/null 2>&1 && echo $p && break; done",
            names.join(" ")
        );
        let found = self.run_quietly(call, &live, &Ask::new(&find, LIMIT))?;
        let Some((program, way)) = ways.iter().find(|(program, _)| *program == found.stdout.trim())
        else {
            return Err(Error::new(Kind::Unsupported, "there is no package manager in this image")
                .hint(format!("looked for {}", names.join(", "))));
        };
        let quoted: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        let command = format!("{way} {}", quoted.join(" "));
        let output = self.run_quietly(call, &live, &Ask::new(&command, LIMIT))?;
        self.ledger.add(&live.name, &command, output.status, output.taken);
        let taken = exact(output.taken);
        if output.status != 0 {
            let said =
                if output.stderr.trim().is_empty() { &output.stdout } else { &output.stderr };
            return Ok(format!("Error: {}\n{taken}", chomped(said)));
        }
        let told = |line: &&str| {
            *program == "apk" && (line.contains("OK:") || line.contains("Installing"))
        };
        let lines: Vec<&str> = output.stdout.lines().filter(told).collect();
        let lines = &lines[lines.len().saturating_sub(MOST_LINES)..];
        Ok(match lines.is_empty() {
            true => format!("Installed {}\n{taken}", words.join(" ")),
            false => format!("{}\n{taken}", lines.join("\n")),
        })
    }
}
