//! The calls of a session: the table of Operations, files, archives and logs.

use super::command::{self, Control};
use super::flow::{InputReader, cancelled};
use super::{CallRequest, SessionFrameKind, SessionShared, StreamCall};
use crate::arguments;
use crate::cancel::CancelHook;
use crate::rest::{CommandStart, OperationCall, member_error, read_members};
use msb_api::http::streams::{FileRead, FileWrite, Follow, Progress, SnapshotLoad, SnapshotSave};
use msb_api::http::{
    Changed, Count, Done, HttpRequest, SandboxCreate, SandboxStart, Visitor, Where, each,
};
use msb_api::{Api, ExecInput, LogFilter, Part, Watch};
use msb_spec::{Command, Error, Kind, Name, Result, Spec};
use msb_sys::signal::SIGKILL;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// How often a followed log is read.
const POLL: Duration = Duration::from_millis(50);

type ReadOperation = fn(&Map<String, Value>) -> Result<OperationCall>;

/// Every Operation that is a request with one response, by its name.
fn operations() -> &'static HashMap<&'static str, ReadOperation> {
    struct Table(HashMap<&'static str, ReadOperation>);
    impl Visitor for Table {
        fn visit<R: HttpRequest>(&mut self) {
            self.0.insert(R::ROUTE.name, read_members::<R>);
        }
    }
    static TABLE: OnceLock<HashMap<&'static str, ReadOperation>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = Table(HashMap::new());
        each(&mut table);
        table.0
    })
}

/// Performs one call. The text is the JSON of its response.
pub(super) fn perform(
    session: &SessionShared,
    call: &StreamCall,
    request: CallRequest,
) -> Result<String> {
    let CallRequest { op, args, own } = request;
    let (api, owned) = (&session.api, &session.owned);
    if own {
        let watch = CallWatch::new(call);
        return match &op[..] {
            "sandbox_create" => {
                let mut request: SandboxCreate = members(&args)?;
                let secrets = std::mem::take(&mut request.secrets);
                to_json(&owned.create(&request.into(), secrets, &watch)?)
            }
            "sandbox_start" => {
                let SandboxStart { name, secrets } = members(&args)?;
                to_json(&Changed { changed: owned.start(&name, secrets)? })
            }
            _ => Err(Error::invalid(format!("a sandbox cannot be owned by `{op}`"))
                .hint("`own` is for `sandbox_create` and `sandbox_start`")),
        };
    }
    if let Some(read) = operations().get(&op[..]) {
        let work = read(&args)?;
        return work(api.as_ref(), &CallWatch::new(call));
    }
    match &op[..] {
        "exec_stream" => {
            let StreamExecCall { name, command } = members(&args)?;
            command::stream(api.as_ref(), call, CommandStart::Exec(name, Box::new(command)))
        }
        "run_stream" => {
            let StreamRunCall { spec, secrets } = members(&args)?;
            let api = with_secrets(api, secrets);
            command::stream(api.as_ref(), call, CommandStart::Run(Box::new(spec)))
        }
        "exec_attach" => {
            let AttachCall { name, id } = members(&args)?;
            command::stream(api.as_ref(), call, CommandStart::Attach(name, id))
        }
        "file_read" => read_file(api.as_ref(), call, members(&args)?),
        "file_write" => write_file(api.as_ref(), call, members(&args)?),
        "snapshot_save" => {
            let SnapshotSave { name, whole } = members(&args)?;
            api.snapshot_save(&name, whole, &mut call.out.clone())?;
            to_json(&Done {})
        }
        "snapshot_load" => {
            let SnapshotLoad { name } = members(&args)?;
            to_json(&api.snapshot_load(name.as_ref(), &mut upload(call))?)
        }
        "sandbox_logs_follow" => {
            let ask: Following = members(&args)?;
            let mut logs = api.sandbox_logs(&ask.of.name, &filter(&ask.of))?;
            follow(call, &ask, || logs.more())
        }
        "sandbox_events_follow" => {
            let ask: Following = members(&args)?;
            let mut events = api.sandbox_events(&ask.of.name)?;
            follow(call, &ask, || events.more())
        }
        "session_own" => {
            let OfSandbox { name } = members(&args)?;
            owned.own(&name)?;
            to_json(&Done {})
        }
        "session_release" => {
            let OfSandbox { name } = members(&args)?;
            owned.release(&name)?;
            to_json(&Done {})
        }
        "session_owned" => {
            let NoMembers {} = members(&args)?;
            to_json(&owned.names())
        }
        "session_ping" => {
            let NoMembers {} = members(&args)?;
            to_json(&Done {})
        }
        _ => Err(Error::new(Kind::Unsupported, format!("there is no operation `{op}`"))
            .hint("docs/openapi.json and docs/session-protocol.md list all operations")),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoMembers {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfSandbox {
    name: Name,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamExecCall {
    name: Name,
    command: Command,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamRunCall {
    spec: Spec,
    #[serde(default)]
    secrets: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AttachCall {
    name: Name,
    id: u64,
}

#[derive(Deserialize)]
struct Following {
    #[serde(flatten)]
    of: Follow,
    /// Whether the stream goes on when everything so far was sent.
    #[serde(default = "yes")]
    follow: bool,
}

fn yes() -> bool {
    true
}

fn members<T: DeserializeOwned>(args: &Map<String, Value>) -> Result<T> {
    arguments::object(args).map_err(member_error)
}

fn to_json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::host("cannot encode the response", error))
}

fn with_secrets(api: &Arc<dyn Api>, secrets: BTreeMap<String, String>) -> Arc<dyn Api> {
    match secrets.is_empty() {
        true => Arc::clone(api),
        false => {
            let values = secrets.into_iter().map(|(name, value)| (name, value.into_bytes()));
            api.with_secrets(values.collect())
        }
    }
}

fn read_file(api: &dyn Api, call: &StreamCall, ask: FileRead) -> Result<String> {
    let at = Where { sandbox: ask.sandbox, volume: ask.volume, user: ask.user }.place()?;
    let mut count = 0;
    api.file_read(&at, &ask.path.0, ask.offset, ask.length, &mut |piece| {
        count += piece.len() as u64;
        call.out.bytes(SessionFrameKind::Data, piece)
    })?;
    to_json(&Count { count })
}

fn write_file(api: &dyn Api, call: &StreamCall, ask: FileWrite) -> Result<String> {
    let at = Where { sandbox: ask.sandbox, volume: ask.volume, user: ask.user }.place()?;
    let count = api.file_write(&at, &ask.path.0, ask.mode, ask.append, &mut upload(call))?;
    to_json(&Count { count })
}

fn upload(call: &StreamCall) -> InputReader {
    InputReader::new(Arc::clone(&call.input), call.out.stream, Arc::clone(&call.out.frames))
}

fn filter(ask: &Follow) -> LogFilter {
    LogFilter {
        exec: ask.exec,
        source: ask.source,
        since: ask.since,
        until: ask.until,
        grep: ask.grep.clone(),
    }
}

/// Sends new items in batches until the call is cancelled, or once.
fn follow<T: Serialize>(
    call: &StreamCall,
    ask: &Following,
    mut more: impl FnMut() -> Result<Vec<T>>,
) -> Result<String> {
    let mut skip = ask.of.skip;
    loop {
        let items = more()?;
        let known = usize::try_from(skip).unwrap_or(usize::MAX).min(items.len());
        skip -= known as u64;
        // Several events, so that none is longer than a frame may be.
        for batch in items[known..].chunks(BATCH) {
            call.out.event(&json!({"items": batch}))?;
        }
        if !ask.follow {
            return to_json(&Done {});
        }
        if call.cancel.is_cancelled() {
            return Err(cancelled());
        }
        std::thread::sleep(POLL);
    }
}

/// Most items of one event: with lines of at most 64 KiB, as logs keep them, below a frame's limit.
const BATCH: usize = 8;

/// Sends progress, and kills the command of a call that is cancelled.
struct CallWatch<'a> {
    call: &'a StreamCall,
    hooks: Mutex<Vec<CancelHook>>,
}

impl<'a> CallWatch<'a> {
    fn new(call: &'a StreamCall) -> Self {
        Self { call, hooks: Mutex::default() }
    }
}

impl Watch for CallWatch<'_> {
    fn step(&self, what: &str, done: Option<Part>) {
        // The client is gone or has cancelled: the call ends by itself.
        let _ = self.call.out.event(&json!({"progress": Progress::new(what, done)}));
    }

    fn running(&self, input: &Arc<dyn ExecInput>) {
        let input = Arc::clone(input);
        let hook = self.call.cancel.when_cancelled(move || drop(input.signal(SIGKILL)));
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner).push(hook);
    }
}

/// Progress of a command that is being started.
pub(super) fn watch(call: &StreamCall) -> impl Watch + '_ {
    CallWatch::new(call)
}

/// Deserializes a message for a running command.
pub(super) fn control(payload: &[u8]) -> Result<Control> {
    serde_json::from_slice(payload)
        .map_err(|error| Error::invalid("the CONTROL is not as expected").cause(error))
}
