//! Runs a review in a helper process with the ids of the sandbox that can access the workspace
//! only.

use msb_api::{ApplyReport, Change, Depth, RelPath, Selection};
use msb_image::Owners;
use msb_jail::HelperNeeds;
use msb_review::Workspace;
use msb_spec::{Error, Kind, Result, env};
use msb_sys::intrusion;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

/// The argument that makes `msb` a review helper. It reads the request from stdin.
pub const REVIEW_ARGUMENT: &str = "__review";

/// The most bytes of a request: a million paths.
const REQUEST_LIMIT: u64 = 1 << 30;
/// The most bytes of a reply: a million changes with diffs.
const REPLY_LIMIT: u64 = 1 << 30;

/// The task of a review helper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReviewTask {
    Diff { below: Vec<RelPath>, depth: Depth },
    Apply { selection: Selection, dry_run: bool },
    Discard { paths: Vec<RelPath> },
    Carry { clone: Workspace },
}

/// The result of a review task.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReviewReply {
    Changes(Vec<Change>),
    Applied(ApplyReport),
    Discarded(usize),
    Carried,
}

#[derive(Debug, Serialize, Deserialize)]
struct ReviewRequest {
    owners: Owners,
    workspace: Workspace,
    task: ReviewTask,
}

impl ReviewTask {
    pub(super) fn perform(&self, workspace: &Workspace) -> Result<ReviewReply> {
        match self {
            Self::Diff { below, depth } => workspace.diff(below, *depth).map(ReviewReply::Changes),
            Self::Apply { selection, dry_run } => {
                workspace.apply(selection, *dry_run).map(ReviewReply::Applied)
            }
            Self::Discard { paths } => workspace.discard(paths).map(ReviewReply::Discarded),
            Self::Carry { clone } => workspace.carry(clone).map(|()| ReviewReply::Carried),
        }
    }
}

/// Runs a task in a helper process and returns its result.
pub(super) fn run_helper(
    program: &Path,
    owners: Owners,
    workspace: Workspace,
    task: ReviewTask,
) -> Result<ReviewReply> {
    let about = |error: std::io::Error| {
        Error::host(format!("cannot execute `{}`", program.display()), error)
    };
    let request = serde_json::to_vec(&ReviewRequest { owners, workspace, task })
        .expect("our own types always serialise");
    let mut child = Command::new(program)
        .arg(REVIEW_ARGUMENT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(about)?;
    // It reads the whole request before it writes.
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(&request);
    }
    let mut text = Vec::new();
    if let Some(out) = child.stdout.take() {
        let _ = out.take(REPLY_LIMIT).read_to_end(&mut text);
    }
    let ended = child.wait();
    serde_json::from_slice::<Result<ReviewReply>>(&text).unwrap_or_else(|_| {
        let error = Error::new(Kind::Host, "the review process has died");
        Err(match ended {
            Ok(status) => error.cause(status),
            Err(cause) => error.cause(cause),
        })
    })
}

/// Runs as a review helper. Returns the exit code. The process has one thread.
pub fn serve() -> i32 {
    let mut text = Vec::new();
    let read = std::io::stdin().lock().take(REQUEST_LIMIT).read_to_end(&mut text);
    let request: ReviewRequest = match read.map(|_| serde_json::from_slice(&text)) {
        Ok(Ok(request)) => request,
        Ok(Err(error)) => {
            return write_reply(&Err(Error::invalid("not a review request").cause(error)));
        }
        Err(error) => {
            return write_reply(&Err(Error::host("cannot read the review request", error)));
        }
    };
    let ReviewRequest { owners, workspace, task } = request;
    let reply = owners.within(|| {
        write_reply(&confine(&workspace, &task).and_then(|()| {
            match std::env::var_os(env::TEST_COMPROMISED_HELPER) {
                Some(canary) => Err(compromised(Path::new(&canary))),
                None => task.perform(&workspace),
            }
        }))
    });
    reply.unwrap_or_else(|error| write_reply(&Err(error)))
}

/// Restricts the process to the directories of the workspace: no network, program or other file.
fn confine(workspace: &Workspace, task: &ReviewTask) -> Result<()> {
    let mut paths = vec![&*workspace.host, &*workspace.changes, &*workspace.notes];
    if let ReviewTask::Carry { clone } = task {
        // The notes of the clone are created beside its changes.
        paths.push(clone.changes.parent().unwrap_or(&clone.changes));
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |path: &&Path| {
        rustix::fs::open(*path, flags, Mode::empty())
            .map_err(|error| Error::host(format!("cannot open `{}`", path.display()), error))
    };
    let opened: Vec<OwnedFd> = paths.iter().map(open).collect::<Result<_>>()?;
    let writes = opened.iter().map(AsFd::as_fd).collect();
    msb_jail::confine_helper(&HelperNeeds { reads: Vec::new(), writes, set_id: false })
}

/// What compromised code in the helper could reach, for the tests of its confinement.
fn compromised(canary: &Path) -> Error {
    let mut tried = vec![
        ("a file of the host", std::fs::File::open(canary).is_ok()),
        ("/etc/passwd", std::fs::File::open("/etc/passwd").is_ok()),
        ("the environment of init", std::fs::read("/proc/1/environ").is_ok()),
        ("the own program", std::fs::File::open("/proc/self/exe").is_ok()),
    ];
    tried.extend(intrusion::attempts());
    Error::invalid(intrusion::report(&tried))
}

fn write_reply(reply: &Result<ReviewReply>) -> i32 {
    let text = serde_json::to_vec(reply).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    i32::from(out.write_all(&text).and_then(|()| out.flush()).is_err())
}
