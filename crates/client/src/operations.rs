//! The Operations of [`msb_api`], each as an HTTP request.

use crate::exec::{self, RemoteExec};
use crate::{
    BYTES, Client, EVENTS, JSON, TAR, UNWATCHED, file_copy, members, parse_json, query, read_json,
    sse,
};
use msb_api::http::streams::{
    self, FileRead, FileWrite, Follow, SnapshotLoad, SnapshotSave, StartExec, StartRun,
};
use msb_api::http::*;
use msb_api::operation_types::*;
use msb_api::{
    Api, Arg, Children, ClientScope, Event, EventStream, Exec, Execs, Files, Images, LogFilter,
    LogLine, LogStream, Networks, Sandboxes, Snapshots, Syncs, Volumes, Watch, Workspaces,
    operations,
};
use msb_spec::{CallOrigin, Command, Error, Result};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use ureq::SendBody;

/// The method for one Operation of the table.
macro_rules! client_method {
    // By hand: it uses files of the host of the client.
    ($method:ident($($args:tt)*) $watch:tt -> $value:ty = $request:ident [host_files] $rest:tt) => {};
    (
        $method:ident($($arg:ident: $type:ty),*) [$($watch:ident)?]
        -> $value:ty = $request:ident $($rest:tt)*
    ) => {
        fn $method(&self, $($arg: Arg<'_, $type>,)* $($watch: &dyn Watch,)?) -> Result<$value> {
            let watch: Option<&dyn Watch> = None$(.or(Some($watch)))?;
            ResponseOf::<$value>::into_value(self.call($request::from_args($($arg),*), watch)?)
        }
    };
}

impl Client {
    /// Values of Secrets as text; fails for values that are no UTF-8.
    pub(crate) fn values(&self) -> Result<SecretValues> {
        let text = |(name, value): &(String, Vec<u8>)| match std::str::from_utf8(value) {
            Ok(value) => Ok((name.clone(), value.to_owned())),
            Err(_) => Err(Error::unsupported(format!(
                "the value of secret `{name}` is not UTF-8 and cannot be sent to a server"
            ))),
        };
        self.secrets.iter().map(text).collect()
    }
}

impl Sandboxes for Client {
    operations!(sandboxes client_method);

    fn with_secrets(&self, secrets: Vec<(String, Vec<u8>)>) -> Arc<dyn Api> {
        Arc::new(Self { secrets: secrets.into(), ..self.clone() })
    }

    /// The server records the origin that it sees.
    fn with_origin(&self, _: CallOrigin) -> Arc<dyn Api> {
        Arc::new(self.clone())
    }

    fn sandbox_logs(&self, name: &Name, filter: &LogFilter) -> Result<Box<dyn LogStream>> {
        let LogFilter { exec, source, since, until, grep } = filter.clone();
        let name = name.clone();
        let follow = Follow { name, skip: 0, exec, source, since, until, grep };
        // Requested now, so that a missing sandbox is reported now.
        let Follow { name, exec, source, since, until, grep, .. } = follow.clone();
        let first = self.call(SandboxLogs { name, exec, source, since, until, grep }, None)?;
        let state = FollowState::First(first.lines);
        let path = streams::LOGS_FOLLOW;
        Ok(Box::new(RemoteLogs {
            stream: FollowStream::new(self, path, follow, state),
            rest: first.rest,
        }))
    }

    fn sandbox_events(&self, name: &Name) -> Result<Box<dyn EventStream>> {
        let first = self.call(SandboxEvents { name: name.clone() }, None)?;
        let (name, skip) = (name.clone(), 0);
        let (exec, source, since, until, grep) = (None, None, None, None, None);
        let follow = Follow { name, skip, exec, source, since, until, grep };
        Ok(Box::new(RemoteEvents(FollowStream::new(
            self,
            streams::EVENTS_FOLLOW,
            follow,
            FollowState::First(first),
        ))))
    }
}

/// State of a followed list.
enum FollowState<T> {
    /// Existing items, not returned yet.
    First(Vec<T>),
    /// New items arrive from a thread.
    Streaming(Receiver<Result<Vec<T>>>),
    /// So many items were returned; the stream is not open yet.
    Skipping(u64),
}

struct FollowStream<T> {
    client: Client,
    path: &'static str,
    ask: Follow,
    state: FollowState<T>,
}

impl<T: serde::de::DeserializeOwned + Send + 'static> FollowStream<T> {
    fn new(client: &Client, path: &'static str, ask: Follow, state: FollowState<T>) -> Self {
        Self { client: client.clone(), path, ask, state }
    }

    fn more(&mut self) -> Result<Vec<T>> {
        match std::mem::replace(&mut self.state, FollowState::Skipping(0)) {
            FollowState::First(items) => {
                self.state = FollowState::Skipping(items.len() as u64);
                Ok(items)
            }
            FollowState::Skipping(skip) => {
                self.state = FollowState::Streaming(self.follow(skip)?);
                Ok(Vec::new())
            }
            FollowState::Streaming(items) => {
                let items_read = match items.try_recv() {
                    Ok(items_read) => items_read,
                    Err(TryRecvError::Empty) => Ok(Vec::new()),
                    Err(TryRecvError::Disconnected) => Err(Error::new(
                        msb_spec::Kind::Protocol,
                        "the server closed the connection",
                    )),
                };
                self.state = FollowState::Streaming(items);
                items_read
            }
        }
    }

    /// Opens the stream; a thread reads it.
    fn follow(&self, skip: u64) -> Result<Receiver<Result<Vec<T>>>> {
        let path = self.path.replace("{name}", self.ask.name.as_str());
        let mut rest = members(&Follow { skip, ..self.ask.clone() })?;
        rest.remove("name");
        let response = self.client.send("GET", &path, &query(&rest), SendBody::none(), EVENTS)?;
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for event in sse::SseReader::new(response.into_body().into_reader()) {
                let items_read = event.and_then(|(name, data)| match name.as_str() {
                    "items" => parse_json(&data),
                    "error" => Err(parse_json(&data)?),
                    _ => Ok(Vec::new()),
                });
                if sender.send(items_read).is_err() {
                    return;
                }
            }
        });
        Ok(receiver)
    }
}

struct RemoteLogs {
    stream: FollowStream<LogLine>,
    rest: Vec<LogLine>,
}

impl LogStream for RemoteLogs {
    fn more(&mut self) -> Result<Vec<LogLine>> {
        self.stream.more()
    }

    fn rest(&mut self) -> Vec<LogLine> {
        std::mem::take(&mut self.rest)
    }
}

struct RemoteEvents(FollowStream<Event>);

impl EventStream for RemoteEvents {
    fn more(&mut self) -> Result<Vec<Event>> {
        self.0.more()
    }
}

impl Execs for Client {
    operations!(execs client_method);

    fn exec_start(&self, name: &Name, command: &Command) -> Result<Box<dyn Exec>> {
        let path = streams::EXEC_SOCKET.replace("{name}", name.as_str());
        let first = StartExec { command: command.clone(), stdin: None };
        let exec = RemoteExec::open(self, &path, Some(&first), UNWATCHED)?;
        exec::close_unused_stdin(&exec, command.stdin)?;
        Ok(Box::new(exec))
    }

    fn exec_attach(&self, name: &Name, id: u64) -> Result<Box<dyn Exec>> {
        let path = streams::ATTACH_SOCKET.replace("{name}", name.as_str());
        let path = path.replace("{id}", &id.to_string());
        Ok(Box::new(RemoteExec::open(self, &path, None::<&StartExec>, UNWATCHED)?))
    }

    fn exec_run(&self, spec: &Spec, watch: &dyn Watch) -> Result<(Name, Box<dyn Exec>)> {
        let first = StartRun { spec: spec.clone(), stdin: None, secrets: self.values()? };
        let exec = RemoteExec::open(self, streams::RUN_SOCKET, Some(&first), watch)?;
        Ok((exec.sandbox().clone(), Box::new(exec)))
    }
}

fn inside_path(path: &[u8]) -> InsidePath {
    InsidePath(path.to_vec())
}

impl Files for Client {
    operations!(files client_method);

    fn file_read(
        &self,
        at: &Place,
        path: &[u8],
        offset: u64,
        length: Option<u64>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let Where { sandbox, volume, user } = at.into();
        let ask = FileRead { sandbox, volume, user, path: inside_path(path), offset, length };
        let query = query(&members(&ask)?);
        let response = self.send("GET", streams::FILE_CONTENT, &query, SendBody::none(), BYTES)?;
        let mut body = response.into_body().into_with_config().limit(u64::MAX).reader();
        let mut piece = vec![0; 64 << 10];
        loop {
            let count = body
                .read(&mut piece)
                .map_err(|error| Error::host("the file transfer was cut off", error))?;
            match count {
                0 => return Ok(()),
                count => take(&piece[..count])?,
            }
        }
    }

    fn file_write(
        &self,
        at: &Place,
        path: &[u8],
        mode: u32,
        append: bool,
        mut content: &mut dyn Read,
    ) -> Result<u64> {
        let Where { sandbox, volume, user } = at.into();
        let ask = FileWrite { sandbox, volume, user, path: inside_path(path), mode, append };
        let query = query(&members(&ask)?);
        let body = SendBody::from_reader(&mut content);
        let mut response = self.send("PUT", streams::FILE_CONTENT, &query, body, JSON)?;
        read_json::<Count>(&mut response).map(|done| done.count)
    }

    fn file_push(&self, at: &Place, from: &Path, to: &[u8]) -> Result<CopyCount> {
        file_copy::push(self, at, from, to)
    }

    fn file_pull(&self, at: &Place, from: &[u8], to: &Path) -> Result<CopyCount> {
        file_copy::pull(self, at, from, to)
    }
}

impl Images for Client {
    operations!(images client_method);

    /// The server itself treats each caller as a client.
    fn for_client(self: Arc<Self>, _: ClientScope) -> Arc<dyn Api> {
        self
    }
}

impl Volumes for Client {
    operations!(volumes client_method);
}

impl Snapshots for Client {
    operations!(snapshots client_method);

    fn snapshot_save(&self, name: &Name, whole: bool, out: &mut dyn Write) -> Result<()> {
        let path = streams::SNAPSHOT_SAVE.replace("{name}", name.as_str());
        let mut rest = members(&SnapshotSave { name: name.clone(), whole })?;
        rest.remove("name");
        let response = self.send("GET", &path, &query(&rest), SendBody::none(), TAR)?;
        let mut body = response.into_body().into_with_config().limit(u64::MAX).reader();
        std::io::copy(&mut body, out)
            .map(drop)
            .map_err(|error| Error::host("the archive transfer was cut off", error))
    }

    fn snapshot_load(&self, name: Option<&Name>, mut archive: &mut dyn Read) -> Result<Snapshot> {
        let query = query(&members(&SnapshotLoad { name: name.cloned() })?);
        let body = SendBody::from_reader(&mut archive);
        let mut response = self.send("POST", streams::SNAPSHOT_LOAD, &query, body, TAR)?;
        read_json(&mut response)
    }
}

impl Networks for Client {
    operations!(networks client_method);
}

impl Workspaces for Client {
    operations!(workspaces client_method);
}

impl Syncs for Client {
    operations!(syncs client_method);
}

impl Children for Client {
    operations!(children client_method);
}
