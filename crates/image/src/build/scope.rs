//! Build variables: where they are set and where they are visible.
//!
//! An ARG before the first stage is visible in FROM only, unless a stage declares it again. A stage
//! sees the variables that it has declared since its FROM, and ENV of the image, which takes
//! precedence.

use super::containerfile::wrong;
use super::lexer::Lexer;
use super::step::{BuildArg, BuildStage, Containerfile};
use msb_spec::Result;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// Variables that RUN gets without ARG. They are not part of the cache key: a proxy changes how
/// data is fetched, not what.
const UNDECLARED: [&str; 10] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "FTP_PROXY",
    "ftp_proxy",
    "NO_PROXY",
    "no_proxy",
    "ALL_PROXY",
    "all_proxy",
];

/// Variables that every stage starts with.
#[derive(Debug, Clone)]
pub struct Globals {
    /// Values of `--build-arg` by name.
    given: BTreeMap<String, String>,
    /// Platform variables such as TARGETARCH.
    platform: BTreeMap<String, String>,
    /// Values of ARG before the first stage.
    declared: BTreeMap<String, String>,
    /// Names in `given` that some ARG has declared.
    used: RefCell<BTreeSet<String>>,
    file: String,
    escape: char,
}

impl Globals {
    /// Evaluates the ARGs before the first stage. `target` and `build` are platforms as
    /// `os/architecture[/variant]`.
    pub fn new(
        file: &Containerfile,
        given: BTreeMap<String, String>,
        target: &str,
        build: &str,
    ) -> Result<Self> {
        let mut platform = BTreeMap::new();
        for (prefix, text) in [("TARGET", target), ("BUILD", build)] {
            let mut parts = text.splitn(3, '/');
            platform.insert(format!("{prefix}PLATFORM"), text.to_owned());
            for name in ["OS", "ARCH", "VARIANT"] {
                let value = parts.next().unwrap_or_default();
                platform.insert(format!("{prefix}{name}"), value.to_owned());
            }
        }
        let mut globals = Self {
            given,
            platform,
            declared: BTreeMap::new(),
            used: RefCell::default(),
            file: file.file.clone(),
            escape: file.escape,
        };
        for argument in &file.arguments {
            let value = globals.value(argument, &|name| globals.seen_by_from(name))?;
            if let Some(value) = value {
                globals.declared.insert(argument.name.clone(), value);
            }
        }
        Ok(globals)
    }

    /// The image name of FROM, with variables expanded.
    pub fn from(&self, stage: &BuildStage) -> Result<String> {
        self.expand(stage.line, &stage.from)
    }

    /// The `--platform` of FROM, with variables expanded.
    pub fn platform(&self, stage: &BuildStage) -> Result<Option<String>> {
        stage.platform.as_deref().map(|text| self.expand(stage.line, text)).transpose()
    }

    /// Names of `--build-arg` that no ARG has declared.
    pub fn unused(&self) -> Vec<&str> {
        let used = self.used.borrow();
        let names = self.given.keys().map(String::as_str);
        names.filter(|name| !used.contains(*name) && !UNDECLARED.contains(name)).collect()
    }

    /// Values of `--build-arg` that RUN gets without ARG.
    pub fn undeclared(&self) -> impl Iterator<Item = (&str, &str)> {
        let given = self.given.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        given.filter(|(name, _)| UNDECLARED.contains(name))
    }

    fn expand(&self, line: usize, text: &str) -> Result<String> {
        let lookup = |name: &str| self.seen_by_from(name);
        Lexer::new(self.escape, &lookup).word(text).map_err(|why| wrong(&self.file, line, why))
    }

    fn seen_by_from(&self, name: &str) -> Option<String> {
        self.declared.get(name).or_else(|| self.platform.get(name)).cloned()
    }

    /// The value of a declared variable: of `--build-arg`, or else its default.
    fn value(
        &self,
        argument: &BuildArg,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<String>> {
        if let Some(given) = self.given.get(&argument.name) {
            self.used.borrow_mut().insert(argument.name.clone());
            return Ok(Some(given.clone()));
        }
        let Some(default) = &argument.default else {
            return Ok(None);
        };
        let value = Lexer::new(self.escape, lookup).word(default);
        value.map(Some).map_err(|why| wrong(&self.file, argument.line, why))
    }
}

/// Variables that a stage has declared so far.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    arguments: BTreeMap<String, String>,
}

impl Scope {
    /// Declares a variable. `environment` is ENV of the image.
    pub(crate) fn declare(
        &mut self,
        globals: &Globals,
        argument: &BuildArg,
        environment: &[String],
    ) -> Result<()> {
        let value = globals.value(argument, &|name| self.get(name, environment))?;
        let name = &argument.name;
        let inherited = || globals.declared.get(name).or_else(|| globals.platform.get(name));
        if let Some(value) = value.or_else(|| inherited().cloned()) {
            self.arguments.insert(name.clone(), value);
        }
        Ok(())
    }

    /// The value of a variable. ENV of the image takes precedence.
    pub(crate) fn get(&self, name: &str, environment: &[String]) -> Option<String> {
        let of_image = environment.iter().find_map(|pair| {
            pair.split_once('=').filter(|(own, _)| *own == name).map(|(_, value)| value.to_owned())
        });
        of_image.or_else(|| self.arguments.get(name).cloned())
    }

    /// All declared variables and their values.
    pub(crate) fn arguments(&self) -> &BTreeMap<String, String> {
        &self.arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn globals(text: &str, given: &[(&str, &str)]) -> (Containerfile, Globals) {
        let file = Containerfile::parse("f", text).unwrap();
        let given = given.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let globals = Globals::new(&file, given, "linux/arm/v7", "linux/amd64").unwrap();
        (file, globals)
    }

    fn argument(name: &str, default: Option<&str>) -> BuildArg {
        BuildArg { name: name.to_owned(), default: default.map(str::to_owned), line: 1 }
    }

    #[test]
    fn from_sees_what_stands_before_it() {
        let text = "ARG V=3\nARG N=alpine:$V\nFROM --platform=$BUILDPLATFORM ${N}\n";
        let (file, plain) = globals(text, &[]);
        assert_eq!(plain.from(&file.stages[0]).unwrap(), "alpine:3");
        assert_eq!(plain.platform(&file.stages[0]).unwrap().unwrap(), "linux/amd64");
        let (file, asked) = globals(text, &[("V", "4"), ("X", "y")]);
        assert_eq!(asked.from(&file.stages[0]).unwrap(), "alpine:4");
        assert_eq!(asked.unused(), ["X"]);
    }

    #[test]
    fn a_stage_sees_only_what_it_declares() {
        let (_, globals) = globals("ARG V=3\nARG W\nFROM a\n", &[("G", "g")]);
        let mut scope = Scope::default();
        assert_eq!(scope.get("V", &[]), None);
        scope.declare(&globals, &argument("V", None), &[]).unwrap();
        scope.declare(&globals, &argument("W", None), &[]).unwrap();
        scope.declare(&globals, &argument("G", Some("other")), &[]).unwrap();
        scope.declare(&globals, &argument("D", Some("$V-$HOME")), &["HOME=/r".into()]).unwrap();
        scope.declare(&globals, &argument("TARGETARCH", None), &[]).unwrap();
        let seen: Vec<_> = scope.arguments().iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(seen, ["D=3-/r", "G=g", "TARGETARCH=arm", "V=3"]);
        assert_eq!(scope.get("V", &["V=image".to_owned()]).as_deref(), Some("image"));
    }

    #[test]
    fn proxies_need_no_declaration() {
        let (_, globals) = globals("FROM a\n", &[("HTTP_PROXY", "p")]);
        assert_eq!(globals.undeclared().collect::<Vec<_>>(), [("HTTP_PROXY", "p")]);
        assert!(globals.unused().is_empty());
    }
}
