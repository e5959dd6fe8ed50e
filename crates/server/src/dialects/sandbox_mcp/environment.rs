//! Persistent environment variables: a file in the sandbox that the shell sources before each
//! command.

use super::SandboxMcpState;
use super::commands::ShellCommand;
use super::format::quoted;
use super::shell::ENV_FILE;
use crate::dialect::ToolCall;
use msb_api::Place;
use msb_spec::{Error, Kind, Result};
use serde::Deserialize;

/// Timeout in seconds of the internal `unset` command.
const LIMIT: f64 = 10.0;
/// Largest file of variables in bytes; the kernel accepts fewer bytes of environment.
const ENV_FILE_LIMIT: u64 = 1 << 20;

#[derive(Debug, Deserialize)]
pub(super) struct EnvArgs {
    action: String,
    key: String,
    value: String,
    sandbox: String,
}

impl SandboxMcpState {
    pub(super) fn env(&self, call: &ToolCall, args: &EnvArgs) -> Result<String> {
        let (key, sandbox) = (&args.key, &args.sandbox);
        if args.action != "list" && !is_key(key) {
            return Ok(format!("Error: invalid env key '{key}' (must be [A-Za-z_][A-Za-z0-9_]*)"));
        }
        if args.value.contains('\0') {
            return Err(Error::invalid("a variable must not contain NUL"));
        }
        let handle = self.ensure_active(call, sandbox)?;
        let at = Place::sandbox(&handle.name);
        let mut all = self.variables(&at)?;
        match args.action.as_str() {
            "list" if all.is_empty() => Ok("No persistent env vars set. \
                Use env(action='set', key='FOO', value='bar')."
                .to_owned()),
            "list" => {
                let all: Vec<&str> = all.iter().map(|(_, line)| line.as_str()).collect();
                Ok(format!("Persistent env vars in '{sandbox}':\n{}", all.join("\n")))
            }
            "set" => {
                all.retain(|(other, _)| other != key);
                all.push((key.clone(), format!("export {key}={}", quoted(&args.value))));
                self.keep_variables(&at, &all)?;
                Ok(format!("Set {key} in '{sandbox}' (persists across commands)"))
            }
            "unset" => {
                all.retain(|(other, _)| other != key);
                self.keep_variables(&at, &all)?;
                // The running shell still has it from before.
                let command = format!("unset {key}");
                self.run_quietly(call, &handle, &ShellCommand::new(&command, LIMIT))?;
                Ok(format!("Unset {key} in '{sandbox}'"))
            }
            other => Ok(format!("Error: unknown action '{other}'. Use set, unset, or list.")),
        }
    }

    /// Each variable with the line that exports it; a value may contain line feeds.
    fn variables(&self, at: &Place) -> Result<Vec<(String, String)>> {
        let mut bytes = Vec::new();
        let most = Some(ENV_FILE_LIMIT + 1);
        let read = self.api().file_read(at, ENV_FILE.as_bytes(), 0, most, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        });
        match read {
            Err(error) if error.kind() == Kind::NotFound => return Ok(Vec::new()),
            read => read?,
        }
        if bytes.len() as u64 > ENV_FILE_LIMIT {
            return Err(Error::new(Kind::Limit, format!("more than 1 MiB in `{ENV_FILE}`")));
        }
        let text = String::from_utf8_lossy(&bytes);
        let mut all: Vec<(String, String)> = Vec::new();
        for line in text.lines() {
            let key = line.strip_prefix("export ").and_then(|rest| rest.split_once('='));
            // A line inside a quoted value may look like that, too.
            let whole = all.last().is_none_or(|(_, text)| text.matches('\'').count() % 2 == 0);
            match (key, all.last_mut()) {
                (Some((key, _)), _) if whole => all.push((key.to_owned(), line.to_owned())),
                (_, Some((_, text))) => {
                    text.push('\n');
                    text.push_str(line);
                }
                (_, None) => {}
            }
        }
        Ok(all)
    }

    fn keep_variables(&self, at: &Place, all: &[(String, String)]) -> Result<()> {
        let text: String = all.iter().map(|(_, line)| format!("{line}\n")).collect();
        self.api().file_mkdir(at, b"/etc/profile.d", true)?;
        let mut bytes = text.as_bytes();
        self.api().file_write(at, ENV_FILE.as_bytes(), 0o644, false, &mut bytes).map(drop)
    }
}

fn is_key(key: &str) -> bool {
    let starts = key.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    starts && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
