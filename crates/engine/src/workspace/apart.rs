//! A review that is done by a process of its own, with the ids of the sandbox.

use msb_api::{Applied, Change, Depth, RelPath, Selection};
use msb_image::Owners;
use msb_review::Workspace;
use msb_spec::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// The argument with which `msb` becomes such a process. What it is to do comes on stdin.
pub const REVIEW_ARGUMENT: &str = "__review";

/// A million paths, each named by somebody.
const LETTER_LIMIT: u64 = 1 << 30;
/// A million changes with differences.
const ANSWER_LIMIT: u64 = 1 << 30;

/// What is to be done.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Task {
    Diff { below: Vec<RelPath>, depth: Depth },
    Apply { selection: Selection, dry_run: bool },
    Discard { paths: Vec<RelPath> },
    Carry { clone: Workspace },
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Changes(Vec<Change>),
    Applied(Applied),
    Discarded(usize),
    Carried,
}

#[derive(Debug, Serialize, Deserialize)]
struct Letter {
    owners: Owners,
    workspace: Workspace,
    task: Task,
}

impl Task {
    pub(super) fn perform(&self, workspace: &Workspace) -> Result<Answer> {
        match self {
            Self::Diff { below, depth } => workspace.diff(below, *depth).map(Answer::Changes),
            Self::Apply { selection, dry_run } => {
                workspace.apply(selection, *dry_run).map(Answer::Applied)
            }
            Self::Discard { paths } => workspace.discard(paths).map(Answer::Discarded),
            Self::Carry { clone } => workspace.carry(clone).map(|()| Answer::Carried),
        }
    }
}

/// Has a task done by a process of its own.
pub(super) fn ask(
    program: &Path,
    owners: Owners,
    workspace: Workspace,
    task: Task,
) -> Result<Answer> {
    let about = |error: std::io::Error| {
        Error::host(format!("cannot execute `{}`", program.display()), error)
    };
    let letter = serde_json::to_vec(&Letter { owners, workspace, task })
        .expect("our own types always serialise");
    let mut child = Command::new(program)
        .arg(REVIEW_ARGUMENT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(about)?;
    // It reads everything before it says anything.
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(&letter);
    }
    let mut text = Vec::new();
    if let Some(out) = child.stdout.take() {
        let _ = out.take(ANSWER_LIMIT).read_to_end(&mut text);
    }
    let ended = child.wait();
    serde_json::from_slice::<Result<Answer>>(&text).unwrap_or_else(|_| {
        let error = Error::new(Kind::Host, "the process that reviews has died");
        Err(match ended {
            Ok(status) => error.cause(status),
            Err(cause) => error.cause(cause),
        })
    })
}

/// Is such a process, and returns its exit code. It has one thread.
pub fn serve() -> i32 {
    let mut text = Vec::new();
    let read = std::io::stdin().lock().take(LETTER_LIMIT).read_to_end(&mut text);
    let letter: Letter = match read.map(|_| serde_json::from_slice(&text)) {
        Ok(Ok(letter)) => letter,
        Ok(Err(error)) => return tell(&Err(Error::invalid("not a review").cause(error))),
        Err(error) => return tell(&Err(Error::host("cannot hear what to review", error))),
    };
    let Letter { owners, workspace, task } = letter;
    let told = owners.within(|| tell(&task.perform(&workspace)));
    told.unwrap_or_else(|error| tell(&Err(error)))
}

fn tell(told: &Result<Answer>) -> i32 {
    let text = serde_json::to_vec(told).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    i32::from(out.write_all(&text).and_then(|()| out.flush()).is_err())
}
