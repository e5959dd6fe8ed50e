//! Variables that every command of a sandbox sees: a file inside that its shell reads first.

use super::Surface;
use super::commands::Ask;
use super::shell::ENV_FILE;
use super::text::quoted;
use crate::dialect::Call;
use msb_api::Place;
use msb_spec::{Error, Kind, Result};
use serde::Deserialize;

/// To forget a variable takes no time.
const LIMIT: f64 = 10.0;
/// More than all variables of a command may take together.
const ENV_FILE_LIMIT: u64 = 1 << 20;

#[derive(Debug, Deserialize)]
pub(super) struct Env {
    action: String,
    key: String,
    value: String,
    sandbox: String,
}

impl Surface {
    pub(super) fn env(&self, call: &Call, asked: &Env) -> Result<String> {
        let (key, sandbox) = (&asked.key, &asked.sandbox);
        if asked.action != "list" && !is_key(key) {
            return Ok(format!("Error: invalid env key '{key}' (must be [A-Za-z_][A-Za-z0-9_]*)"));
        }
        if asked.value.contains('\0') {
            return Err(Error::invalid("a variable has no NUL"));
        }
        let live = self.used(call, sandbox)?;
        let at = Place::sandbox(&live.name);
        let mut all = self.variables(&at)?;
        match asked.action.as_str() {
            "list" if all.is_empty() => Ok("No persistent env vars set. \
                Use env(action='set', key='FOO', value='bar')."
                .to_owned()),
            "list" => {
                let all: Vec<&str> = all.iter().map(|(_, line)| line.as_str()).collect();
                Ok(format!("Persistent env vars in '{sandbox}':\n{}", all.join("\n")))
            }
            "set" => {
                all.retain(|(other, _)| other != key);
                all.push((key.clone(), format!("export {key}={}", quoted(&asked.value))));
                self.keep_variables(&at, &all)?;
                Ok(format!("Set {key} in '{sandbox}' (persists across commands)"))
            }
            "unset" => {
                all.retain(|(other, _)| other != key);
                self.keep_variables(&at, &all)?;
                // The shell has it from before.
                let command = format!("unset {key}");
                self.run_quietly(call, &live, &Ask::new(&command, LIMIT))?;
                Ok(format!("Unset {key} in '{sandbox}'"))
            }
            other => Ok(format!("Error: unknown action '{other}'. Use set, unset, or list.")),
        }
    }

    /// Each variable with what sets it, which may have several lines.
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
            // Inside of a value a line may begin like that, too.
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
