//! Cloning repositories. A token is read by Git from a file that is there for this once: it is in no command,
//! no remote, no variable and no history.

use super::Surface;
use super::commands::{Ask, Output};
use super::files::inside;
use super::live::hex;
use super::shell::WORKSPACE;
use super::text::{chomped, exact, quoted};
use crate::dialect::Call;
use msb_api::Place;
use msb_spec::{Error, Result};
use serde::Deserialize;
use std::time::Instant;

/// Large repositories take long.
const LIMIT: f64 = 300.0;

#[derive(Deserialize)]
pub(super) struct Clone {
    repo: String,
    branch: String,
    token: String,
    path: String,
    shallow: bool,
    sandbox: String,
}

impl Surface {
    pub(super) fn git_clone(&self, call: &Call, asked: &Clone) -> Result<String> {
        let begun = Instant::now();
        for (what, word) in [("repo", &asked.repo), ("branch", &asked.branch)] {
            if word.starts_with('-') || word.contains(['\0', '\n']) {
                return Err(Error::invalid(format!("not a {what}: `{}`", msb_spec::shown(word))));
            }
        }
        if asked.repo.is_empty() || asked.token.contains(['\0', '\n', '\r']) {
            return Err(Error::invalid("a repository and a token are single lines"));
        }
        // One that is part of the address is no secret any more: it would be in the remote.
        if has_password(&asked.repo) {
            return Err(Error::invalid("the address of the repository holds a password")
                .hint("leave it out and give it as `token`"));
        }
        let origin = origin(&asked.repo);
        if !asked.token.is_empty() && origin.is_none() {
            return Err(Error::invalid("a token is for repositories at https:// or http://"));
        }
        let live = self.used(call, &asked.sandbox)?;
        let at = Place::sandbox(&live.name);
        let path = self.target(&at, asked);
        let credentials = format!("/tmp/.mcp-git-{}", hex());
        let mut helper = String::new();
        if let Some(origin) = origin.filter(|_| !asked.token.is_empty()) {
            let told = format!("username=x-access-token\npassword={}\n", asked.token);
            let mut told = told.as_bytes();
            self.api().file_write(&at, credentials.as_bytes(), 0o600, false, &mut told)?;
            // For this place alone: whoever the repository is moved to gets nothing.
            // Git adds a word to the command, which is nothing to `cat`.
            let setting = quoted(&format!("credential.{origin}.helper=!cat {credentials} #"));
            helper = format!("-c credential.helper= -c {setting} ");
        }
        let mut options = String::new();
        if asked.shallow {
            options.push_str("--depth 1 ");
        }
        if !asked.branch.is_empty() {
            options.push_str(&format!("--branch {} ", quoted(&asked.branch)));
        }
        let (repo, into) = (quoted(&asked.repo), quoted(&path));
        let command = format!("git {helper}clone -q {options}-- {repo} {into}");
        let command = format!("GIT_TERMINAL_PROMPT=0 {command}");
        let cloned =
            self.run_quietly(call, &live, &Ask { workdir: "/", ..Ask::new(&command, LIMIT) });
        if !asked.token.is_empty() {
            // It must not stay, however this ended.
            self.api().file_remove(&at, credentials.as_bytes(), false)?;
        }
        let output = cloned?;
        if asked.token.is_empty() {
            let noted = format!("git clone {options}{repo} {into}");
            self.ledger.add(&live.name, &noted, output.status, output.taken);
        }
        let hidden = |text: &str| match asked.token.as_str() {
            "" => text.to_owned(),
            token => text.replace(token, "***"),
        };
        let failed = |output: &Output| {
            let said = hidden(chomped(&output.stderr));
            format!("Error cloning: {said}\n{}", exact(begun.elapsed()))
        };
        if output.status != 0 {
            return Ok(failed(&output));
        }
        let look =
            format!("git -C {into} log --oneline -1; git -C {into} ls-files | wc -l | tr -d ' '");
        let looked =
            self.run_quietly(call, &live, &Ask { workdir: "/", ..Ask::new(&look, LIMIT) })?;
        let said = looked.stdout.trim_end();
        let (log, files) = said.rsplit_once('\n').unwrap_or(("", said));
        let taken = exact(begun.elapsed());
        Ok(format!("Cloned {} -> {path}\n{log}\n{files} files\n{taken}", asked.repo))
    }

    /// Where it goes: a directory that holds something already gets it by its name.
    fn target(&self, at: &Place, asked: &Clone) -> String {
        let path = inside(&asked.path);
        let name = asked.repo.trim_end_matches('/').rsplit(['/', ':']).next().unwrap_or_default();
        let name = name.strip_suffix(".git").unwrap_or(name);
        let full = self.api().file_list(at, path.as_bytes()).is_ok_and(|all| !all.is_empty());
        match (path.trim_end_matches('/') == WORKSPACE || full) && !name.is_empty() {
            true => format!("{}/{name}", path.trim_end_matches('/')),
            false => path,
        }
    }
}

/// Where an address of the web leads, without the path.
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
