//! The npm package with the tools that the dialect `microsandbox` copies.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::bench::bench_dir::{BenchDir, give};
use crate::bench::stopwatch::Argv;
use crate::workspace;

const PACKAGE: &str = "microsandbox-mcp";
const SDK: &str = "@modelcontextprotocol/sdk";

/// The least that a server in Node.js can be: what the package is before it has any tools.
const LEAST: &str = r#"
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { ListToolsRequestSchema } from "@modelcontextprotocol/sdk/types.js";
const server = new Server({ name: "least", version: "1" }, { capabilities: { tools: {} } });
server.setRequestHandler(ListToolsRequestSchema, async () => ({ tools: [] }));
await server.connect(new StdioServerTransport());
"#;

/// Where both are, or why one is not.
pub(super) struct Node {
    package: Result<Argv, String>,
    alone: Result<Argv, String>,
}

impl Node {
    /// Installs both from npm; without that there are only our own figures.
    pub(super) fn install(bench_dir: &BenchDir) -> Result<Self> {
        let directory = bench_dir.directory(&bench_dir.root)?;
        let install = |below: &str, name: &str| -> Result<String, String> {
            let at = format!("{directory}/{below}");
            let mut npm = Command::new("npm");
            npm.args([
                "install",
                "--loglevel",
                "error",
                "--no-audit",
                "--no-fund",
                "--prefix",
                &at,
                name,
            ]);
            let output = npm.output().map_err(|error| format!("npm: {error}"))?;
            match output.status.success() {
                true => Ok(at),
                false => Err(format!("`npm install {name}` failed: {}", told(&output.stderr))),
            }
        };
        let package = install("package", PACKAGE)
            .map(|at| words(&format!("{at}/node_modules/{PACKAGE}/bin/{PACKAGE}.js")));
        let alone = match install("alone", SDK) {
            Ok(at) => {
                let script = format!("{at}/least.mjs");
                fs::write(&script, LEAST).context("cannot write a script")?;
                Ok(words(&script))
            }
            Err(error) => Err(error),
        };
        give(directory.as_ref(), bench_dir.user.name)?;
        Ok(Self { package, alone })
    }

    pub(super) fn package(&self) -> Result<Argv> {
        or_why_not(&self.package)
    }

    pub(super) fn alone(&self) -> Result<Argv> {
        or_why_not(&self.alone)
    }
}

fn or_why_not(argv: &Result<Argv, String>) -> Result<Argv> {
    match argv {
        Ok(argv) => Ok(argv.clone()),
        Err(why) => bail!("{why}"),
    }
}

fn words(script: &str) -> Argv {
    let node = workspace::output(Command::new("sh").args(["-c", "command -v node"]));
    let node = node.map_or_else(|_| "node".to_owned(), |path| path.trim().to_owned());
    vec![node, script.to_owned()]
}

/// The first line that says what is wrong.
fn told(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let wrong = text.lines().filter(|line| line.contains("error"));
    wrong.take(2).collect::<Vec<_>>().join("; ")
}
