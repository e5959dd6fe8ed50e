//! `msb completion`: what real shells complete with it.

use msb_e2e::images::Layout;
use msb_e2e::{CmdOutput, Msb, gives, shared, skip};
use std::fs;
use std::path::Path;

const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// A shell that has read the script of `msb completion`.
struct Shell<'a> {
    msb: &'a Msb,
    name: &'static str,
    script: String,
}

impl<'a> Shell<'a> {
    /// Those that are installed.
    fn each(msb: &'a Msb) -> Vec<Self> {
        let installed = SHELLS.into_iter().filter(|name| {
            let found = fs::exists(Path::new("/usr/bin").join(name)).expect("a directory");
            if !found {
                skip(&format!("{name} is not installed, so it completes nothing"));
            }
            found
        });
        let shell = |name| {
            let text = msb.run(["completion", name]).ok().stdout;
            let script = msb.file(&format!("msb.{name}"), text).display().to_string();
            Self { msb, name, script }
        };
        installed.map(shell).collect()
    }

    fn run(&self, text: &str) -> CmdOutput {
        let mut command = self.msb.user_command(Path::new("/usr/bin").join(self.name));
        command.env("PATH", format!("{}:/usr/bin:/bin", shared().display()));
        command.env("TERM", "xterm");
        gives(command.args(["-c", text])).ok()
    }

    /// The candidates for the end of a line, without what they are about. Of zsh, only the line as
    /// it is after the key Tab can be asked for: one candidate.
    fn complete(&self, line: &str) -> Vec<String> {
        let script = &self.script;
        let text = match self.name {
            "bash" => format!(
                "source {script}; COMP_LINE='{line}'; COMP_POINT={}; \
                 $(complete -p msb | grep -o -- '-F [^ ]*' | cut -c 4-) msb; \
                 printf '%s\\n' \"${{COMPREPLY[@]}}\"",
                line.len()
            ),
            "zsh" => format!(
                "zmodload zsh/zpty; zpty z zsh -f -i; \
                 zpty -w z 'PS1=; autoload -U compinit; compinit -D -u; source {script}'; \
                 zpty -w z 'say() {{ print -r -- \"<<$BUFFER>>\"; BUFFER= }}; zle -N say'; \
                 zpty -w z \"bindkey '^X' say; echo REA''DY\"; \
                 zpty -r -m z out '*READY*'; \
                 zpty -w -n z \"{line}\"$'\\t\\x18'; \
                 zpty -r -m z out '*<<*>>*'; zpty -d z; \
                 print -r -- ${{${{out##*<<}}%%>>*}}"
            ),
            _ => format!("source {script}; complete -C '{line}'"),
        };
        let words = self.run(&text).stdout;
        let word = |line: &str| match self.name {
            "zsh" => line.trim_end().rsplit(' ').next().unwrap_or_default().to_owned(),
            _ => line.split('\t').next().unwrap_or_default().to_owned(),
        };
        words.lines().map(word).filter(|word| !word.is_empty()).collect()
    }
}

#[test]
fn verbs_flags_and_values_are_completed() {
    let msb = Msb::new();
    for shell in Shell::each(&msb) {
        for (line, word) in [
            ("msb insp", "inspect"),
            ("msb snapshot ver", "verify"),
            ("msb run --dry", "--dry-run"),
            ("msb logs --ta", "--tail"),
            ("msb run --isolation pro", "process"),
            ("msb run -q --net priv", "private"),
            ("msb --remote http://x volume in", "inspect"),
            ("msb mcp install claude-d", "claude-desktop"),
        ] {
            assert_eq!(shell.complete(line), [word], "{}: {line}", shell.name);
        }
    }
    // A Tab makes no state directory.
    let mut command = msb.command(["__complete", "--words", "exec", ""]);
    assert_eq!(gives(command.env("MSB_HOME", "none")).ok().stdout, "");
    assert!(!fs::exists(msb.scratch().join("none")).expect("a directory"));
}

#[test]
fn names_of_what_is_here_are_completed() {
    let msb = Msb::new();
    msb.words("create -n first-box").ok();
    msb.words("volume create first-volume").ok();
    msb.words("snapshot create first-snapshot --from first-box").ok();
    let layout = Layout::busybox();
    msb.run(["load", "-i", &layout.path().display().to_string(), "-t", "first-image"]).ok();
    let full =
        msb.json(["image", "ls", "--json"])[0]["reference"].as_str().expect("text").to_owned();
    for shell in Shell::each(&msb) {
        for (line, word) in [
            ("msb exec fir", "first-box"),
            ("msb stop other fir", "first-box"),
            ("msb snapshot create new --from fir", "first-box"),
            ("msb cp fir", "first-box:"),
            ("msb volume rm fir", "first-volume"),
            ("msb run -v fir", "first-volume:"),
            ("msb restore fir", "first-snapshot"),
            ("msb snapshot inspect fir", "first-snapshot"),
            ("msb image rm ", full.as_str()),
            ("msb run ho", "host"),
        ] {
            assert_eq!(shell.complete(line), [word], "{}: {line}", shell.name);
        }
        // On a server, names of this machine mean nothing.
        let remote = shell.complete("msb --remote http://127.0.0.1:9 exec fir");
        assert!(!remote.contains(&"first-box".to_owned()), "{remote:?}");
    }
}

#[test]
fn files_are_completed_where_a_file_is_meant() {
    let msb = Msb::new();
    msb.file("settings-of-mine.toml", "");
    let fish = Shell::each(&msb).into_iter().find(|shell| shell.name == "fish");
    let found = fish.map(|fish| fish.complete("msb run --conf settings-of"));
    assert!(found.is_none_or(|found| found == ["settings-of-mine.toml"]));
}

#[test]
fn another_shell_is_refused_by_name() {
    let gave = Msb::new().words("completion tcsh");
    assert_eq!(gave.code, 125);
    assert!(gave.stderr.contains("tcsh") && gave.stderr.contains("bash"), "{gave:?}");
}
