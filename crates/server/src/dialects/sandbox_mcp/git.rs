//! Clones Git repositories. Git reads a token from a temporary file, so the token is in no command
//! line, remote URL, environment variable or history.

use super::SandboxMcpState;
use super::active::hex;
use super::commands::{CommandOutput, ShellCommand};
use super::files::inside;
use super::format::{chomped, exact, quoted};
use super::shell::WORKSPACE;
use crate::dialect::ToolCall;
use msb_api::Place;
use msb_spec::{Error, Result};
use serde::Deserialize;
use std::time::Instant;

/// Timeout in seconds for a clone.
const LIMIT: f64 = 300.0;

#[derive(Deserialize)]
pub(super) struct GitCloneArgs {
    repo: String,
    branch: String,
    token: String,
    path: String,
    shallow: bool,
    sandbox: String,
}

impl SandboxMcpState {
    pub(super) fn git_clone(&self, call: &ToolCall, args: &GitCloneArgs) -> Result<String> {
        let started = Instant::now();
        for (what, word) in [("repo", &args.repo), ("branch", &args.branch)] {
            if word.starts_with('-') || word.contains(['\0', '\n']) {
                return Err(Error::invalid(format!("not a {what}: `{}`", msb_spec::shown(word))));
            }
        }
        if args.repo.is_empty() || args.token.contains(['\0', '\n', '\r']) {
            return Err(Error::invalid("a repository and a token must be single lines"));
        }
        // A password in the URL would be stored in the remote of the clone.
        if has_password(&args.repo) {
            return Err(Error::invalid("the repository URL contains a password")
                .hint("leave it out and give it as `token`"));
        }
        let origin = origin(&args.repo);
        if !args.token.is_empty() && origin.is_none() {
            return Err(Error::invalid("a token needs a repository URL with https:// or http://"));
        }
        let handle = self.ensure_active(call, &args.sandbox)?;
        let at = Place::sandbox(&handle.name);
        let path = self.target(&at, args);
        let credentials = format!("/tmp/.mcp-git-{}", hex());
        let mut helper = String::new();
        if let Some(origin) = origin.filter(|_| !args.token.is_empty()) {
            let text = format!("username=x-access-token\npassword={}\n", args.token);
            let mut text = text.as_bytes();
            self.api().file_write(&at, credentials.as_bytes(), 0o600, false, &mut text)?;
            // Only for this origin: a server that the repository redirects to gets no token.
            // Git appends an argument to the helper command, which the `#` comments out.
            let setting = quoted(&format!("credential.{origin}.helper=!cat {credentials} #"));
            helper = format!("-c credential.helper= -c {setting} ");
        }
        let mut options = String::new();
        if args.shallow {
            options.push_str("--depth 1 ");
        }
        if !args.branch.is_empty() {
            options.push_str(&format!("--branch {} ", quoted(&args.branch)));
        }
        let (repo, into) = (quoted(&args.repo), quoted(&path));
        let command = format!("git {helper}clone -q {options}-- {repo} {into}");
        let command = format!("GIT_TERMINAL_PROMPT=0 {command}");
        let cloned = self.run_quietly(
            call,
            &handle,
            &ShellCommand { workdir: "/", ..ShellCommand::new(&command, LIMIT) },
        );
        if !args.token.is_empty() {
            // The file with the token is removed on success and on failure.
            self.api().file_remove(&at, credentials.as_bytes(), false)?;
        }
        let output = cloned?;
        if args.token.is_empty() {
            let noted = format!("git clone {options}{repo} {into}");
            self.records.add(&handle.name, &noted, output.status, output.taken);
        }
        let hidden = |text: &str| match args.token.as_str() {
            "" => text.to_owned(),
            token => text.replace(token, "***"),
        };
        let failed = |output: &CommandOutput| {
            let text = hidden(chomped(&output.stderr));
            format!("Error cloning: {text}\n{}", exact(started.elapsed()))
        };
        if output.status != 0 {
            return Ok(failed(&output));
        }
        let look =
            format!("git -C {into} log --oneline -1; git -C {into} ls-files | wc -l | tr -d ' '");
        let looked = self.run_quietly(
            call,
            &handle,
            &ShellCommand { workdir: "/", ..ShellCommand::new(&look, LIMIT) },
        )?;
        let text = looked.stdout.trim_end();
        let (log, files) = text.rsplit_once('\n').unwrap_or(("", text));
        let taken = exact(started.elapsed());
        Ok(format!("Cloned {} -> {path}\n{log}\n{files} files\n{taken}", args.repo))
    }

    /// The destination: a subdirectory if the directory is not empty.
    fn target(&self, at: &Place, args: &GitCloneArgs) -> String {
        let path = inside(&args.path);
        let name = args.repo.trim_end_matches('/').rsplit(['/', ':']).next().unwrap_or_default();
        let name = name.strip_suffix(".git").unwrap_or(name);
        let full = self.api().file_list(at, path.as_bytes()).is_ok_and(|all| !all.is_empty());
        match (path.trim_end_matches('/') == WORKSPACE || full) && !name.is_empty() {
            true => format!("{}/{name}", path.trim_end_matches('/')),
            false => path,
        }
    }
}

/// Scheme and host of a web URL, without its path.
fn origin(repo: &str) -> Option<String> {
    let (scheme, rest) = repo.split_once("://")?;
    let place = rest.split('/').next().filter(|place| !place.is_empty())?;
    let host = place.rsplit_once('@').map_or(place, |(_, host)| host);
    matches!(scheme, "https" | "http").then(|| format!("{scheme}://{host}"))
}

/// Whether an address is like `https://user:password@host/`.
fn has_password(repo: &str) -> bool {
    let Some((_, rest)) = repo.split_once("://") else { return false };
    let place = rest.split('/').next().unwrap_or_default();
    place.rsplit_once('@').is_some_and(|(user, _)| user.contains(':') || user.starts_with("gh"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_for_one_place_of_the_web() {
        let https = origin("https://user@example.com:8443/a/b.git");
        assert_eq!(https.as_deref(), Some("https://example.com:8443"));
        for none in ["git@example.com:a/b.git", "/workspace/r", "ssh://example.com/a", "https://"] {
            assert_eq!(origin(none), None, "{none}");
        }
    }

    #[test]
    fn passwords_in_addresses_are_seen() {
        for (repo, has) in [
            ("https://example.com/a/b.git", false),
            ("https://user:secret@example.com/a.git", true),
            ("https://ghp_abc@github.com/a.git", true),
            ("https://user@example.com/a.git", false),
            ("git@example.com:a/b.git", false),
            ("/workspace/a:b@c", false),
        ] {
            assert_eq!(has_password(repo), has, "{repo}");
        }
    }
}
