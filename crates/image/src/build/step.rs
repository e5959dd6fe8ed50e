//! Syntax tree of a Containerfile. Variables are not expanded yet.
//!
//! Variables are expanded when a step runs, because their values depend on earlier steps and on the
//! base image.

use serde::{Deserialize, Serialize};

/// A parsed Containerfile with its stages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Containerfile {
    /// File name for messages.
    pub file: String,
    /// Escape character: a backslash or a backtick.
    pub escape: char,
    /// ARGs before the first stage.
    pub arguments: Vec<BuildArg>,
    /// Stages; at least one.
    pub stages: Vec<BuildStage>,
}

/// A stage: from one FROM to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildStage {
    /// Name after `AS`, in lower case.
    pub name: Option<String>,
    /// An image, `scratch` or an earlier stage, unexpanded.
    pub from: String,
    /// `--platform` of FROM, unexpanded.
    pub platform: Option<String>,
    /// Line number of its FROM.
    pub line: usize,
    /// Instructions after FROM, in order.
    pub steps: Vec<BuildStep>,
}

/// One instruction with its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildStep {
    /// Line number of its keyword, from 1.
    pub line: usize,
    /// Source text on one line, for messages.
    pub text: String,
    /// Keyword and arguments, parsed.
    pub instruction: Instruction,
}

/// An instruction with its parsed arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Instruction {
    /// RUN: runs a command.
    Run(RunInstruction),
    /// COPY or ADD: copies files; ADD unpacks archives.
    Copy(CopyInstruction),
    /// ENV: sets variables of the image.
    Env(Vec<(String, String)>),
    /// ARG: declares variables of the build.
    Arg(Vec<BuildArg>),
    /// WORKDIR: sets the working directory.
    Workdir(String),
    /// USER: sets the user of commands.
    User(String),
    /// LABEL: sets labels of the image.
    Label(Vec<(String, String)>),
    /// CMD: sets the default command.
    Cmd(CommandForm),
    /// ENTRYPOINT: sets arguments that precede every command.
    Entrypoint(CommandForm),
    /// EXPOSE: names ports that the image listens on.
    Expose(String),
    /// VOLUME: names mount points of volumes.
    Volume(Vec<String>),
    /// SHELL: sets the shell for the shell form.
    Shell(Vec<String>),
    /// STOPSIGNAL: sets the signal that stops the main process.
    StopSignal(String),
    /// HEALTHCHECK: sets the health check.
    Healthcheck(Healthcheck),
    /// ONBUILD: an instruction for derived images, as text.
    Onbuild(String),
    /// MAINTAINER: sets the author.
    Maintainer(String),
}

/// A variable of the build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildArg {
    /// Name of the variable.
    pub name: String,
    /// Default value, unexpanded; none if there is no `=`.
    pub default: Option<String>,
    /// Line number of the declaration.
    pub line: usize,
}

/// A command in shell form or exec form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandForm {
    /// Text for the shell of the image.
    Shell(String),
    /// Program and its arguments.
    Exec(Vec<String>),
}

/// Arguments of a RUN instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunInstruction {
    /// The command or script.
    pub program: RunProgram,
    /// Whether the command may use the network of the build.
    pub network: bool,
}

/// What a RUN instruction runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunProgram {
    /// A command in either form.
    Command(CommandForm),
    /// A here-document whose first line names its interpreter.
    Script(String),
}

/// Arguments of COPY or ADD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyInstruction {
    /// Whether it is ADD, which unpacks archives.
    pub add: bool,
    /// Sources; at least one.
    pub sources: Vec<CopySource>,
    /// Path of the target, unexpanded.
    pub target: String,
    /// `--from`: a stage or an image instead of the build context, unexpanded.
    pub from: Option<String>,
    /// `--chown`: owner of the files, unexpanded.
    pub owner: Option<String>,
    /// `--chmod`: mode of the files, unexpanded.
    pub mode: Option<String>,
}

/// A source of COPY or ADD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopySource {
    /// A path, possibly with wildcards, unexpanded.
    Path(String),
    /// A here-document in the Containerfile.
    Document {
        /// File name in the target directory.
        name: String,
        /// Content of the file.
        body: String,
        /// Whether variables in it are expanded.
        expand: bool,
    },
}

/// A health check. Durations are in nanoseconds, as in image configs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Healthcheck {
    /// Disables the health check of the base image.
    None,
    /// Runs a command; exit code 0 means healthy.
    Test {
        /// The command to run.
        command: CommandForm,
        /// Time between two runs.
        interval: Option<u64>,
        /// Time after which a run has failed.
        timeout: Option<u64>,
        /// Initial time in which failures do not count.
        start_period: Option<u64>,
        /// Time between two runs before the first success.
        start_interval: Option<u64>,
        /// Consecutive failures that make it unhealthy.
        retries: Option<u64>,
    },
}
