//! Runs a command as SSH does: by the login shell of a user, in the home directory.

use super::envelope::{Outcome, ToolFailure};
use super::exec::{TERMINAL, command_result};
use super::selector::named;
use super::{Microsandbox, read};
use crate::dialect::ToolCall;
use crate::exec;
use msb_api::Account;
use msb_spec::{Command, Name, Span, Stdin, UserRef};
use serde::Deserialize;

/// The default terminal type.
const TERM: &str = "xterm";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SshParams {
    name: String,
    command: String,
    user: Option<String>,
    term: Option<String>,
    #[serde(default)]
    tty: bool,
    max_bytes: Option<u64>,
}

impl Microsandbox {
    pub(super) fn sandbox_ssh_exec(&self, call: &ToolCall) -> Outcome {
        let params: SshParams = read(call)?;
        let name = named(&params.name)?;
        if params.command.is_empty() || params.command.contains('\0') {
            return Err(ToolFailure::new("command is empty or contains a zero byte"));
        }
        if params.term.as_ref().is_some_and(|term| term.contains('\0')) {
            return Err(ToolFailure::new("term contains a zero byte"));
        }
        let user = self.login(&name, params.user.as_deref())?;
        let api = self.config.api.as_ref();
        let account = Account::find(api, &name, user.as_ref().map_or("root", UserRef::user))?;
        let term = params.term.or_else(|| params.tty.then(|| TERM.to_owned()));
        let env = term.map(|term| ("TERM".to_owned(), term)).into_iter().collect();
        let limit = self.settings.default_timeout;
        let login = account.command(Some(&params.command), params.tty.then_some(TERMINAL), env);
        let command = Command { stdin: Stdin::Closed, user, timeout: Some(Span(limit)), ..login };
        let bytes = self.settings.limit(params.max_bytes);
        let captured = exec::run(api, &name, command, None, bytes, &call.cancel)?;
        Ok(command_result(&captured, limit, false)?.renamed("exitCode", "status"))
    }

    /// The user of a call: the named one, or the sandbox's own.
    pub(super) fn login(
        &self,
        name: &Name,
        user: Option<&str>,
    ) -> Result<Option<UserRef>, ToolFailure> {
        match user {
            Some(user) => Ok(Some(UserRef::parse(user)?)),
            // A missing sandbox is reported by the next Operation.
            None => Ok(self.config.api.sandbox_inspect(name).ok().and_then(|it| it.plan.user)),
        }
    }
}
