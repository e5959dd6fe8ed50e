//! The languages with interpreters, and their driver programs.

use msb_api::{Api, Exec};
use msb_spec::{Command, Error, Kind, Name, Result, Stdin};

const PYTHON: &str = include_str!("driver.py");
const NODE: &str = include_str!("driver.js");
/// Opens the descriptors that the Node.js driver cannot open itself.
const BEGIN_NODE: &str = include_str!("begin.sh");

/// A language whose interpreter keeps its state between calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    /// Python 3, by `python3` or `python`.
    Python,
    /// JavaScript, run by Node.js.
    Node,
}

impl Language {
    /// Parses the name that a client uses, with its aliases.
    pub fn parse(text: &str) -> Result<Self> {
        match text.to_ascii_lowercase().as_str() {
            "python" | "python3" => Ok(Self::Python),
            "nodejs" | "node" | "javascript" => Ok(Self::Node),
            _ => Err(Error::invalid(format!("no interpreter for `{}`", msb_spec::shown(text)))
                .hint("the languages are `python` and `nodejs`; run others as a command")),
        }
    }

    /// The canonical name of the language.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "nodejs",
        }
    }

    /// The image that contains the interpreter.
    pub fn image(self) -> &'static str {
        match self {
            Self::Python => "microsandbox/python",
            Self::Node => "microsandbox/node",
        }
    }

    /// Starts the driver in a sandbox.
    pub(super) fn start(self, api: &dyn Api, name: &Name) -> Result<Box<dyn Exec>> {
        let mut missing = None;
        for argv in self.commands() {
            // Not logged: its output is frames, which are useless in a log.
            let stdin = Stdin::Streamed;
            let command = Command { argv, stdin, unlogged: true, ..Command::default() };
            match api.exec_start(name, &command) {
                Err(error) if error.kind() == Kind::CommandNotFound => missing = Some(error),
                started => return started,
            }
        }
        let missing = missing.map_or_else(|| self.missing(), |error| self.missing().cause(error));
        Err(missing)
    }

    fn commands(self) -> Vec<Vec<String>> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        match self {
            Self::Python => ["python3", "python"].map(|it| words(&[it, "-c", PYTHON])).into(),
            Self::Node => vec![words(&["sh", "-c", BEGIN_NODE, "msb", "node", NODE])],
        }
    }

    /// The error for a sandbox without the interpreter.
    pub(super) fn missing(self) -> Error {
        let (language, image) = (self.as_str(), self.image());
        Error::new(Kind::CommandNotFound, format!("this sandbox has no `{language}`"))
            .hint(format!("start one with the image `{image}`"))
    }
}
