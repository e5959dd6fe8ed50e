//! config.toml in the user's editor. A copy is edited, so that a mistake never takes effect.

use crate::output;
use crate::terminal;
use msb_spec::{Error, Result};
use std::io::{BufRead, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a new file starts with.
const TEMPLATE: &str = "# Settings of msb; `msb config show` tells where each value comes from.\n\
                        #[defaults]\n#isolation = 'auto'\n#memory = '1G'\n#cpus = 2\n\
                        #network = 'public'\n#image = 'alpine'\n#trust_host_cas = true\n";

/// The text after editing; `None` if it is as before. A text with a mistake is edited again, or is
/// an error where no user can be asked.
pub(super) fn edit(before: &str, check: &dyn Fn(&str) -> Result<()>) -> Result<Option<String>> {
    let copy = ScratchFile::with(if before.is_empty() { TEMPLATE } else { before })?;
    loop {
        run_editor(&copy.0)?;
        let text = std::fs::read_to_string(&copy.0)
            .map_err(|error| Error::host("cannot read what was saved", error))?;
        if text == before || (before.is_empty() && text == TEMPLATE) {
            return Ok(None);
        }
        match check(&text) {
            Ok(()) => return Ok(Some(text)),
            Err(error) if terminal::is_there() => {
                output::print_error(&error);
                if !again()? {
                    return Ok(None);
                }
            }
            Err(error) => return Err(error.under("nothing was written: the text has a mistake")),
        }
    }
}

fn run_editor(path: &Path) -> Result<()> {
    let chosen = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let editor = chosen("VISUAL").or_else(|| chosen("EDITOR")).unwrap_or_else(|| "vi".to_owned());
    // As git does: the value may have arguments, as in `code --wait`.
    let line = format!("{editor} \"$@\"");
    let status = Command::new("/bin/sh").args(["-c", &line, &editor]).arg(path).status();
    let status = status.map_err(|error| Error::host("cannot start an editor", error))?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::invalid(format!("the editor failed: `{editor}`"))
            .cause(status)
            .hint("EDITOR names another; nothing was changed")),
    }
}

/// Whether the user wants to mend the text.
fn again() -> Result<bool> {
    /// Longer than any answer.
    const LONGEST: u64 = 4096;
    output::prompt("edit it again? [Y/n] ");
    let mut text = String::new();
    let read = std::io::stdin().lock().take(LONGEST).read_line(&mut text);
    let read = read.map_err(|error| Error::host("cannot read from the terminal", error))?;
    Ok(read > 0 && !text.trim().to_lowercase().starts_with('n'))
}

/// A file for the editor that only its owner can read, removed on drop.
struct ScratchFile(PathBuf);

impl ScratchFile {
    fn with(text: &str) -> Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let name = format!("msb-config-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        let about = |error| Error::host(format!("cannot write `{}`", path.display()), error);
        let file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&path);
        let mut file = file.map_err(about)?;
        let scratch = Self(path.clone());
        file.write_all(text.as_bytes()).map_err(about)?;
        Ok(scratch)
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
