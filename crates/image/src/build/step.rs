//! What a Containerfile asks for, step by step, with its variables still in it.
//!
//! Variables are replaced when a step's turn comes: what they hold depends on the steps before
//! it and on the image below.

use serde::{Deserialize, Serialize};

/// A Containerfile, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Containerfile {
    /// What it is called in messages.
    pub file: String,
    /// What stands before a letter that is to mean itself.
    pub escape: char,
    /// `ARG`s before the first stage.
    pub arguments: Vec<Argument>,
    /// At least one.
    pub stages: Vec<Stage>,
}

/// From one FROM to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// What other stages and `--target` call it, in small letters.
    pub name: Option<String>,
    /// An image, `scratch` or an earlier stage, as written.
    pub from: String,
    /// `--platform`, as written.
    pub platform: Option<String>,
    /// The line of its FROM.
    pub line: usize,
    /// What follows.
    pub steps: Vec<Step>,
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Where it begins, from 1.
    pub line: usize,
    /// As written, on one line, for people.
    pub text: String,
    /// What it is.
    pub instruction: Instruction,
}

/// What a step does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Instruction {
    /// Runs a command.
    Run(Run),
    /// Copies files; for ADD, unpacks archives.
    Copy(Copy),
    /// Sets variables of the image.
    Env(Vec<(String, String)>),
    /// Declares variables of the build.
    Arg(Vec<Argument>),
    /// Sets where commands start.
    Workdir(String),
    /// Sets who runs commands.
    User(String),
    /// Sets what people and tools know an image by.
    Label(Vec<(String, String)>),
    /// Sets what runs if nobody says what.
    Cmd(Form),
    /// Sets what always runs.
    Entrypoint(Form),
    /// Names ports that somebody listens on.
    Expose(String),
    /// Names directories whose contents are not the image's.
    Volume(Vec<String>),
    /// Sets what runs commands that are text.
    Shell(Vec<String>),
    /// Sets how it is asked to stop.
    StopSignal(String),
    /// Sets how to see whether it is well.
    Healthcheck(Healthcheck),
    /// Kept for whoever builds on the image: an instruction as text.
    Onbuild(String),
    /// Who made it.
    Maintainer(String),
}

/// A variable of the build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Its name.
    pub name: String,
    /// What it holds if nobody says otherwise, as written.
    pub default: Option<String>,
    /// Where it is declared.
    pub line: usize,
}

/// A command as text for the shell or as words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// For the image's shell.
    Shell(String),
    /// Program and arguments.
    Exec(Vec<String>),
}

/// What RUN asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// What is run.
    pub program: Program,
    /// Whether it has the network of the build, if that has one.
    pub network: bool,
}

/// What RUN runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// A command.
    Command(Form),
    /// A here-document that names its own interpreter in its first line.
    Script(String),
}

/// What COPY and ADD copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// Whether it is ADD, which unpacks archives.
    pub add: bool,
    /// At least one.
    pub sources: Vec<Source>,
    /// Where to, as written.
    pub target: String,
    /// A stage or an image instead of the directory that is built from, as written.
    pub from: Option<String>,
    /// Whose the files become, as written.
    pub owner: Option<String>,
    /// Their permissions, as written.
    pub mode: Option<String>,
}

/// Something to copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A path, perhaps with wildcards, as written.
    Path(String),
    /// A file that stands in the Containerfile.
    Document {
        /// What it is called in a directory.
        name: String,
        /// What it holds.
        body: String,
        /// Whether variables in it are replaced.
        expand: bool,
    },
}

/// How to see whether what runs is well. Times are in nanoseconds, as images keep them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Healthcheck {
    /// Not at all, even if the image below says how.
    None,
    /// By a command.
    Test {
        /// What is run.
        command: Form,
        /// How often.
        interval: Option<u64>,
        /// When it is given up.
        timeout: Option<u64>,
        /// How long failures do not count at first.
        start_period: Option<u64>,
        /// How often until it is well for the first time.
        start_interval: Option<u64>,
        /// How many failures in a row count.
        retries: Option<u64>,
    },
}
