//! Every verb in one table: help, completions and dispatch all come from it.

use crate::output::{self, Failure, Outcome};
use crate::target::{self, Target};
use crate::{habits, loose_command, verbs};
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};
use msb_spec::Error;
use std::ffi::OsString;

/// A verb that acts on this machine.
pub(crate) trait LocalVerb: CommandFactory + FromArgMatches {
    fn run(self) -> Outcome;
}

/// A verb that acts on this machine or on a server.
pub(crate) trait TargetVerb: CommandFactory + FromArgMatches {
    fn run_on(self, target: &Target) -> Outcome;
}

struct Verb {
    name: &'static str,
    group: &'static str,
    about: &'static str,
    scope: VerbScope,
    command: fn() -> Command,
    act: fn(&ArgMatches, &Target) -> Outcome,
}

/// What a verb is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VerbScope {
    /// Sandboxes of this machine or of a server (`--remote`).
    AnyTarget,
    /// Only this machine: refused with `--remote`.
    LocalOnly,
    /// The program itself, whatever it is pointed at.
    Program,
}

/// A verb that works through a server, too.
const fn any_target<T: TargetVerb>(
    group: &'static str,
    name: &'static str,
    about: &'static str,
) -> Verb {
    Verb { name, group, about, scope: VerbScope::AnyTarget, command: T::command, act: run_on::<T> }
}

/// A verb for this machine alone.
const fn local_only<T: LocalVerb>(
    group: &'static str,
    name: &'static str,
    about: &'static str,
) -> Verb {
    Verb { name, group, about, scope: VerbScope::LocalOnly, command: T::command, act: act::<T> }
}

/// A verb that is not about sandboxes at all.
const fn program<T: LocalVerb>(
    group: &'static str,
    name: &'static str,
    about: &'static str,
) -> Verb {
    Verb { name, group, about, scope: VerbScope::Program, command: T::command, act: act::<T> }
}

/// A verb about the program itself that tells what it is pointed at.
const fn about_target<T: TargetVerb>(
    group: &'static str,
    name: &'static str,
    about: &'static str,
) -> Verb {
    Verb { name, group, about, scope: VerbScope::Program, command: T::command, act: run_on::<T> }
}

fn run_on<T: TargetVerb>(matches: &ArgMatches, target: &Target) -> Outcome {
    T::from_arg_matches(matches).map_err(Failure::from)?.run_on(target)
}

fn act<T: LocalVerb>(matches: &ArgMatches, _: &Target) -> Outcome {
    T::from_arg_matches(matches).map_err(Failure::from)?.run()
}

/// Verbs that share their first word and are told apart by the second. The first word alone may be
/// a verb, too: `msb mcp` does something, and so does `msb mcp install`.
struct Family {
    name: &'static str,
    group: &'static str,
    about: &'static str,
    /// Whether the first word alone takes names, so that a second word which is none of ours is one.
    names: bool,
}

/// Everything that can be typed after `msb`. A verb's name is one word, or a family's and its own.
struct Table {
    families: &'static [Family],
    verbs: &'static [Verb],
}

const RUN: &str = "Run";
const LIFE: &str = "Keep";
const STATE: &str = "State";
const LOOK: &str = "Look";
const IMAGES: &str = "Images";
const MORE: &str = "More";

/// Verbs whose output is a text for another program, or a protocol.
const TEXT_ONLY: [&str; 8] =
    ["api", "completion", "docs", "mcp", "skill show", "ssh config", "ssh serve", "volume cat"];

/// In the order of the help; a group without verbs is left out.
const GROUPS: [&str; 6] = [RUN, LIFE, STATE, LOOK, IMAGES, MORE];

const TABLE: Table = Table {
    families: &[
        Family { name: "config", group: MORE, about: "Show and change settings", names: false },
        Family { name: "events", group: LOOK, about: "Show what has happened", names: true },
        Family {
            name: "image",
            group: IMAGES,
            about: "List, inspect and remove images",
            names: false,
        },
        Family { name: "mcp", group: MORE, about: "Serve sandboxes to MCP clients", names: false },
        Family {
            name: "port",
            group: LIFE,
            about: "Publish ports of a running sandbox",
            names: false,
        },
        Family { name: "registry", group: IMAGES, about: "Log in to registries", names: false },
        Family {
            name: "skill",
            group: MORE,
            about: "Teach a coding agent to use msb",
            names: false,
        },
        Family { name: "server", group: MORE, about: "Serve sandboxes over HTTP", names: false },
        Family { name: "ssh", group: RUN, about: "Log in by SSH", names: true },
        Family { name: "snapshot", group: STATE, about: "Save files", names: false },
        Family { name: "setup", group: MORE, about: "Make this host ready", names: false },
        Family {
            name: "sync",
            group: STATE,
            about: "Keep a directory of the host in step inside",
            names: false,
        },
        Family { name: "volume", group: STATE, about: "Keep files beyond sandboxes", names: false },
    ],
    verbs: &[
        any_target::<verbs::run::RunArgs>(RUN, "run", "Run a command in a new sandbox"),
        any_target::<verbs::exec::ExecArgs>(RUN, "exec", "Run a command in a running sandbox"),
        local_only::<verbs::ssh::SshArgs>(RUN, "ssh", "Log in to a running sandbox"),
        local_only::<verbs::ssh::SshServeArgs>(
            RUN,
            "ssh serve",
            "Serve SSH at a port, or to one client",
        ),
        local_only::<verbs::ssh::SshConfigArgs>(
            RUN,
            "ssh config",
            "Print a block for ~/.ssh/config",
        ),
        local_only::<verbs::ssh::SshAuthorizeArgs>(RUN, "ssh authorize", "Let a key log in"),
        local_only::<verbs::ssh::SshRevokeArgs>(RUN, "ssh revoke", "Let a key log in no more"),
        local_only::<verbs::ssh::SshKeysArgs>(RUN, "ssh keys", "List the keys that may log in"),
        any_target::<verbs::attach::AttachArgs>(RUN, "attach", "Take part in a command that runs"),
        any_target::<verbs::kill::KillArgs>(RUN, "kill", "Send a signal to a command"),
        any_target::<verbs::cp::CpArgs>(RUN, "cp", "Copy files between the host and a sandbox"),
        any_target::<verbs::sync::SyncStartArgs>(
            STATE,
            "sync start",
            "Copy a directory in, and what changes in it",
        ),
        any_target::<verbs::sync::SyncLsArgs>(STATE, "sync ls", "List what is kept in step"),
        any_target::<verbs::sync::SyncStopArgs>(
            STATE,
            "sync stop",
            "End a sync; what it has sent stays",
        ),
        any_target::<verbs::create::CreateArgs>(
            LIFE,
            "create",
            "Make a sandbox and keep it running",
        ),
        any_target::<verbs::life::StartArgs>(LIFE, "start", "Start sandboxes that have stopped"),
        any_target::<verbs::life::StopArgs>(LIFE, "stop", "Stop sandboxes; what they wrote stays"),
        any_target::<verbs::life::RestartArgs>(
            LIFE,
            "restart",
            "Stop sandboxes and start them again",
        ),
        any_target::<verbs::life::DrainArgs>(
            LIFE,
            "drain",
            "Take no new commands, end with the last",
        ),
        any_target::<verbs::life::PauseArgs>(LIFE, "pause", "Stop everything inside where it is"),
        any_target::<verbs::life::ResumeArgs>(LIFE, "resume", "Let what was paused go on"),
        any_target::<verbs::modify::ModifyArgs>(LIFE, "modify", "Change limits, labels and clocks"),
        any_target::<verbs::modify::RenameArgs>(LIFE, "rename", "Give a sandbox another name"),
        any_target::<verbs::life::WaitArgs>(LIFE, "wait", "Wait until sandboxes have ended"),
        any_target::<verbs::life::RmArgs>(LIFE, "rm", "Remove sandboxes with all they hold"),
        any_target::<verbs::children::SpawnArgs>(LIFE, "spawn", "Make a sandbox for a sandbox"),
        any_target::<verbs::snapshot::SnapshotCreateArgs>(
            STATE,
            "snapshot create",
            "Save the files of a sandbox",
        ),
        any_target::<verbs::snapshot::SnapshotLsArgs>(STATE, "snapshot ls", "List snapshots"),
        any_target::<verbs::snapshot::SnapshotInspectArgs>(
            STATE,
            "snapshot inspect",
            "Show a snapshot",
        ),
        any_target::<verbs::snapshot::SnapshotVerifyArgs>(
            STATE,
            "snapshot verify",
            "Look for a single changed bit",
        ),
        any_target::<verbs::snapshot::SnapshotSaveArgs>(
            STATE,
            "snapshot save",
            "Write a snapshot to a file",
        ),
        any_target::<verbs::snapshot::SnapshotLoadArgs>(
            STATE,
            "snapshot load",
            "Read a snapshot from a file",
        ),
        any_target::<verbs::snapshot::SnapshotTagArgs>(
            STATE,
            "snapshot tag",
            "Give a snapshot one more name",
        ),
        any_target::<verbs::snapshot::SnapshotRmArgs>(STATE, "snapshot rm", "Remove snapshots"),
        any_target::<verbs::snapshot::RestoreArgs>(
            STATE,
            "restore",
            "Make a sandbox from a snapshot",
        ),
        any_target::<verbs::snapshot::RollbackArgs>(
            STATE,
            "rollback",
            "Put a sandbox back to a snapshot",
        ),
        any_target::<verbs::snapshot::CloneArgs>(STATE, "clone", "Make a second sandbox of one"),
        any_target::<verbs::snapshot::ResetArgs>(STATE, "reset", "Put a sandbox back to its image"),
        any_target::<verbs::ls::LsArgs>(LOOK, "ls", "List sandboxes"),
        any_target::<verbs::ps::PsArgs>(LOOK, "ps", "Show what runs"),
        any_target::<verbs::children::ChildrenArgs>(
            LOOK,
            "children",
            "List sandboxes of a sandbox",
        ),
        any_target::<verbs::inspect::InspectArgs>(
            LOOK,
            "inspect",
            "Show everything about a sandbox",
        ),
        any_target::<verbs::logs::LogsArgs>(LOOK, "logs", "Show what commands have said"),
        any_target::<verbs::events::EventsArgs>(
            LOOK,
            "events",
            "Show what has happened to sandboxes",
        ),
        any_target::<verbs::events::EventsVerifyArgs>(
            LOOK,
            "events verify",
            "Check that no event was changed or removed",
        ),
        any_target::<verbs::net::NetArgs>(
            LOOK,
            "net",
            "Show and change what a sandbox may connect to",
        ),
        any_target::<verbs::port::PortAddArgs>(LIFE, "port add", "Open a port of the host"),
        any_target::<verbs::port::PortRmArgs>(LIFE, "port rm", "Close a port of the host"),
        any_target::<verbs::port::PortLsArgs>(LIFE, "port ls", "List the ports that lead inside"),
        any_target::<verbs::metrics::MetricsArgs>(LOOK, "metrics", "Show how much sandboxes use"),
        any_target::<verbs::diff::DiffArgs>(STATE, "diff", "Show what was changed in a workspace"),
        any_target::<verbs::apply::ApplyArgs>(
            STATE,
            "apply",
            "Bring changes of a workspace to the host",
        ),
        any_target::<verbs::discard::DiscardArgs>(
            STATE,
            "discard",
            "Forget changes of a workspace",
        ),
        any_target::<verbs::volume::VolumeCreateArgs>(STATE, "volume create", "Make a volume"),
        any_target::<verbs::volume::VolumeLsArgs>(
            STATE,
            "volume ls",
            "List volumes, or the files of one",
        ),
        any_target::<verbs::volume::VolumeInspectArgs>(
            STATE,
            "volume inspect",
            "Show all about a volume",
        ),
        any_target::<verbs::volume::VolumeRmArgs>(
            STATE,
            "volume rm",
            "Remove volumes with all they hold",
        ),
        any_target::<verbs::volume::VolumeCpArgs>(
            STATE,
            "volume cp",
            "Copy files in and out of a volume",
        ),
        any_target::<verbs::volume::VolumeCatArgs>(
            STATE,
            "volume cat",
            "Write a file of a volume to stdout",
        ),
        local_only::<verbs::build::BuildArgs>(
            IMAGES,
            "build",
            "Build an image from a Containerfile",
        ),
        any_target::<verbs::pull::PullArgs>(IMAGES, "pull", "Fetch images from a registry"),
        local_only::<verbs::archive::PushArgs>(IMAGES, "push", "Send an image to a registry"),
        local_only::<verbs::archive::LoadArgs>(IMAGES, "load", "Read images from a file"),
        local_only::<verbs::archive::SaveArgs>(IMAGES, "save", "Write images to a file"),
        any_target::<verbs::image::ImageLsArgs>(IMAGES, "image ls", "List images"),
        any_target::<verbs::image::ImageInspectArgs>(
            IMAGES,
            "image inspect",
            "Show everything about an image",
        ),
        any_target::<verbs::image::ImageRmArgs>(IMAGES, "image rm", "Remove images"),
        any_target::<verbs::image::ImagePruneArgs>(
            IMAGES,
            "image prune",
            "Remove what nothing needs",
        ),
        local_only::<verbs::bootstrap::ImageBootstrapArgs>(
            IMAGES,
            "image bootstrap",
            "Make one from this host's packages",
        ),
        any_target::<verbs::disk::DfArgs>(MORE, "df", "Show what uses the disk"),
        local_only::<verbs::disk::PruneArgs>(MORE, "prune", "Give back what nothing needs"),
        local_only::<verbs::registry::RegistryLoginArgs>(
            IMAGES,
            "registry login",
            "Keep a login to a registry",
        ),
        local_only::<verbs::registry::RegistryLogoutArgs>(
            IMAGES,
            "registry logout",
            "Forget a login to a registry",
        ),
        local_only::<verbs::registry::RegistryLsArgs>(
            IMAGES,
            "registry ls",
            "List logins, without their secrets",
        ),
        local_only::<verbs::install::InstallArgs>(
            IMAGES,
            "install",
            "Make an image a command of this host",
        ),
        local_only::<verbs::install::UninstallArgs>(IMAGES, "uninstall", "Remove such a command"),
        local_only::<verbs::doctor::DoctorArgs>(
            MORE,
            "doctor",
            "Tell what this host can do, and how to mend it",
        ),
        local_only::<verbs::api::ApiArgs>(MORE, "api", "Serve sandboxes to a program on its pipes"),
        local_only::<verbs::mcp::McpArgs>(MORE, "mcp", "Serve sandboxes to an MCP client"),
        local_only::<verbs::mcp_install::McpInstallArgs>(
            MORE,
            "mcp install",
            "Add msb to the settings of an MCP client",
        ),
        local_only::<verbs::mcp_install::McpUninstallArgs>(
            MORE,
            "mcp uninstall",
            "Take it out of the settings again",
        ),
        program::<verbs::skill::SkillInstallArgs>(
            MORE,
            "skill install",
            "Give the skill to an agent",
        ),
        program::<verbs::skill::SkillUninstallArgs>(MORE, "skill uninstall", "Take it away again"),
        program::<verbs::skill::SkillShowArgs>(MORE, "skill show", "Print the skill"),
        local_only::<verbs::server::ServerStartArgs>(MORE, "server start", "Listen for clients"),
        local_only::<verbs::server::ServerStopArgs>(
            MORE,
            "server stop",
            "End the server; sandboxes go on",
        ),
        local_only::<verbs::server::ServerStatusArgs>(
            MORE,
            "server status",
            "Tell whether one runs, and where",
        ),
        local_only::<verbs::server::ServerKeygenArgs>(
            MORE,
            "server keygen",
            "Make a key for clients",
        ),
        local_only::<verbs::setup::SetupVmArgs>(
            MORE,
            "setup vm",
            "Find or build the kernel of microVMs",
        ),
        about_target::<verbs::config::ConfigShowArgs>(
            MORE,
            "config show",
            "Show all values and where they come from",
        ),
        about_target::<verbs::config::ConfigGetArgs>(MORE, "config get", "Print one value"),
        program::<verbs::config::ConfigSetArgs>(MORE, "config set", "Change one value"),
        program::<verbs::config::ConfigUnsetArgs>(MORE, "config unset", "Remove one value"),
        program::<verbs::config::ConfigEditArgs>(MORE, "config edit", "Open config.toml"),
        program::<verbs::docs::DocsArgs>(MORE, "docs", "Show a page of the documentation"),
        program::<verbs::completion::CompletionArgs>(
            MORE,
            "completion",
            "Print completions for a shell",
        ),
    ],
};

/// Runs what the command line asks for.
pub(crate) fn dispatch(mut rest: Vec<OsString>) -> Outcome {
    output::set_json(output::asks_for_json(&rest));
    let before = leading(&mut rest)?;
    habits::translate(&mut rest);
    let word = |index: usize| {
        rest.get(index).map(|word| word.to_string_lossy().into_owned()).unwrap_or_default()
    };
    match word(0).as_str() {
        "" | "-h" | "--help" | "help" if rest.len() < 2 => {
            output::write_stdout(TABLE.help().as_bytes());
            return Ok(0);
        }
        "help" => {
            rest.remove(0);
            rest.push("--help".into());
            return dispatch(rest);
        }
        "-V" | "--version" | "version" => {
            output::print(format!("msb {}", env!("CARGO_PKG_VERSION")));
            return Ok(0);
        }
        "--tree" => {
            output::write_stdout(TABLE.tree().as_bytes());
            return Ok(0);
        }
        _ => {}
    }
    match TABLE.find(&word(0), &word(1))? {
        VerbMatch::Family(family) => {
            output::write_stdout(TABLE.family_help(family).as_bytes());
            Ok(0)
        }
        VerbMatch::Verb(verb) => {
            let words = verb.name.split(' ').count();
            let mut command = verb.dressed();
            if let Some(below) = TABLE.below(verb) {
                command = command.after_help(below);
            }
            let words = rest.split_off(words - 1);
            let words = loose_command::separate(&command, verb.name, words)?;
            let matches = command.try_get_matches_from(words)?;
            let is_json = matches.try_get_one::<bool>(output::JSON_FLAG);
            output::set_json(is_json.is_ok_and(|is_json| is_json.is_some_and(|it| *it)));
            let after = matches.get_one::<String>(target::FLAG).cloned();
            if before.is_some() && after.is_some() {
                return Err(Error::invalid(format!("`--{}` is given twice", target::FLAG)).into());
            }
            let target = Target::chosen(before.or(after));
            match (&target, verb.scope) {
                (Target::Remote(server), VerbScope::LocalOnly) => {
                    Err(server.refuse(&format!("`msb {}`", verb.name)).into())
                }
                _ => (verb.act)(&matches, &target),
            }
        }
    }
}

/// Takes the flags before the verb, which are about all of them.
fn leading(rest: &mut Vec<OsString>) -> Result<Option<String>, Error> {
    let flag = format!("--{}", target::FLAG);
    let Some(first) = rest.first().and_then(|word| word.to_str()) else { return Ok(None) };
    let (count, value) = match first.strip_prefix(&flag) {
        Some("") => (2, rest.get(1).and_then(|word| word.to_str()).map(str::to_owned)),
        Some(value) => (1, value.strip_prefix('=').map(str::to_owned)),
        None => return Ok(None),
    };
    // `--remotely` is none of ours; the table of verbs says so.
    let value = match value {
        None if count == 1 => return Ok(None),
        value => value.filter(|value| !value.is_empty()),
    };
    rest.drain(..count.min(rest.len()));
    let value = value.ok_or_else(|| {
        Error::invalid(format!("`{flag}` names no server"))
            .hint(format!("write `msb {flag} https://box.example:5555 ls`"))
    })?;
    Ok(Some(value))
}

/// The words that can follow `msb`, each with what it does.
pub(crate) fn first_words() -> Vec<(&'static str, &'static str)> {
    let is_member = |verb: &&Verb| verb.name.contains(' ');
    let families = TABLE.families.iter().map(|family| (family.name, family.about));
    let heads = |name: &str| TABLE.families.iter().any(|family| family.name == name);
    let verbs = TABLE.verbs.iter().filter(|verb| !is_member(verb) && !heads(verb.name));
    verbs.map(|verb| (verb.name, verb.about)).chain(families).collect()
}

/// The words that can follow the first word of a family, each with what it does.
pub(crate) fn second_words(first: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE.verbs.iter().filter_map(move |verb| {
        let (family, word) = verb.name.split_once(' ')?;
        (family == first).then_some((word, verb.about))
    })
}

/// The verb that begins with these words: its name and its command.
pub(crate) fn command_of(first: &str, second: &str) -> Option<(&'static str, Command)> {
    match TABLE.find(first, second) {
        Ok(VerbMatch::Verb(verb)) => Some((verb.name, verb.dressed())),
        _ => None,
    }
}

/// The command of every verb.
#[cfg(test)]
pub(crate) fn commands() -> Vec<Command> {
    TABLE.verbs.iter().map(Verb::dressed).collect()
}

/// The whole command with every verb below it.
pub(crate) fn whole() -> Command {
    TABLE.whole()
}

/// What the first words of a command line mean.
enum VerbMatch {
    Verb(&'static Verb),
    /// A family without a verb: its help is shown.
    Family(&'static Family),
}

impl Verb {
    /// Its command with its name and line of help.
    fn dressed(&self) -> Command {
        let word = self.name.rsplit(' ').next().unwrap_or(self.name);
        let command = (self.command)().name(word).bin_name(format!("msb {}", self.name));
        // Those that cannot work elsewhere take the flag as well, to say so.
        let remote = target::flag().hide(self.scope != VerbScope::AnyTarget);
        let has_json = command.get_arguments().any(|arg| arg.get_id() == output::JSON_FLAG);
        let json = (!has_json && !TEXT_ONLY.contains(&self.name)).then(output::json_flag);
        command.about(self.about).args(json).arg(remote)
    }
}

impl Table {
    fn find(&self, first: &str, second: &str) -> Result<VerbMatch, Error> {
        if let Some(family) = self.families.iter().find(|family| family.name == first) {
            let own = self.verbs.iter().find(|verb| verb.name == first);
            match own {
                Some(own) if second.is_empty() || second.starts_with('-') => {
                    return Ok(VerbMatch::Verb(own));
                }
                Some(own)
                    if family.names && !self.members(family).any(|(word, _)| word == second) =>
                {
                    return Ok(VerbMatch::Verb(own));
                }
                None if matches!(second, "" | "-h" | "--help") => {
                    return Ok(VerbMatch::Family(family));
                }
                _ => {}
            }
            let found = self.members(family).find(|(word, _)| *word == second);
            return found.map(|(_, verb)| VerbMatch::Verb(verb)).ok_or_else(|| {
                let near = habits::nearest(second, self.members(family).map(|(word, _)| word));
                let near = near.map(|near| format!("{first} {near}"));
                habits::unknown(&format!("{first} {second}"), near, &format!("msb {first} --help"))
            });
        }
        let found = self.verbs.iter().find(|verb| verb.name == first);
        found.map(VerbMatch::Verb).ok_or_else(|| {
            let families = self.families.iter().map(|family| family.name);
            let words = self.verbs.iter().map(|verb| verb.name).filter(|name| !name.contains(' '));
            // Where others have `login`, a member of a family is meant.
            let member = |verb: &&Verb| verb.name.split_once(' ').is_some_and(|(_, w)| w == first);
            let member = self.verbs.iter().find(member).map(|verb| verb.name);
            let near = member.or_else(|| habits::nearest(first, families.chain(words)));
            habits::unknown(first, near.map(str::to_owned), "msb --help")
        })
    }

    /// The verbs of a family, each by its second word.
    fn members(&self, family: &Family) -> impl Iterator<Item = (&'static str, &'static Verb)> {
        self.verbs.iter().filter_map(|verb| {
            let (first, word) = verb.name.split_once(' ')?;
            (first == family.name).then_some((word, verb))
        })
    }

    fn whole(&self) -> Command {
        let mut whole =
            Command::new("msb").about("Sandboxes for AI agents").version(env!("CARGO_PKG_VERSION"));
        let heads = |verb: &Verb| self.families.iter().any(|family| family.name == verb.name);
        for verb in self.verbs.iter().filter(|verb| !verb.name.contains(' ') && !heads(verb)) {
            whole = whole.subcommand(offered(verb.dressed()));
        }
        for family in self.families {
            let own = self.verbs.iter().find(|verb| verb.name == family.name);
            let command = own.map_or_else(
                || Command::new(family.name).about(family.about),
                |own| offered(own.dressed()),
            );
            let members = self.members(family).map(|(_, verb)| offered(verb.dressed()));
            whole = whole.subcommand(command.subcommands(members));
        }
        whole
    }

    fn help(&self) -> String {
        let mut text = String::from(
            "Sandboxes for AI agents: run untrusted code on your own machine.\n\n\
             Usage: msb COMMAND [OPTIONS]\n",
        );
        for group in GROUPS {
            let verbs = self.verbs.iter().filter(|verb| verb.group == group);
            let heads = |verb: &Verb| self.families.iter().any(|family| family.name == verb.name);
            let single = verbs.filter(|verb| !verb.name.contains(' ') && !heads(verb));
            let mut lines: String =
                single.map(|verb| format!("  {:<11} {}\n", verb.name, verb.about)).collect();
            for family in self.families.iter().filter(|family| family.group == group) {
                let members: Vec<&str> = self.members(family).map(|(word, _)| word).collect();
                let members = members.join(", ");
                lines.push_str(&format!("  {:<11} {}: {members}\n", family.name, family.about));
            }
            if !lines.is_empty() {
                text.push_str(&format!("\n{group}:\n{lines}"));
            }
        }
        text.push_str(
            "\nExamples:\n  \
             msb run -- python3 -c 'print(42)'       run something, keep nothing\n  \
             msb create --name box && msb exec box -- sh\n\n\
             `msb COMMAND --help` tells about one command, `msb --tree` lists every flag.\n\
             `msb --remote URL COMMAND` asks the msb server there instead of this machine.\n\
             `MSB_LOG=debug msb COMMAND` logs what it does: docs/troubleshooting.md.\n",
        );
        text
    }

    fn family_help(&self, family: &Family) -> String {
        let Family { name, about, .. } = family;
        let mut text = format!("{about}\n\nUsage: msb {name} COMMAND [OPTIONS]\n\nCommands:\n");
        for (word, verb) in self.members(family) {
            text.push_str(&format!("  {word:<11} {}\n", verb.about));
        }
        text.push_str(&format!("\n`msb {name} COMMAND --help` tells about one command.\n"));
        text
    }

    /// The part of a verb's help about the verbs that begin with its word.
    fn below(&self, verb: &Verb) -> Option<String> {
        let family = self.families.iter().find(|family| family.name == verb.name)?;
        let lines = self.members(family);
        let lines = lines.map(|(word, verb)| format!("  {word:<11} {}\n", verb.about));
        Some(format!("Commands:\n{}", lines.collect::<String>()))
    }

    /// Every command with every flag, a line each.
    fn tree(&self) -> String {
        let mut text = String::from("msb\n");
        for verb in self.verbs {
            text.push_str(&format!("  {}  {}\n", verb.name, verb.about));
            let command = verb.dressed();
            let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
            shown.for_each(|argument| text.push_str(&branch(argument)));
        }
        text
    }
}

/// A command with what a shell should complete: what is hidden would be offered, too.
fn offered(command: Command) -> Command {
    if !command.get_arguments().any(Arg::is_hide_set) {
        return command;
    }
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let shown = command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
    Command::new(command.get_name().to_owned()).about(about).args(shown)
}

/// One flag or argument in the tree.
fn branch(argument: &Arg) -> String {
    let value = argument.get_value_names().map_or(String::new(), |names| {
        let takes = argument.get_action().takes_values();
        let shown: Vec<&str> = names.iter().map(clap::builder::Str::as_str).collect();
        if takes { format!(" {}", shown.join(" ")) } else { String::new() }
    });
    let name = match (argument.get_short(), argument.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long}"),
        (None, Some(long)) => format!("--{long}"),
        (Some(short), None) => format!("-{short}"),
        (None, None) => String::new(),
    };
    let about = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let left = format!("{name}{value}");
    format!("    {:<34} {about}\n", left.trim())
}

#[cfg(test)]
mod tests;
