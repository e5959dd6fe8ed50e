//! An `Api` for tests, made from the table of Operations. It records each call with its arguments
//! and returns the answer that the test has set. An Operation without an answer fails, so that no
//! name exists unless the test says so.

#[cfg(test)]
mod plan;
#[cfg(test)]
mod process;
#[cfg(test)]
mod sandboxes;

#[cfg(test)]
pub(crate) use plan::of as plan_of;
#[cfg(test)]
pub(crate) use sandboxes::{FakeSandboxes, name};

use msb_api::http::streams::{FileRead, FileWrite, SnapshotSave};
use msb_api::http::*;
use msb_api::operation_types::*;
use msb_api::{
    Api, Arg, Children, ClientScope, EventStream, Exec, Execs, Files, Images, LinkListener, Links,
    LogFilter, LogStream, Networks, NoProgress, Sandboxes, Snapshots, Syncs, Target, Volumes,
    Watch, Workspaces, operations,
};
use msb_spec::{CallOrigin, Command, Error, Kind, Result, UserRef};
use serde::Serialize;
use serde_json::Value;
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt::Debug;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A call of an Operation, with the arguments that its HTTP request would have.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RecordedCall {
    pub(crate) operation: &'static str,
    pub(crate) arguments: Value,
    /// The request as `Debug` shows it, which names the types.
    pub(crate) text: String,
    /// Whether the Operation changes nothing.
    pub(crate) is_read: bool,
    pub(crate) origin: Option<CallOrigin>,
}

impl std::fmt::Display for RecordedCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.operation, self.arguments)
    }
}

impl PartialEq<(&str, Value)> for RecordedCall {
    fn eq(&self, (operation, arguments): &(&str, Value)) -> bool {
        self.operation == *operation && self.arguments == *arguments
    }
}

/// For comparison: nothing was called.
pub(crate) const NO_CALLS: [(&str, Value); 0] = [];

/// The request of an Operation that is recorded.
pub(crate) trait RecordedRequest: Serialize + Debug + 'static {
    /// The type of the value that the Operation returns.
    type Answer;
    const OPERATION: &'static str;
    const IS_READ: bool;
}

/// The function of a test that answers an Operation.
struct AnswerFn<R: RecordedRequest>(BoxedAnswer<R, R::Answer>);

type BoxedAnswer<R, A> = Box<dyn Fn(&R, &dyn Watch) -> Result<A> + Send + Sync>;

/// Records calls and answers them. Clones share everything but the origin.
#[derive(Clone, Default)]
pub(crate) struct Recorder {
    calls: Arc<Mutex<Vec<RecordedCall>>>,
    answers: Arc<Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>>,
    origin: Option<CallOrigin>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    /// Sets the answer of an Operation, which the type of the request names.
    pub(crate) fn answer<R: RecordedRequest>(
        &self,
        answer: impl Fn(&R) -> Result<R::Answer> + Send + Sync + 'static,
    ) {
        self.answer_with_progress(move |request: &R, _| answer(request));
    }

    /// Sets the answer of an Operation that reports progress.
    pub(crate) fn answer_with_progress<R: RecordedRequest>(
        &self,
        answer: impl Fn(&R, &dyn Watch) -> Result<R::Answer> + Send + Sync + 'static,
    ) {
        let answer = Arc::new(AnswerFn::<R>(Box::new(answer)));
        locked(&self.answers).insert(TypeId::of::<R>(), answer);
    }

    /// All calls since the last time this was called.
    pub(crate) fn calls(&self) -> Vec<RecordedCall> {
        std::mem::take(&mut *locked(&self.calls))
    }

    /// Like `calls`, without the Operations that only read.
    pub(crate) fn changes(&self) -> Vec<RecordedCall> {
        let mut calls = self.calls();
        calls.retain(|call| !call.is_read);
        calls
    }

    /// Records something that is not in the table.
    pub(crate) fn note(&self, operation: &'static str, arguments: impl Serialize + Debug) {
        self.push(operation, &arguments, false);
    }

    /// Records the same calls, and answers none.
    #[cfg(test)]
    pub(crate) fn without_answers(&self) -> Self {
        Self { calls: Arc::clone(&self.calls), ..Self::default() }
    }

    fn push(&self, operation: &'static str, request: &(impl Serialize + Debug), is_read: bool) {
        let arguments = serde_json::to_value(request).expect("requests are JSON");
        let (text, origin) = (format!("{request:?}"), self.origin.clone());
        locked(&self.calls).push(RecordedCall { operation, arguments, text, is_read, origin });
    }

    fn perform<R: RecordedRequest>(&self, request: &R, watch: &dyn Watch) -> Result<R::Answer> {
        self.push(R::OPERATION, request, R::IS_READ);
        let answer = locked(&self.answers).get(&TypeId::of::<R>()).cloned();
        match answer.and_then(|answer| answer.downcast::<AnswerFn<R>>().ok()) {
            Some(answer) => (answer.0)(request, watch),
            None => {
                Err(Error::new(Kind::State, format!("no answer is set for `{}`", R::OPERATION)))
            }
        }
    }
}

/// The request of one Operation of the table.
macro_rules! recorded_request {
    ($method:ident($($args:tt)*) $watch:tt -> $value:ty = $request:ident $($rest:tt)*) => {
        impl RecordedRequest for $request {
            type Answer = $value;
            const OPERATION: &'static str = $request::ROUTE.name;
            const IS_READ: bool = matches!($request::ROUTE.method, Method::Get);
        }
    };
}

operations!(all recorded_request);

macro_rules! watch_or_none {
    () => {
        &NoProgress
    };
    ($watch:ident) => {
        $watch
    };
}

/// The method for one Operation of the table.
macro_rules! recorded_method {
    (
        $method:ident($($arg:ident: $type:ty),*) [$($watch:ident)?]
        -> $value:ty = $request:ident $($rest:tt)*
    ) => {
        fn $method(&self, $($arg: Arg<'_, $type>,)* $($watch: &dyn Watch,)?) -> Result<$value> {
            self.perform(&$request::from_args($($arg),*), watch_or_none!($($watch)?))
        }
    };
}

/// The requests of the Operations that are streams.
macro_rules! recorded_streams {
    ($($request:ident = $operation:literal $is_read:literal -> $value:ty;)*) => {$(
        impl RecordedRequest for $request {
            type Answer = $value;
            const OPERATION: &'static str = $operation;
            const IS_READ: bool = $is_read;
        }
    )*};
}

recorded_streams! {
    SandboxLogs = "sandbox_logs" true -> Box<dyn LogStream>;
    SandboxEvents = "sandbox_events" true -> Box<dyn EventStream>;
    ExecStart = "exec_start" false -> Box<dyn Exec>;
    ExecAttach = "exec_attach" true -> Box<dyn Exec>;
    ExecRun = "exec_run" false -> (Name, Box<dyn Exec>);
    FileRead = "file_read" true -> Vec<u8>;
    FileUpload = "file_write" false -> u64;
    SnapshotSave = "snapshot_save" true -> Vec<u8>;
    SnapshotUpload = "snapshot_load" false -> Snapshot;
    SftpLink = "link_sftp" false -> UnixStream;
    DialLink = "link_dial" false -> UnixStream;
    ListenLink = "link_listen" false -> Box<dyn LinkListener>;
}

/// The Exec to attach to.
#[derive(Debug, Serialize)]
pub(crate) struct ExecAttach {
    pub(crate) name: Name,
    pub(crate) id: u64,
}

/// A file to write, with its content.
#[derive(Debug, Serialize)]
pub(crate) struct FileUpload {
    #[serde(flatten)]
    pub(crate) file: FileWrite,
    pub(crate) content: Vec<u8>,
}

/// An archive to load.
#[derive(Debug, Serialize)]
pub(crate) struct SnapshotUpload {
    pub(crate) name: Option<Name>,
    pub(crate) archive: Vec<u8>,
}

/// The sandbox and user of an SFTP stream.
#[derive(Debug, Serialize)]
pub(crate) struct SftpLink {
    pub(crate) name: Name,
    pub(crate) user: Option<UserRef>,
}

/// The address to connect to from inside.
#[derive(Debug, Serialize)]
pub(crate) struct DialLink {
    pub(crate) name: Name,
    pub(crate) user: Option<UserRef>,
    pub(crate) to: Target,
}

/// The address to listen on inside.
#[derive(Debug, Serialize)]
pub(crate) struct ListenLink {
    pub(crate) name: Name,
    pub(crate) user: Option<UserRef>,
    pub(crate) at: Target,
}

fn read_all(from: &mut dyn Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).map_err(|error| Error::host("cannot read", error))?;
    Ok(bytes)
}

impl Sandboxes for Recorder {
    operations!(sandboxes recorded_method);

    fn with_secrets(&self, secrets: Vec<(String, Vec<u8>)>) -> Arc<dyn Api> {
        self.note("with_secrets", secrets);
        Arc::new(self.clone())
    }

    fn with_origin(&self, origin: CallOrigin) -> Arc<dyn Api> {
        Arc::new(Self { origin: Some(origin), ..self.clone() })
    }

    fn sandbox_logs(&self, name: &Name, filter: &LogFilter) -> Result<Box<dyn LogStream>> {
        let LogFilter { exec, source, since, until, grep } = filter.clone();
        let name = name.clone();
        self.perform(&SandboxLogs { name, exec, source, since, until, grep }, &NoProgress)
    }

    fn sandbox_events(&self, name: &Name) -> Result<Box<dyn EventStream>> {
        self.perform(&SandboxEvents { name: name.clone() }, &NoProgress)
    }
}

impl Execs for Recorder {
    operations!(execs recorded_method);

    fn exec_start(&self, name: &Name, command: &Command) -> Result<Box<dyn Exec>> {
        let (name, command) = (name.clone(), command.clone());
        self.perform(&ExecStart { name, command, stdin: None, limit: None }, &NoProgress)
    }

    fn exec_attach(&self, name: &Name, id: u64) -> Result<Box<dyn Exec>> {
        self.perform(&ExecAttach { name: name.clone(), id }, &NoProgress)
    }

    fn exec_run(&self, spec: &Spec, watch: &dyn Watch) -> Result<(Name, Box<dyn Exec>)> {
        let secrets = SecretValues::new();
        self.perform(&ExecRun { spec: spec.clone(), stdin: None, limit: None, secrets }, watch)
    }
}

impl Files for Recorder {
    operations!(files recorded_method);

    fn file_read(
        &self,
        at: &Place,
        path: &[u8],
        offset: u64,
        length: Option<u64>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let Where { sandbox, volume, user } = at.into();
        let path = InsidePath(path.to_vec());
        let request = FileRead { sandbox, volume, user, path, offset, length };
        take(&self.perform(&request, &NoProgress)?)
    }

    fn file_write(
        &self,
        at: &Place,
        path: &[u8],
        mode: u32,
        append: bool,
        content: &mut dyn Read,
    ) -> Result<u64> {
        let Where { sandbox, volume, user } = at.into();
        let path = InsidePath(path.to_vec());
        let file = FileWrite { sandbox, volume, user, path, mode, append };
        self.perform(&FileUpload { file, content: read_all(content)? }, &NoProgress)
    }
}

impl Images for Recorder {
    operations!(images recorded_method);

    fn for_client(self: Arc<Self>, _: ClientScope) -> Arc<dyn Api> {
        self
    }
}

impl Volumes for Recorder {
    operations!(volumes recorded_method);
}

impl Snapshots for Recorder {
    operations!(snapshots recorded_method);

    fn snapshot_save(&self, name: &Name, whole: bool, out: &mut dyn Write) -> Result<()> {
        let archive = self.perform(&SnapshotSave { name: name.clone(), whole }, &NoProgress)?;
        out.write_all(&archive).map_err(|error| Error::host("cannot write", error))
    }

    fn snapshot_load(&self, name: Option<&Name>, archive: &mut dyn Read) -> Result<Snapshot> {
        let archive = read_all(archive)?;
        self.perform(&SnapshotUpload { name: name.cloned(), archive }, &NoProgress)
    }
}

impl Networks for Recorder {
    operations!(networks recorded_method);
}

impl Workspaces for Recorder {
    operations!(workspaces recorded_method);
}

impl Syncs for Recorder {
    operations!(syncs recorded_method);
}

impl Children for Recorder {
    operations!(children recorded_method);
}

impl Links for Recorder {
    fn link_sftp(&self, name: &Name, user: Option<&UserRef>) -> Result<UnixStream> {
        self.perform(&SftpLink { name: name.clone(), user: user.cloned() }, &NoProgress)
    }

    fn link_dial(&self, name: &Name, user: Option<&UserRef>, to: &Target) -> Result<UnixStream> {
        let (name, user, to) = (name.clone(), user.cloned(), to.clone());
        self.perform(&DialLink { name, user, to }, &NoProgress)
    }

    fn link_listen(
        &self,
        name: &Name,
        user: Option<&UserRef>,
        at: &Target,
    ) -> Result<Box<dyn LinkListener>> {
        let (name, user, at) = (name.clone(), user.cloned(), at.clone());
        self.perform(&ListenLink { name, user, at }, &NoProgress)
    }
}
