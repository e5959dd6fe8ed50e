//! One stage while it is built: its settings so far, and what its next step means.
//!
//! Decides and does nothing: what needs a sandbox or files is handed back as [`Work`].

use super::containerfile::wrong;
use super::scope::{Globals, Scope};
use super::step::{Copy, Form, Healthcheck, Instruction, Program, Run, Source, Step};
use super::words::{Lexer, Wrong};
use crate::manifest::{ImageConfig, RootfsIds, WireConfig};
use msb_spec::{Error, Platform, Result, UserRef};
use serde::{Deserialize, Serialize};

/// A stage while it is built.
#[derive(Debug, Clone)]
pub struct Assembly {
    /// What the image says of itself, so far.
    pub image: ImageConfig,
    scope: Scope,
    /// Whether CMD was set here and not by the image below.
    own_cmd: bool,
    file: String,
    escape: char,
}

/// What a step needs done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Nothing: it changed settings.
    Settings,
    /// This directory has to be there.
    Directory(String),
    /// A command has to run.
    Run(Job),
    /// Files have to be copied.
    Copy(Copying),
}

/// A command of RUN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Program and arguments; for a script what it is called stands first.
    pub command: Launch,
    /// The image's variables and the build's, the image's last.
    pub env: Vec<(String, String)>,
    /// Variables that are no part of what the step is known by.
    pub unnoticed: Vec<(String, String)>,
    /// Where it starts.
    pub workdir: String,
    /// Who runs it.
    pub user: Option<UserRef>,
    /// Whether it has the network of the build. No part of what the step is known by either.
    pub network: bool,
}

/// How a command of RUN is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launch {
    /// Program and arguments.
    Words(Vec<String>),
    /// A text whose first line names its interpreter.
    Script(String),
}

/// What COPY and ADD have to copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copying {
    /// Whether archives are unpacked.
    pub add: bool,
    /// With variables replaced.
    pub sources: Vec<Source>,
    /// An absolute path without `.` and `..`.
    pub target: String,
    /// Whether the target was written as a directory.
    pub into: bool,
    /// A stage or an image.
    pub from: Option<String>,
    /// Whose the files become.
    pub owner: Option<UserRef>,
    /// Their permissions.
    pub mode: Option<u32>,
}

impl Assembly {
    /// Begins on top of an image.
    pub fn new(image: ImageConfig, file: &str, escape: char) -> Self {
        let (scope, file) = (Scope::default(), file.to_owned());
        Self { image, scope, own_cmd: false, file, escape }
    }

    /// Takes the instructions that the image below has kept for whoever builds on it.
    pub fn take_triggers(&mut self) -> Vec<String> {
        self.image.config.on_build.take().unwrap_or_default()
    }

    /// What the next step means. Settings are changed; the rest is handed back.
    pub fn step(&mut self, globals: &Globals, step: &Step) -> Result<Work> {
        let at = |error: Error| {
            // A step of a trigger knows its own place.
            error.under(format!("{}:{}: `{}`", self.file, step.line, step.text))
        };
        match &step.instruction {
            Instruction::Run(run) => self.run(globals, run).map(Work::Run).map_err(at),
            Instruction::Copy(copy) => {
                self.copy(copy).map(Work::Copy).map_err(|why| wrong(&self.file, step.line, why))
            }
            Instruction::Workdir(path) => {
                let path = self.word(path).map_err(|why| wrong(&self.file, step.line, why))?;
                let path = absolute(&self.workdir(), &path);
                self.image.config.working_dir = Some(path.clone());
                Ok(Work::Directory(path))
            }
            Instruction::Arg(arguments) => {
                for argument in arguments {
                    let environment = self.image.config.env.as_deref().unwrap_or_default();
                    self.scope.declare(globals, argument, environment)?;
                }
                Ok(Work::Settings)
            }
            settings => {
                self.settings(settings).map_err(|why| wrong(&self.file, step.line, why))?;
                Ok(Work::Settings)
            }
        }
    }

    fn environment(&self) -> &[String] {
        self.image.config.env.as_deref().unwrap_or_default()
    }

    fn workdir(&self) -> String {
        self.image.config.working_dir.clone().unwrap_or_default()
    }

    fn word(&self, text: &str) -> Result<String, Wrong> {
        let lookup = |name: &str| self.scope.get(name, self.environment());
        Lexer::new(self.escape, &lookup).word(text)
    }

    fn words(&self, text: &str) -> Result<Vec<String>, Wrong> {
        let lookup = |name: &str| self.scope.get(name, self.environment());
        Lexer::new(self.escape, &lookup).words(text)
    }

    fn settings(&mut self, instruction: &Instruction) -> Result<(), Wrong> {
        match instruction {
            Instruction::Env(_) => {
                for (name, value) in self.expanded(instruction)? {
                    if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                        return Err(format!("not a variable: `{name}`"));
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
                // What the image below would run is no argument of this.
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

    /// The pairs of ENV or LABEL; all of one line see what was before it.
    fn expanded(&self, instruction: &Instruction) -> Result<Vec<(String, String)>, Wrong> {
        let (Instruction::Env(pairs) | Instruction::Label(pairs)) = instruction else {
            return Ok(Vec::new());
        };
        pairs.iter().map(|(name, value)| Ok((self.word(name)?, self.word(value)?))).collect()
    }

    /// What runs commands that are text.
    fn shell(&self) -> Vec<String> {
        let usual = || vec!["/bin/sh".to_owned(), "-c".to_owned()];
        let own = self.image.config.shell.clone().filter(|shell| !shell.is_empty());
        own.unwrap_or_else(usual)
    }

    fn argv(&self, form: &Form) -> Option<Vec<String>> {
        match form {
            Form::Exec(words) => Some(words.clone()),
            Form::Shell(text) if text.is_empty() => None,
            Form::Shell(text) => {
                let mut argv = self.shell();
                argv.push(text.clone());
                Some(argv)
            }
        }
    }

    fn run(&self, globals: &Globals, run: &Run) -> Result<Job> {
        let command = match &run.program {
            Program::Script(text) => Launch::Script(text.clone()),
            Program::Command(form) => Launch::Words(self.argv(form).unwrap_or_default()),
        };
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let declared = self.scope.arguments().iter().map(|(name, value)| (&**name, &**value));
        let of_image = self.environment().iter().filter_map(|pair| pair.split_once('='));
        let user = match self.image.config.user.as_deref().unwrap_or_default() {
            "" => None,
            user => Some(UserRef::parse(user)?),
        };
        Ok(Job {
            command,
            env: declared.chain(of_image).map(pair).collect(),
            unnoticed: globals.undeclared().map(pair).collect(),
            workdir: absolute(&self.workdir(), ""),
            user,
            network: run.network,
        })
    }

    fn copy(&self, copy: &Copy) -> Result<Copying, Wrong> {
        let source = |source: &Source| match source {
            Source::Path(path) => self.word(path).map(Source::Path),
            Source::Document { name, body, expand: true } => {
                let lookup = |name: &str| self.scope.get(name, self.environment());
                let body = Lexer::new('\\', &lookup).document(body)?;
                Ok(Source::Document { name: name.clone(), body, expand: false })
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
            digits.ok_or_else(|| format!("not permissions in octal digits: `{mode}`"))
        });
        let last = target.rsplit('/').next().unwrap_or_default();
        Ok(Copying {
            add: copy.add,
            sources: copy.sources.iter().map(source).collect::<Result<_, Wrong>>()?,
            into: matches!(last, "" | "." | ".."),
            target: absolute(&self.workdir(), &target),
            from: optional(&copy.from)?,
            owner: owner.transpose()?,
            mode: mode.transpose()?,
        })
    }
}

/// A path from the root, without `.` and `..`, whatever is there.
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

/// `80`, `80/udp` or `8000-8010/tcp`, as images write them.
fn ports(text: &str) -> Result<Vec<String>, Wrong> {
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
        Form::Shell(text) => vec!["CMD-SHELL", text],
        Form::Exec(words) => ["CMD"].into_iter().chain(words.iter().map(String::as_str)).collect(),
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

/// Sets a variable in place, or adds it.
fn set(environment: &mut Vec<String>, name: &str, value: &str) {
    let pair = format!("{name}={value}");
    let own = |pair: &&mut String| pair.split_once('=').is_some_and(|(own, _)| own == name);
    match environment.iter_mut().find(own) {
        Some(old) => *old = pair,
        None => environment.push(pair),
    }
}

/// Where programs are looked for in an image that was made from nothing; every builder says so.
const USUAL_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// An image without layers: `FROM scratch`.
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
