//! What is to be run, filled in step by step.

use msb_spec::{CallOrigin, Error, Result, Rlimit, Span, Surface, TermSize, UserRef};
use std::time::Duration;

/// What a command reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stdin {
    /// Nothing: end of file at once.
    Closed,
    /// These bytes, then end of file.
    Bytes(Vec<u8>),
    /// What is written to the [`Exec`](crate::Exec) until its stdin is closed.
    Streamed,
}

impl From<&str> for Stdin {
    fn from(text: &str) -> Self {
        Self::Bytes(text.into())
    }
}

impl From<String> for Stdin {
    fn from(text: String) -> Self {
        Self::Bytes(text.into())
    }
}

impl From<&[u8]> for Stdin {
    fn from(bytes: &[u8]) -> Self {
        Self::Bytes(bytes.into())
    }
}

impl From<Vec<u8>> for Stdin {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

/// A command and how it is to run. A mistake in it is reported when it is started.
#[derive(Debug, Clone)]
pub struct Command {
    command: msb_spec::Command,
    stdin: Option<Stdin>,
    max_output: usize,
    mistake: Option<Error>,
}

/// More output than this in memory is more often an accident, or an attack, than a wish.
const MAX_OUTPUT: usize = 256 << 20;

impl Command {
    /// A program: a path inside the sandbox or a name on its PATH.
    pub fn new(program: impl Into<String>) -> Self {
        let origin = Some(CallOrigin::new(Surface::Sdk));
        let argv = vec![program.into()];
        let command = msb_spec::Command { argv, origin, ..Default::default() };
        Self { command, stdin: None, max_output: MAX_OUTPUT, mistake: None }
    }

    /// Adds one argument to the command.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.command.argv.push(arg.into());
        self
    }

    /// Adds several arguments to the command.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.command.argv.extend(args.into_iter().map(Into::into));
        self
    }

    /// What it reads. Without this a captured command reads nothing, and a streamed one what is
    /// written to it.
    #[must_use]
    pub fn stdin(mut self, stdin: impl Into<Stdin>) -> Self {
        self.stdin = Some(stdin.into());
        self
    }

    /// Sets a variable beyond the sandbox's own.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.command.env.push((name.into(), value.into()));
        self
    }

    /// Sets variables beyond the sandbox's own.
    #[must_use]
    pub fn envs<N: Into<String>, V: Into<String>>(
        mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        self.command.env.extend(variables);
        self
    }

    /// Where it starts; the sandbox's own working directory unless told.
    #[must_use]
    pub fn cwd(mut self, directory: impl Into<String>) -> Self {
        self.command.workdir = Some(directory.into());
        self
    }

    /// The user of the command: `name`, `1000`, `name:group` or `1000:1000`.
    #[must_use]
    pub fn user(mut self, user: &str) -> Self {
        match UserRef::parse(user) {
            Ok(user) => self.command.user = Some(user),
            Err(error) => self.note(error),
        }
        self
    }

    /// When it is killed. Its [`Exit`](crate::Exit) then tells that it was.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.command.timeout = Some(Span(timeout));
        self
    }

    /// Adds a resource limit: `nofile=1024` or `nofile=1024:4096`.
    #[must_use]
    pub fn rlimit(mut self, limit: &str) -> Self {
        match Rlimit::parse(limit) {
            Ok(limit) => self.command.rlimits.push(limit),
            Err(error) => self.note(error),
        }
        self
    }

    /// Gives it a terminal of this size instead of pipes; all it says then is stdout.
    #[must_use]
    pub fn tty(mut self, rows: u16, cols: u16) -> Self {
        self.command.tty = Some(TermSize { rows, cols });
        self
    }

    /// Most bytes of captured output; a command that says more is killed, and running it is an
    /// error of kind `Limit`. 256 MiB unless told. Streamed output has no limit.
    #[must_use]
    pub fn max_output(mut self, bytes: usize) -> Self {
        self.max_output = bytes;
        self
    }

    pub(crate) fn output_limit(&self) -> usize {
        self.max_output
    }

    pub(crate) fn is_streamed(&self) -> bool {
        self.stdin == Some(Stdin::Streamed)
    }

    /// The command as the worker takes it, with the default stdin if none was set.
    pub(crate) fn finish(mut self, unsaid: Stdin) -> Result<(msb_spec::Command, Stdin)> {
        if let Some(mistake) = self.mistake {
            return Err(mistake);
        }
        let zero = |text: &String| text.contains('\0');
        let mut texts = self.command.argv.iter().chain(&self.command.workdir);
        let mut env = self.command.env.iter();
        if texts.any(zero) || env.any(|(name, value)| zero(name) || zero(value)) {
            return Err(Error::invalid("a command cannot hold a zero byte"));
        }
        if let Some((name, _)) =
            self.command.env.iter().find(|(name, _)| name.is_empty() || name.contains('='))
        {
            // Behind `=` may be the value of a secret.
            let shown = name.split('=').next().unwrap_or_default();
            let message = format!("not a variable name: `{shown}`");
            return Err(Error::invalid(message));
        }
        let stdin = self.stdin.unwrap_or(unsaid);
        self.command.stdin = match stdin {
            Stdin::Closed => msb_spec::Stdin::Closed,
            Stdin::Bytes(_) | Stdin::Streamed => msb_spec::Stdin::Streamed,
        };
        Ok((self.command, stdin))
    }

    fn note(&mut self, error: Error) {
        self.mistake.get_or_insert(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::Kind;

    #[test]
    fn the_first_mistake_is_reported() {
        let command = Command::new("true").user("not a user").rlimit("nonsense");
        let error = command.finish(Stdin::Closed).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.message().contains("not a user"), "{error}");
    }

    #[test]
    fn zero_bytes_and_nameless_variables_are_refused() {
        for command in [
            Command::new("a\0b"),
            Command::new("a").arg("\0"),
            Command::new("a").cwd("/\0"),
            Command::new("a").env("A", "\0"),
            Command::new("a").env("", "x"),
            Command::new("a").env("A=B", "x"),
        ] {
            assert_eq!(command.finish(Stdin::Closed).unwrap_err().kind(), Kind::Invalid);
        }
    }

    #[test]
    fn bytes_for_stdin_are_streamed_to_the_worker() {
        let (command, stdin) = Command::new("cat").stdin("hi").finish(Stdin::Closed).unwrap();
        assert_eq!(command.stdin, msb_spec::Stdin::Streamed);
        assert_eq!(stdin, Stdin::Bytes(b"hi".to_vec()));
    }
}
