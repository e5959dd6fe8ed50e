//! The languages that keep their state, and the drivers that keep it.

use msb_api::{Api, Exec};
use msb_spec::{Command, Error, Kind, Name, Result, Stdin};

const PYTHON: &str = include_str!("driver.py");
const NODE: &str = include_str!("driver.js");
/// Gives the driver of Node.js the descriptors that it cannot make itself.
const BEGIN_NODE: &str = include_str!("begin.sh");

/// A language whose interpreter keeps its state between calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    /// Python 3.
    Python,
    /// JavaScript, by Node.js.
    Node,
}

impl Language {
    /// As clients write it.
    pub fn parse(text: &str) -> Result<Self> {
        match text.to_ascii_lowercase().as_str() {
            "python" | "python3" => Ok(Self::Python),
            "nodejs" | "node" | "javascript" => Ok(Self::Node),
            _ => Err(Error::invalid(format!("no interpreter for `{}`", msb_spec::shown(text)))
                .hint("the languages are `python` and `nodejs`; run others as a command")),
        }
    }

    /// As it is answered.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "nodejs",
        }
    }

    /// The image that has it.
    pub fn image(self) -> &'static str {
        match self {
            Self::Python => "microsandbox/python",
            Self::Node => "microsandbox/node",
        }
    }

    /// Starts its driver.
    pub(super) fn start(self, api: &dyn Api, name: &Name) -> Result<Box<dyn Exec>> {
        let mut missing = None;
        for argv in self.commands() {
            // Its output are frames, which people who read the log have no use for.
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

    /// The sandbox has no such interpreter.
    pub(super) fn missing(self) -> Error {
        let (language, image) = (self.as_str(), self.image());
        Error::new(Kind::CommandNotFound, format!("this sandbox has no `{language}`"))
            .hint(format!("start one with the image `{image}`"))
    }
}
