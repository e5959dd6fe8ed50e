//! Parses a Containerfile.
//!
//! The crate `parse-dockerfile` parses the instructions. Here-documents are removed before. What
//! the crate leaves as text (pairs of ENV and LABEL, flags) is parsed here. Unsupported features
//! are refused before anything is built.

use super::heredoc::{self, Heredoc, joined};
use super::lexer::split;
use super::step::{
    BuildArg, BuildStage, BuildStep, CommandForm, Containerfile, CopyInstruction, CopySource,
    Healthcheck, Instruction, RunInstruction, RunProgram,
};
use msb_spec::{Error, Result};
use parse_dockerfile as parser;
use std::ops::Range;

/// Largest Containerfile, in bytes. Most have a few kilobytes; here-documents may be longer.
pub const CONTAINERFILE_LIMIT: u64 = 4 << 20;

impl Containerfile {
    /// Parses a text. `file` is its name in messages.
    pub fn parse(file: &str, text: &str) -> Result<Self> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let escape = escape(text);
        let stripped = heredoc::strip(text, escape).map_err(|unterminated| {
            let line = line_of(text, unterminated.at);
            wrong(
                file,
                line,
                format!("the here-document is not terminated: `{}`", unterminated.name),
            )
        })?;
        let parsed = parser::parse(&stripped.text).map_err(|error| {
            let line = if error.line() == 0 { 1 } else { error.line() };
            let error = wrong(file, line, format!("{error:#}"));
            error.hint("docs/build.md lists the supported instructions")
        })?;
        let converter = AstConverter { file, text, escape, documents: &stripped.documents };
        let arguments = parsed
            .global_args()
            .map(|arg| converter.arguments(&arg.arg.span, &arg.arguments.value))
            .collect::<Result<Vec<_>>>()?
            .concat();
        let stages = parsed.stages().map(|stage| converter.stage(&stage)).collect::<Result<_>>()?;
        Ok(Self { file: file.to_owned(), escape, arguments, stages })
    }

    /// Parses the steps of an ONBUILD trigger of an image.
    pub fn parse_trigger(image: &str, trigger: &str) -> Result<Vec<BuildStep>> {
        let file = format!("ONBUILD of {image}");
        let parsed = Self::parse(&file, &format!("FROM scratch\n{trigger}\n"))?;
        let [stage] = <[BuildStage; 1]>::try_from(parsed.stages)
            .map_err(|_| Error::invalid(format!("`FROM` in ONBUILD of `{image}`")))?;
        Ok(stage.steps)
    }
}

/// An error with file and line.
pub(crate) fn wrong(file: &str, line: usize, message: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{file}:{line}: {message}"))
}

/// The `escape` directive, which must be in the first comments.
fn escape(text: &str) -> char {
    let mut chosen = '\\';
    for line in text.lines() {
        let Some((name, value)) = line.strip_prefix('#').and_then(|line| line.split_once('='))
        else {
            break;
        };
        match (name.trim().to_ascii_lowercase().as_str(), value.trim()) {
            ("escape", "`") => chosen = '`',
            ("escape" | "syntax" | "check", _) => {}
            _ => break,
        }
    }
    chosen
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

struct AstConverter<'a> {
    file: &'a str,
    text: &'a str,
    escape: char,
    documents: &'a [(Range<usize>, Vec<Heredoc>)],
}

impl AstConverter<'_> {
    fn wrong(&self, span: &Range<usize>, message: impl std::fmt::Display) -> Error {
        wrong(self.file, line_of(self.text, span.start), message)
    }

    fn refused(&self, span: &Range<usize>, message: impl std::fmt::Display) -> Error {
        let line = line_of(self.text, span.start);
        Error::unsupported(format!("{}:{line}: {message}", self.file))
    }

    fn stage(&self, stage: &parser::Stage<'_, '_>) -> Result<BuildStage> {
        let from = stage.from;
        let mut platform = None;
        for flag in &from.options {
            match (flag.name.value.as_ref(), &flag.value) {
                ("platform", Some(value)) => platform = Some(value.value.to_string()),
                (name, _) => return Err(self.unknown_flag(flag, "FROM", name)),
            }
        }
        let name = from.as_.as_ref().map(|(_, name)| name.value.to_ascii_lowercase());
        if let Some(name) = name.as_deref().filter(|name| !is_stage_name(name)) {
            return Err(self
                .wrong(&from.from.span, format!("not a name for a stage: `{name}`"))
                .hint("a stage's name begins with a letter and has a-z 0-9 . _ -"));
        }
        let steps = stage.instructions.iter().map(|step| self.step(step)).collect::<Result<_>>()?;
        Ok(BuildStage {
            name,
            from: from.image.value.to_string(),
            platform,
            line: line_of(self.text, from.from.span.start),
            steps,
        })
    }

    fn step(&self, instruction: &parser::Instruction<'_>) -> Result<BuildStep> {
        let span = keyword(instruction);
        Ok(BuildStep {
            line: line_of(self.text, span.start),
            text: self.shown(span),
            instruction: self.instruction(span, instruction)?,
        })
    }

    /// An instruction for display: one line, with single spaces.
    fn shown(&self, span: &Range<usize>) -> String {
        let rest = &self.text[span.start..];
        let mut end = 0;
        for line in rest.split_inclusive('\n') {
            end += line.len();
            if heredoc::continued(line, self.escape).is_none()
                && (end == line.len() || !heredoc::is_skipped(line))
            {
                break;
            }
        }
        let text = joined(&rest[..end], self.escape);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn instruction(
        &self,
        span: &Range<usize>,
        instruction: &parser::Instruction<'_>,
    ) -> Result<Instruction> {
        use parser::Instruction as Parsed;
        let text = |text: &parser::UnescapedString<'_>| text.value.to_string();
        Ok(match instruction {
            Parsed::Run(run) => Instruction::Run(self.run(run)?),
            Parsed::Copy(copy) => {
                let parts = (&copy.options[..], &copy.src[..], text(&copy.dest));
                Instruction::Copy(self.copy(span, false, parts)?)
            }
            Parsed::Add(add) => {
                let parts = (&add.options[..], &add.src[..], text(&add.dest));
                Instruction::Copy(self.copy(span, true, parts)?)
            }
            Parsed::Env(env) => Instruction::Env(self.pairs(span, "ENV", &env.arguments.value)?),
            Parsed::Label(label) => {
                Instruction::Label(self.pairs(span, "LABEL", &label.arguments.value)?)
            }
            Parsed::Arg(arg) => Instruction::Arg(self.arguments(span, &arg.arguments.value)?),
            Parsed::Workdir(workdir) => Instruction::Workdir(text(&workdir.arguments)),
            Parsed::User(user) => Instruction::User(text(&user.arguments)),
            Parsed::Cmd(cmd) => Instruction::Cmd(self.form(&cmd.arguments)),
            Parsed::Entrypoint(entry) => Instruction::Entrypoint(self.form(&entry.arguments)),
            Parsed::Expose(expose) => {
                let ports: Vec<&str> = expose.arguments.iter().map(|p| p.value.as_ref()).collect();
                Instruction::Expose(ports.join(" "))
            }
            Parsed::Volume(volume) => Instruction::Volume(match &volume.arguments {
                parser::JsonOrStringArray::Json(list) => list.value.iter().map(text).collect(),
                parser::JsonOrStringArray::String(list) => list.iter().map(text).collect(),
            }),
            Parsed::Shell(shell) => Instruction::Shell(shell.arguments.iter().map(text).collect()),
            Parsed::Stopsignal(signal) => Instruction::StopSignal(text(&signal.arguments)),
            Parsed::Healthcheck(check) => Instruction::Healthcheck(self.healthcheck(check)?),
            Parsed::Maintainer(maintainer) => Instruction::Maintainer(text(&maintainer.name)),
            Parsed::Onbuild(onbuild) => self.onbuild(span, &onbuild.instruction)?,
            other => {
                let text = self.shown(keyword(other));
                return Err(self.wrong(span, format!("unknown instruction: `{text}`")));
            }
        })
    }

    fn onbuild(&self, span: &Range<usize>, inner: &parser::Instruction<'_>) -> Result<Instruction> {
        use parser::Instruction as Parsed;
        if matches!(inner, Parsed::From(_) | Parsed::Maintainer(_) | Parsed::Onbuild(_)) {
            return Err(self.wrong(span, "ONBUILD takes no FROM, MAINTAINER or ONBUILD"));
        }
        if !self.documents_of(keyword(inner)).is_empty() {
            return Err(self.refused(span, "a here-document in ONBUILD is not supported"));
        }
        // Errors in a trigger are reported now, not when an image is built from this one.
        self.instruction(keyword(inner), inner)?;
        Ok(Instruction::Onbuild(self.shown(keyword(inner))))
    }

    fn documents_of(&self, span: &Range<usize>) -> &[Heredoc] {
        let found = self.documents.iter().find(|(range, _)| range.contains(&span.start));
        found.map_or(&[], |(_, documents)| documents)
    }

    fn unknown_flag(&self, flag: &parser::Flag<'_>, of: &str, name: &str) -> Error {
        self.wrong(&flag.span(), format!("not a flag of {of}: `--{name}`"))
    }

    fn run(&self, run: &parser::RunInstruction<'_>) -> Result<RunInstruction> {
        let mut network = true;
        for flag in &run.options {
            let value = flag.value.as_ref().map_or("", |value| value.value.as_ref());
            match (flag.name.value.as_ref(), value) {
                ("network", "default") => network = true,
                ("network", "none") => network = false,
                // `sandbox` is the only mode.
                ("security", "sandbox") => {}
                (name @ ("mount" | "network" | "security" | "device"), value) => {
                    let error = self.refused(
                        &flag.span(),
                        format!("this flag of RUN is not supported: `--{name}={value}`"),
                    );
                    return Err(match name {
                        "mount" => error.hint("COPY the files and remove them in the same RUN"),
                        "network" => error.hint(
                            "it is `default` or `none`; `msb build --net` sets the network of the \
                             build, as in `--net host`",
                        ),
                        _ => error,
                    });
                }
                (name, _) => return Err(self.unknown_flag(flag, "RUN", name)),
            }
        }
        Ok(RunInstruction { program: self.program(run)?, network })
    }

    fn program(&self, run: &parser::RunInstruction<'_>) -> Result<RunProgram> {
        let documents = self.documents_of(&run.run.span);
        let form = self.form(&run.arguments);
        let CommandForm::Shell(text) = &form else {
            return Ok(RunProgram::Command(form));
        };
        if text.trim().is_empty() {
            return Err(self.wrong(&run.run.span, "RUN needs a command"));
        }
        let alone = text.starts_with("<<") && split(text, self.escape).len() == 1;
        match documents {
            [] => Ok(RunProgram::Command(form)),
            [only] if alone && only.body.starts_with("#!") => {
                Ok(RunProgram::Script(only.body.clone()))
            }
            [only] if alone => Ok(RunProgram::Command(CommandForm::Shell(only.body.clone()))),
            // The shell reads the here-documents itself.
            many => {
                let mut whole = format!("{text}\n");
                many.iter().for_each(|document| whole.push_str(&document.raw));
                Ok(RunProgram::Command(CommandForm::Shell(whole)))
            }
        }
    }

    fn copy(
        &self,
        span: &Range<usize>,
        add: bool,
        (options, sources, target): (&[parser::Flag<'_>], &[parser::Source<'_>], String),
    ) -> Result<CopyInstruction> {
        let verb = if add { "ADD" } else { "COPY" };
        let mut copy = CopyInstruction {
            add,
            sources: Vec::new(),
            target,
            from: None,
            owner: None,
            mode: None,
        };
        for flag in options {
            let value = flag.value.as_ref().map(|value| value.value.to_string());
            match (flag.name.value.as_ref(), value) {
                ("chown", Some(value)) => copy.owner = Some(value),
                ("chmod", Some(value)) => copy.mode = Some(value),
                ("from", Some(value)) if !add => copy.from = Some(value),
                // `--link` has no effect: every layer is independent already.
                ("link", None) => {}
                ("link", Some(value)) if value == "true" || value == "false" => {}
                (name @ ("parents" | "exclude" | "checksum" | "keep-git-dir" | "unpack"), _) => {
                    return Err(self.refused(
                        &flag.span(),
                        format!("this flag of {verb} is not supported: `--{name}`"),
                    ));
                }
                (name, _) => return Err(self.unknown_flag(flag, verb, name)),
            }
        }
        let mut documents = self.documents_of(span).iter();
        for source in sources {
            let parser::Source::Path(path) = source else {
                return Err(self.wrong(span, "a here-document that cannot be parsed"));
            };
            let written = self.text.get(path.span.clone()).unwrap_or_default();
            copy.sources.push(match documents.as_slice().first() {
                Some(document) if written.starts_with("<<") => {
                    documents.next();
                    let Heredoc { name, expand, body, .. } = document.clone();
                    CopySource::Document { name, body, expand }
                }
                _ if add && is_url(&path.value) => {
                    let error =
                        self.refused(span, format!("ADD from the network: `{}`", path.value));
                    return Err(error.hint("download it yourself and COPY or ADD the file"));
                }
                _ => CopySource::Path(path.value.to_string()),
            });
        }
        Ok(copy)
    }

    /// Parses `name=value` pairs, or one name with the rest of the line as value.
    fn pairs(&self, span: &Range<usize>, verb: &str, text: &str) -> Result<Vec<(String, String)>> {
        let words = split(text, self.escape);
        let first = words.first().copied().unwrap_or_default();
        if !first.contains('=') {
            let value = text.trim_start().strip_prefix(first).unwrap_or_default().trim_start();
            if value.is_empty() {
                return Err(self
                    .wrong(span, format!("{verb} needs a value for `{first}`"))
                    .hint(format!("write it as `{verb} {first}=value`")));
            }
            return Ok(vec![(first.to_owned(), value.to_owned())]);
        }
        let pair = |word: &&str| match word.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => Err(self
                .wrong(span, format!("not of the form `name=value`: `{word}`"))
                .hint("a value with spaces needs quotes")),
        };
        words.iter().map(pair).collect()
    }

    fn arguments(&self, span: &Range<usize>, text: &str) -> Result<Vec<BuildArg>> {
        let line = line_of(self.text, span.start);
        let argument = |word: &&str| {
            let (name, default) = match word.split_once('=') {
                Some((name, default)) => (name, Some(default.to_owned())),
                None => (*word, None),
            };
            let well = !name.is_empty()
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
            if !well {
                return Err(self.wrong(span, format!("not a name for an ARG: `{name}`")));
            }
            Ok(BuildArg { name: name.to_owned(), default, line })
        };
        split(text, self.escape).iter().map(argument).collect()
    }

    fn form(&self, command: &parser::Command<'_>) -> CommandForm {
        match command {
            parser::Command::Exec(words) => {
                CommandForm::Exec(words.value.iter().map(|word| word.value.to_string()).collect())
            }
            parser::Command::Shell(text) => {
                // The parser got `__` in place of `<<`, so take the original text.
                let raw = self.text.get(text.span.clone()).unwrap_or_default();
                CommandForm::Shell(joined(raw, self.escape).trim().to_owned())
            }
            // A form that a later version of the crate adds.
            _ => CommandForm::Shell(String::new()),
        }
    }

    fn healthcheck(&self, check: &parser::HealthcheckInstruction<'_>) -> Result<Healthcheck> {
        let span = &check.healthcheck.span;
        let command = match &check.arguments {
            parser::HealthcheckArguments::Cmd { arguments, .. } => self.form(arguments),
            _ if check.options.is_empty() => return Ok(Healthcheck::None),
            _ => return Err(self.wrong(span, "HEALTHCHECK NONE takes no flags")),
        };
        if command == CommandForm::Shell(String::new()) {
            return Err(self.wrong(span, "HEALTHCHECK CMD needs a command"));
        }
        let (mut interval, mut timeout, mut retries) = (None, None, None);
        let (mut start_period, mut start_interval) = (None, None);
        for flag in &check.options {
            let value = flag.value.as_ref().map_or("", |value| value.value.as_ref());
            let wrong = || {
                let name = &flag.name.value;
                self.wrong(&flag.span(), format!("not a value of `--{name}`: `{value}`"))
            };
            let time =
                || nanoseconds(value).ok_or_else(|| wrong().hint("write it as `30s` or `1m30s`"));
            match flag.name.value.as_ref() {
                "interval" => interval = Some(time()?),
                "timeout" => timeout = Some(time()?),
                "start-period" => start_period = Some(time()?),
                "start-interval" => start_interval = Some(time()?),
                "retries" => retries = Some(value.parse().map_err(|_| wrong())?),
                name => return Err(self.unknown_flag(flag, "HEALTHCHECK", name)),
            }
        }
        Ok(Healthcheck::Test { command, interval, timeout, start_period, start_interval, retries })
    }
}

fn keyword<'a>(instruction: &'a parser::Instruction<'_>) -> &'a Range<usize> {
    use parser::Instruction as Parsed;
    match instruction {
        Parsed::Add(it) => &it.add.span,
        Parsed::Arg(it) => &it.arg.span,
        Parsed::Cmd(it) => &it.cmd.span,
        Parsed::Copy(it) => &it.copy.span,
        Parsed::Entrypoint(it) => &it.entrypoint.span,
        Parsed::Env(it) => &it.env.span,
        Parsed::Expose(it) => &it.expose.span,
        Parsed::From(it) => &it.from.span,
        Parsed::Healthcheck(it) => &it.healthcheck.span,
        Parsed::Label(it) => &it.label.span,
        Parsed::Maintainer(it) => &it.maintainer.span,
        Parsed::Onbuild(it) => &it.onbuild.span,
        Parsed::Run(it) => &it.run.span,
        Parsed::Shell(it) => &it.shell.span,
        Parsed::Stopsignal(it) => &it.stopsignal.span,
        Parsed::User(it) => &it.user.span,
        Parsed::Volume(it) => &it.volume.span,
        Parsed::Workdir(it) => &it.workdir.span,
        // An instruction that a later version of the crate adds.
        _ => &NO_SPAN,
    }
}

static NO_SPAN: Range<usize> = 0..0;

fn is_stage_name(name: &str) -> bool {
    name.starts_with(|letter: char| letter.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

fn is_url(path: &str) -> bool {
    ["http://", "https://", "git://", "ssh://", "git@", "ftp://"]
        .iter()
        .any(|scheme| path.starts_with(scheme))
}

/// Parses a duration such as `1h30m`, `1.5s` or `500ms` to nanoseconds.
fn nanoseconds(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let (mut total, mut rest) = (0u64, text);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (amount, after) = rest.split_at(digits);
        let unit_end = after.find(|letter: char| letter.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let unit = match unit {
            "ns" => 1u64,
            "us" | "µs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, part) = amount.split_once('.').unwrap_or((amount, ""));
        total = total.checked_add(whole.parse::<u64>().ok()?.checked_mul(unit)?)?;
        let mut worth = unit;
        for digit in part.chars() {
            worth /= 10;
            total = total.checked_add(u64::from(digit.to_digit(10)?) * worth)?;
        }
        rest = next;
    }
    Some(total)
}

#[cfg(test)]
mod tests;
