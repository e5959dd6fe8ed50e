//! `msb install`: an image as a command of the host; `msb uninstall`.

use super::bare_engine;
use super::run::RunArgs;
use crate::output::{self, Outcome};
use crate::verb_table::LocalVerb;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches, Parser};
use msb_engine::InstalledCommand;
use msb_spec::{Error, ImageRef, Result, env};
use std::ffi::OsString;
use std::path::Path;

/// Flags of `run` that make no sense for a command that is called again and again.
const REFUSED: [&str; 3] = ["detach", "replace", "dry_run"];

/// Flags that name a file which describes the sandbox: that file, wherever it is called from.
/// What a sandbox is shown is found from where it is called, as with `-v .:/src`.
const FILES: [&str; 4] = ["conf", "env_file", "patch_files", "ca"];

/// Makes a command of the host that runs an image.
#[derive(Debug)]
pub(crate) struct InstallArgs {
    name: Option<String>,
    image: String,
    flags: Vec<OsString>,
    command: Vec<OsString>,
    refused: Option<&'static str>,
    run: RunArgs,
}

impl CommandFactory for InstallArgs {
    /// The flags of `run`, where a name is the command's and there is always an image.
    fn command() -> Command {
        let mut command = RunArgs::command()
            .override_usage("msb install [OPTIONS] IMAGE [-- COMMAND...]")
            .mut_arg("name", |arg| arg.help("Name of the command [default: the image's]"))
            .mut_arg("image", |arg| arg.required(true))
            .mut_arg("command", |arg| arg.help("Begins every command line that is run inside"))
            .mut_arg("json", |arg| arg.help("Print the path of the command, and errors, as JSON"))
            .mut_arg("rm", |arg| arg.hide(true));
        for flag in REFUSED {
            command = command.mut_arg(flag, |arg| arg.hide(true));
        }
        command
    }

    fn command_for_update() -> Command {
        Self::command()
    }
}

impl FromArgMatches for InstallArgs {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<Self, clap::Error> {
        let command = Self::command();
        let flags = command.get_arguments().filter(|arg| arg.get_long().is_some());
        // These are about the installation and not about the sandboxes.
        let flags = flags.filter(|arg| !["name", "json"].contains(&arg.get_id().as_str()));
        let raw = |id: &str| matches.get_raw(id).into_iter().flatten().map(OsString::from);
        Ok(Self {
            name: matches.get_one::<String>("name").cloned(),
            image: matches.get_one::<String>("image").cloned().unwrap_or_default(),
            flags: flags.flat_map(|arg| typed(arg, matches)).collect(),
            command: raw("command").collect(),
            run: RunArgs::from_arg_matches(matches)?,
            refused: REFUSED.into_iter().find(|flag| matches.get_flag(flag)),
        })
    }

    fn update_from_arg_matches(&mut self, m: &ArgMatches) -> std::result::Result<(), clap::Error> {
        *self = Self::from_arg_matches(m)?;
        Ok(())
    }
}

impl LocalVerb for InstallArgs {
    fn run(self) -> Outcome {
        if let Some(flag) = self.refused {
            let flag = flag.replace('_', "-");
            let message = format!("`--{flag}` is not for a command that is installed");
            return Err(Error::invalid(message)
                .hint("each call runs in a sandbox of its own, which is gone when it ends")
                .into());
        }
        let engine = bare_engine()?;
        let image = ImageRef::parse(&self.image)?;
        // A mistake is better told now than at every call.
        self.run.sandbox.check(&engine)?;
        let name = self.name.clone().unwrap_or_else(|| name_of(&image));
        let program = std::env::current_exe()
            .map_err(|error| Error::host("cannot find this program's own file", error))?;
        let mut words: Vec<OsString> = vec!["run".into()];
        words.extend(self.flags);
        words.push(match &image {
            ImageRef::Path(path) => absolute(path)?,
            _ => self.image.into(),
        });
        words.push("--".into());
        words.extend(self.command);
        let keep_home = std::env::var_os(env::HOME).is_some_and(|home| !home.is_empty());
        let recipe = InstalledCommand { program: &program, words: &words, keep_home };
        let path = engine.install(&name, &recipe)?;
        output::result("path", path.display().to_string());
        let directory = engine.commands();
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|entry| entry == directory) {
            output::note(format!(
                "`{0}` is not on PATH; `export PATH=\"$PATH:{0}\"` puts it there",
                directory.display()
            ));
        }
        Ok(0)
    }
}

/// A flag as it has to be typed to mean the same again; nothing if it was not.
fn typed(arg: &Arg, matches: &ArgMatches) -> Vec<OsString> {
    let (id, long) = (arg.get_id().as_str(), arg.get_long().unwrap_or_default());
    if matches.value_source(id) != Some(ValueSource::CommandLine) {
        return Vec::new();
    }
    if !arg.get_action().takes_values() {
        return vec![format!("--{long}").into()];
    }
    let values = matches.get_raw(id).into_iter().flatten();
    let word = |value: &std::ffi::OsStr| {
        let mut word = OsString::from(format!("--{long}="));
        let is_file = FILES.contains(&id);
        match absolute(Path::new(value)) {
            Ok(path) if is_file => word.push(path),
            _ => word.push(value),
        }
        word
    };
    values.map(word).collect()
}

fn absolute(path: &Path) -> Result<OsString> {
    let found = std::path::absolute(path);
    found.map(OsString::from).map_err(|error| Error::host("cannot tell where this is", error))
}

/// The last word of an image's name, which is what people call it.
fn name_of(image: &ImageRef) -> String {
    match image {
        ImageRef::Host => "host".to_owned(),
        ImageRef::Path(path) => {
            path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
        }
        ImageRef::Snapshot(name) => name.to_string(),
        ImageRef::Name(reference) => {
            reference.repository().rsplit('/').next().unwrap_or_default().to_owned()
        }
    }
}

/// Removes a command that `msb install` has made. The image stays.
#[derive(Debug, Parser)]
#[command(override_usage = "msb uninstall NAME")]
pub(crate) struct UninstallArgs {
    /// Name of the command
    #[arg(value_name = "NAME")]
    name: String,
}

impl LocalVerb for UninstallArgs {
    fn run(self) -> Outcome {
        bare_engine()?.uninstall(&self.name)?;
        Ok(0)
    }
}
