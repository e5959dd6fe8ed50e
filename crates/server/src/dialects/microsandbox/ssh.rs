//! A command as SSH would run it: by the login shell of a user, in its home.

use super::envelope::{Failure, Outcome};
use super::exec::{TERMINAL, said};
use super::selector::named;
use super::{Microsandbox, read};
use crate::dialect::Call;
use crate::exec;
use msb_api::Account;
use msb_spec::{Command, Name, Span, Stdin, UserRef};
use serde::Deserialize;

/// What a terminal is where nobody says which.
const TERM: &str = "xterm";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    name: String,
    command: String,
    user: Option<String>,
    term: Option<String>,
    #[serde(default)]
    tty: bool,
    max_bytes: Option<u64>,
}

impl Microsandbox {
    pub(super) fn sandbox_ssh_exec(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let name = named(&asked.name)?;
        if asked.command.is_empty() || asked.command.contains('\0') {
            return Err(Failure::new("command is empty or holds a zero byte"));
        }
        if asked.term.as_ref().is_some_and(|term| term.contains('\0')) {
            return Err(Failure::new("term holds a zero byte"));
        }
        let user = self.login(&name, asked.user.as_deref())?;
        let api = self.world.api.as_ref();
        let account = Account::find(api, &name, user.as_ref().map_or("root", UserRef::user))?;
        let term = asked.term.or_else(|| asked.tty.then(|| TERM.to_owned()));
        let env = term.map(|term| ("TERM".to_owned(), term)).into_iter().collect();
        let limit = self.settings.default_timeout;
        let login = account.command(Some(&asked.command), asked.tty.then_some(TERMINAL), env);
        let command = Command { stdin: Stdin::Closed, user, timeout: Some(Span(limit)), ..login };
        let bytes = self.settings.limit(asked.max_bytes);
        let captured = exec::run(api, &name, command, None, bytes, &call.cancel)?;
        Ok(said(&captured, limit, false)?.renamed("exitCode", "status"))
    }

    /// Who it is: whoever is named, or the sandbox's own user.
    pub(super) fn login(
        &self,
        name: &Name,
        user: Option<&str>,
    ) -> Result<Option<UserRef>, Failure> {
        match user {
            Some(user) => Ok(Some(UserRef::parse(user)?)),
            // One that is not there says so when something is asked of it.
            None => Ok(self.world.api.sandbox_inspect(name).ok().and_then(|it| it.plan.user)),
        }
    }
}
