//! Builds the config of one stage, and decides what each step needs.
//!
//! Has no side effects: what needs a sandbox or files is returned as [`StepAction`].

use super::containerfile::wrong;
use super::lexer::{LexError, Lexer};
use super::scope::{Globals, Scope};
use super::step::{
    BuildStep, CommandForm, CopyInstruction, CopySource, Healthcheck, Instruction, RunInstruction,
    RunProgram,
};
use crate::manifest::{ImageConfig, RootfsIds, WireConfig};
use msb_spec::{Error, Platform, Result, UserRef};
use serde::{Deserialize, Serialize};

/// The state of a stage during a build.
#[derive(Debug, Clone)]
pub struct StageBuilder {
    /// Config of the image so far.
    pub image: ImageConfig,
    scope: Scope,
    /// Whether this stage has set CMD, and not the base image.
    own_cmd: bool,
    file: String,
    escape: char,
}

/// What a step needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepAction {
    /// Nothing: only the config has changed.
    Settings,
    /// This directory must exist.
    Directory(String),
    /// A command must run in a sandbox.
    Run(RunJob),
    /// Files must be copied.
    Copy(CopyArgs),
}

/// A command of RUN, ready to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunJob {
    /// The command, or a script with its own interpreter.
    pub command: RunCommand,
    /// Variables of the build, then of the image. Later ones take precedence.
    pub env: Vec<(String, String)>,
    /// Variables that are not part of the cache key.
    pub unnoticed: Vec<(String, String)>,
    /// Working directory of the command.
    pub workdir: String,
    /// User that runs the command; root by default.
    pub user: Option<UserRef>,
    /// Whether it has the network of the build. Not part of the cache key.
    pub network: bool,
}

/// How a command of RUN is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunCommand {
    /// Program and its arguments.
    Words(Vec<String>),
    /// A script; its first line names the interpreter.
    Script(String),
}

/// Expanded arguments of COPY or ADD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyArgs {
    /// Whether archives are unpacked (ADD).
    pub add: bool,
    /// Sources with variables expanded.
    pub sources: Vec<CopySource>,
    /// Absolute path without `.` and `..`.
    pub target: String,
    /// Whether the target was written as a directory.
    pub into: bool,
    /// Name of a stage or an image; none for the build context.
    pub from: Option<String>,
    /// Owner of the copied files.
    pub owner: Option<UserRef>,
    /// Mode of the copied files.
    pub mode: Option<u32>,
}

impl StageBuilder {
    /// Starts a stage on top of an image.
    pub fn new(image: ImageConfig, file: &str, escape: char) -> Self {
        let (scope, file) = (Scope::default(), file.to_owned());
        Self { image, scope, own_cmd: false, file, escape }
    }

    /// Takes the ONBUILD triggers of the base image.
    pub fn take_triggers(&mut self) -> Vec<String> {
        self.image.config.on_build.take().unwrap_or_default()
    }

    /// Runs one step: changes the config, or returns what is needed.
    pub fn step(&mut self, globals: &Globals, step: &BuildStep) -> Result<StepAction> {
        let at = |error: Error| {
            // A step of a trigger has its own file name.
            error.under(format!("{}:{}: `{}`", self.file, step.line, step.text))
        };
        match &step.instruction {
            Instruction::Run(run) => self.run(globals, run).map(StepAction::Run).map_err(at),
            Instruction::Copy(copy) => self
                .copy(copy)
                .map(StepAction::Copy)
                .map_err(|why| wrong(&self.file, step.line, why)),
            Instruction::Workdir(path) => {
                let path = self.word(path).map_err(|why| wrong(&self.file, step.line, why))?;
                let path = absolute(&self.workdir(), &path);
                self.image.config.working_dir = Some(path.clone());
                Ok(StepAction::Directory(path))
            }
            Instruction::Arg(arguments) => {
                for argument in arguments {
                    let environment = self.image.config.env.as_deref().unwrap_or_default();
                    self.scope.declare(globals, argument, environment)?;
                }
                Ok(StepAction::Settings)
            }
            settings => {
                self.settings(settings).map_err(|why| wrong(&self.file, step.line, why))?;
                Ok(StepAction::Settings)
            }
        }
    }

    fn environment(&self) -> &[String] {
        self.image.config.env.as_deref().unwrap_or_default()
    }

    fn workdir(&self) -> String {
        self.image.config.working_dir.clone().unwrap_or_default()
    }

    fn word(&self, text: &str) -> Result<String, LexError> {
        let lookup = |name: &str| self.scope.get(name, self.environment());
        Lexer::new(self.escape, &lookup).word(text)
    }

    fn words(&self, text: &str) -> Result<Vec<String>, LexError> {
        let lookup = |name: &str| self.scope.get(name, self.environment());
        Lexer::new(self.escape, &lookup).words(text)
    }

    fn settings(&mut self, instruction: &Instruction) -> Result<(), LexError> {
        match instruction {
            Instruction::Env(_) => {
                for (name, value) in self.expanded(instruction)? {
                    if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                        return Err(format!("not an environment variable: `{name}`"));
                    }
                    set(self.image.config.env.get_or_insert_default(), &name, &value);
                }
            }
            Instruction::Label(_) => {
                for (name, value) in self.expanded(instruction)? {
                    self.image.config.labels.get_or_insert_default().insert(name, value);
                }
            }
            Instruction::User(user) => self.image.config.user = Some(self.word(user)?),
            Instruction::Cmd(form) => {
                self.own_cmd = true;
                self.image.config.cmd = self.argv(form);
            }
            Instruction::Entrypoint(form) => {
                self.image.config.entrypoint = self.argv(form);
                // CMD of the base image is not an argument of the new entrypoint.
                if !self.own_cmd {
                    self.image.config.cmd = None;
                }
            }
            Instruction::Expose(text) => {
                for port in self.words(text)?.iter().map(|word| ports(word)) {
                    for port in port? {
                        let ports = self.image.config.exposed_ports.get_or_insert_default();
                        ports.insert(port, serde_json::json!({}));
                    }
                }
            }
            Instruction::Volume(paths) => {
                for path in paths {
                    let path = self.word(path)?;
                    if path.trim().is_empty() {
                        return Err("VOLUME names no directory".to_owned());
                    }
                    let volumes = self.image.config.volumes.get_or_insert_default();
                    volumes.insert(path, serde_json::json!({}));
                }
            }
            Instruction::Shell(words) => self.image.config.shell = Some(words.clone()),
            Instruction::StopSignal(signal) => {
                let signal = self.word(signal)?;
                if !is_signal(&signal) {
                    return Err(format!("not a signal: `{signal}`"));
                }
                self.image.config.stop_signal = Some(signal);
            }
            Instruction::Healthcheck(check) => {
                self.image.config.healthcheck = Some(health(check));
            }
            Instruction::Onbuild(text) => {
                self.image.config.on_build.get_or_insert_default().push(text.clone())
            }
            Instruction::Maintainer(name) => self.image.author = Some(name.clone()),
            Instruction::Run(_)
            | Instruction::Copy(_)
            | Instruction::Workdir(_)
            | Instruction::Arg(_) => {}
        }
        Ok(())
    }

    /// The expanded pairs of ENV or LABEL. All of one line see the values before it.
    fn expanded(&self, instruction: &Instruction) -> Result<Vec<(String, String)>, LexError> {
        let (Instruction::Env(pairs) | Instruction::Label(pairs)) = instruction else {
            return Ok(Vec::new());
        };
        pairs.iter().map(|(name, value)| Ok((self.word(name)?, self.word(value)?))).collect()
    }

    /// The shell for commands in shell form.
    fn shell(&self) -> Vec<String> {
        let usual = || vec!["/bin/sh".to_owned(), "-c".to_owned()];
        let own = self.image.config.shell.clone().filter(|shell| !shell.is_empty());
        own.unwrap_or_else(usual)
    }

    fn argv(&self, form: &CommandForm) -> Option<Vec<String>> {
        match form {
            CommandForm::Exec(words) => Some(words.clone()),
            CommandForm::Shell(text) if text.is_empty() => None,
            CommandForm::Shell(text) => {
                let mut argv = self.shell();
                argv.push(text.clone());
                Some(argv)
            }
        }
    }

    fn run(&self, globals: &Globals, run: &RunInstruction) -> Result<RunJob> {
        let command = match &run.program {
            RunProgram::Script(text) => RunCommand::Script(text.clone()),
            RunProgram::Command(form) => RunCommand::Words(self.argv(form).unwrap_or_default()),
        };
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let declared = self.scope.arguments().iter().map(|(name, value)| (&**name, &**value));
        let of_image = self.environment().iter().filter_map(|pair| pair.split_once('='));
        let user = match self.image.config.user.as_deref().unwrap_or_default() {
            "" => None,
            user => Some(UserRef::parse(user)?),
        };
        Ok(RunJob {
            command,
            env: declared.chain(of_image).map(pair).collect(),
            unnoticed: globals.undeclared().map(pair).collect(),
            workdir: absolute(&self.workdir(), ""),
            user,
            network: run.network,
        })
    }

    fn copy(&self, copy: &CopyInstruction) -> Result<CopyArgs, LexError> {
        let source = |source: &CopySource| match source {
            CopySource::Path(path) => self.word(path).map(CopySource::Path),
            CopySource::Document { name, body, expand: true } => {
                let lookup = |name: &str| self.scope.get(name, self.environment());
                let body = Lexer::new('\\', &lookup).document(body)?;
                Ok(CopySource::Document { name: name.clone(), body, expand: false })
            }
            other => Ok(other.clone()),
        };
        let target = self.word(&copy.target)?;
        if target.is_empty() {
            return Err("the target is empty".to_owned());
        }
        let optional = |text: &Option<String>| text.as_deref().map(|t| self.word(t)).transpose();
        let owner = optional(&copy.owner)?
            .map(|owner| UserRef::parse(&owner).map_err(|_| format!("not an owner: `{owner}`")));
        let mode = optional(&copy.mode)?.map(|mode| {
            let digits = u32::from_str_radix(&mode, 8).ok().filter(|mode| *mode <= 0o7777);
            digits.ok_or_else(|| format!("not an octal mode: `{mode}`"))
        });
        let last = target.rsplit('/').next().unwrap_or_default();
        Ok(CopyArgs {
            add: copy.add,
            sources: copy.sources.iter().map(source).collect::<Result<_, LexError>>()?,
            into: matches!(last, "" | "." | ".."),
            target: absolute(&self.workdir(), &target),
            from: optional(&copy.from)?,
            owner: owner.transpose()?,
            mode: mode.transpose()?,
        })
    }
}

/// Makes a path absolute and removes `.` and `..`, without looking at files.
pub(crate) fn absolute(workdir: &str, path: &str) -> String {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{workdir}/{path}") };
    let mut parts: Vec<&str> = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Parses `80`, `80/udp` or `8000-8010/tcp` to ports of the image config.
fn ports(text: &str) -> Result<Vec<String>, LexError> {
    let wrong = || format!("not a port: `{text}`");
    let (numbers, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let protocol = protocol.to_ascii_lowercase();
    if !["tcp", "udp", "sctp"].contains(&protocol.as_str()) {
        return Err(wrong());
    }
    let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
    let number = |text: &str| text.parse::<u16>().map_err(|_| wrong());
    let (first, last) = (number(first)?, number(last)?);
    if first > last || first == 0 {
        return Err(wrong());
    }
    Ok((first..=last).map(|port| format!("{port}/{protocol}")).collect())
}

fn is_signal(text: &str) -> bool {
    match text.parse::<u8>() {
        Ok(number) => (1..=64).contains(&number),
        Err(_) => {
            let name = text.strip_prefix("SIG").unwrap_or(text);
            let well = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b"+-".contains(&b);
            !name.is_empty() && name.bytes().all(well)
        }
    }
}

fn health(check: &Healthcheck) -> serde_json::Value {
    let Healthcheck::Test { command, interval, timeout, start_period, start_interval, retries } =
        check
    else {
        return serde_json::json!({ "Test": ["NONE"] });
    };
    let test = match command {
        CommandForm::Shell(text) => vec!["CMD-SHELL", text],
        CommandForm::Exec(words) => {
            ["CMD"].into_iter().chain(words.iter().map(String::as_str)).collect()
        }
    };
    let mut health = serde_json::json!({ "Test": test });
    for (name, value) in [
        ("Interval", interval),
        ("Timeout", timeout),
        ("StartPeriod", start_period),
        ("StartInterval", start_interval),
        ("Retries", retries),
    ] {
        if let Some(value) = value {
            health[name] = (*value).into();
        }
    }
    health
}

/// Sets a variable in place, or appends it.
fn set(environment: &mut Vec<String>, name: &str, value: &str) {
    let pair = format!("{name}={value}");
    let own = |pair: &&mut String| pair.split_once('=').is_some_and(|(own, _)| own == name);
    match environment.iter_mut().find(own) {
        Some(old) => *old = pair,
        None => environment.push(pair),
    }
}

/// PATH of an image from scratch, as other builders set it.
const USUAL_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The config of an image without layers: `FROM scratch`.
pub fn scratch(platform: &Platform) -> ImageConfig {
    ImageConfig {
        created: None,
        author: None,
        architecture: platform.architecture.clone(),
        os: platform.os.clone(),
        variant: platform.variant.clone(),
        config: WireConfig { env: Some(vec![USUAL_PATH.to_owned()]), ..WireConfig::default() },
        rootfs: RootfsIds { kind: "layers".to_owned(), diff_ids: Vec::new() },
        history: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
