//! One ctl connection: a request line in, then one reply, or several if output is streamed.

use super::process::CtlState;
use super::replies::{self, CtlError, MAX_OUTPUT_CHARS};
use super::requests::{CommandArgs, CtlMethod, CtlRequest, LINE_LIMIT};
use crate::images::Fetching;
use msb_api::{Child, ChildSpec, Exec, ExecEvent, ExecInput, Execs};
use msb_spec::{Command, Ending, Error, Kind, Name, Result, Span, Stdin};
use msb_sys::signal::SIGKILL;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::io::{self, PipeReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How long a request may take to arrive, and a reply to be read.
const IO_TIMEOUT: Duration = Duration::from_secs(300);
/// How long, and in how many reads, unread input is drained before the socket is closed.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);
const DRAIN_READS: usize = 64;
/// The most bytes of output: a UTF-8 character has up to four.
const MAX_OUTPUT_BYTES: usize = MAX_OUTPUT_CHARS * 4;

pub(super) fn serve(mut stream: UnixStream, ctl: &CtlState) {
    let limited = stream
        .set_read_timeout(Some(IO_TIMEOUT))
        .and_then(|()| stream.set_write_timeout(Some(IO_TIMEOUT)));
    if limited.is_err() {
        return;
    }
    let request = match line(&mut stream) {
        Ok(line) => CtlRequest::parse(&line),
        Err(error_reply) => CtlRequest { id: Value::Null, method: Err(error_reply) },
    };
    let CtlRequest { id, method } = request;
    let answered = match method {
        Err(error_reply) => Err(error_reply),
        Ok(_) if !ctl.allows() => Err(CtlError::limit("Too many requests, wait a moment")),
        Ok(method) => dispatch(ctl, method, &id, &mut stream),
    };
    let to_json = match answered {
        Ok(result) => json!({ "id": id, "result": result }),
        Err(error_reply) => error_reply.to_json(&id),
    };
    msb_log::debug_on_failure!(
        write_line(&mut stream, &to_json),
        "cannot answer a request of the sandbox"
    );
    drain_and_close(&mut stream);
}

/// Drains unread input: closing a socket with unread data would discard the reply.
fn drain_and_close(stream: &mut UnixStream) {
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.set_read_timeout(Some(DRAIN_TIMEOUT));
    let mut buffer = [0; 4096];
    for _ in 0..DRAIN_READS {
        if !stream.read(&mut buffer).is_ok_and(|length| length > 0) {
            return;
        }
    }
}

/// Reads the request line, limited in bytes and in total time.
fn line(stream: &mut UnixStream) -> std::result::Result<Vec<u8>, CtlError> {
    let until = Instant::now() + IO_TIMEOUT;
    let mut line = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            // End of input ends the line.
            Ok(0) if !line.is_empty() => return Ok(line),
            Ok(0) => return Err(CtlError::invalid("Empty request")),
            Ok(n) => match buffer[..n].iter().position(|byte| *byte == b'\n') {
                Some(end) => {
                    line.extend_from_slice(&buffer[..end]);
                    break;
                }
                None => line.extend_from_slice(&buffer[..n]),
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(CtlError::invalid("Read timeout")),
        }
        if line.len() > LINE_LIMIT {
            break;
        }
        if Instant::now() > until {
            return Err(CtlError::invalid("Read timeout"));
        }
    }
    match line.len() > LINE_LIMIT {
        true => Err(CtlError::invalid(format!("Request too large (max {LINE_LIMIT} bytes)"))),
        false => Ok(line),
    }
}

fn write_line(stream: &mut UnixStream, what: &Value) -> io::Result<()> {
    let mut line = what.to_string();
    line.push('\n');
    stream.write_all(line.as_bytes())
}

fn dispatch(
    ctl: &CtlState,
    method: CtlMethod,
    id: &Value,
    stream: &mut UnixStream,
) -> std::result::Result<Value, CtlError> {
    let parent = &ctl.parent;
    match method {
        CtlMethod::Ping => Ok(json!({ "ok": true, "parent": ctl.without_namespace(parent) })),
        CtlMethod::Spawn(spec) => {
            spawn(ctl, spec).map(|child| replies::spawned(&names(ctl, &child), &child))
        }
        CtlMethod::List => {
            let list = ctl.engine.children().list(parent).map_err(|error| CtlError::of(&error))?;
            let listed = |child: &Child| replies::listed(&names(ctl, child), child);
            let children: Vec<Value> = list.children.iter().map(listed).collect();
            Ok(json!({ "children": children }))
        }
        CtlMethod::Destroy(name) => {
            let child = find_child(ctl, &name)?;
            let removed = ctl.engine.children().remove(parent, &child.name);
            removed.map_err(|error| gone(ctl, &error, &name))?;
            Ok(json!({ "ok": true, "message": format!("Destroyed sandbox '{name}' ({name})") }))
        }
        CtlMethod::Exec { name, args } => {
            let child = find_child(ctl, &name)?;
            run(ctl, &child.name, &args, id, stream).map_err(|error| gone(ctl, &error, &name))
        }
        CtlMethod::Run { spec, args } => {
            let child = spawn(ctl, spec)?;
            let exec_result = run(ctl, &child.name, &args, id, stream);
            // The child may have ended by itself.
            msb_log::warn_on_failure!(
                ctl.engine.children().remove(parent, &child.name),
                "cannot remove a child"
            );
            exec_result.map_err(|error| CtlError::of(&error))
        }
    }
}

/// The name of a child inside, and its hostname on the network.
fn names<'a>(ctl: &CtlState, child: &'a Child) -> (String, &'a str) {
    (ctl.visible_name(&child.name), ctl.without_namespace(&child.name))
}

/// Finds a child of this sandbox by its name inside. Other sandboxes are not found.
fn find_child(ctl: &CtlState, name: &str) -> std::result::Result<Child, CtlError> {
    let not_found = || CtlError::no_child(name, ctl.without_namespace(&ctl.parent));
    let list = ctl.engine.children().list(&ctl.parent).map_err(|error| CtlError::of(&error))?;
    list.children
        .into_iter()
        .find(|child| ctl.visible_name(&child.name) == name)
        .ok_or_else(not_found)
}

/// Reports a child that ended meanwhile as not found.
fn gone(ctl: &CtlState, error: &Error, name: &str) -> CtlError {
    match error.kind() {
        Kind::NotFound | Kind::State => {
            CtlError::no_child(name, ctl.without_namespace(&ctl.parent))
        }
        _ => CtlError::of(error),
    }
}

fn spawn(ctl: &CtlState, mut spec: ChildSpec) -> std::result::Result<Child, CtlError> {
    let parent = ctl.without_namespace(&ctl.parent);
    let asked = spec.name.take();
    let spawned = ctl.engine.children().spawn_with_alias(
        &ctl.parent,
        &spec,
        asked.as_ref(),
        &Fetching::default(),
    );
    spawned.map_err(|error| match error.kind() {
        Kind::Denied if spec.image.is_some() => {
            let image = spec.image.as_ref().map(replies::short_image_name).unwrap_or_default();
            let message = format!("Image '{image}' not allowed for children of '{parent}'");
            CtlError { code: "PERMISSION_DENIED", message }
        }
        Kind::Exists => {
            let name = asked.as_ref().map(Name::as_str).unwrap_or_default();
            CtlError::invalid(format!("Sandbox '{name}' already exists"))
        }
        Kind::Limit => limit(ctl).unwrap_or_else(|| CtlError::of(&error)),
        _ => CtlError::of(&error),
    })
}

/// The limit that was reached, if it can be determined.
fn limit(ctl: &CtlState) -> Option<CtlError> {
    let policy = ctl.engine.home().plan(&ctl.parent).ok()?.spawn?;
    let list = ctl.engine.children().list(&ctl.parent).ok()?;
    if list.spawned >= policy.max_total {
        return Some(CtlError::limit("Lifetime child limit reached"));
    }
    let full = list.children.len() >= policy.max_concurrent as usize;
    full.then(|| CtlError::limit("Concurrent child limit reached"))
}

/// Runs a command in a child. It is killed when the client closes the connection.
fn run(
    ctl: &CtlState,
    child: &Name,
    args: &CommandArgs,
    id: &Value,
    stream: &mut UnixStream,
) -> Result<Value> {
    let command = Command {
        argv: ["/bin/sh", "-c", &args.command].map(str::to_owned).to_vec(),
        workdir: args.workdir.clone(),
        stdin: Stdin::Closed,
        timeout: Some(args.timeout),
        ..Command::default()
    };
    let begun = Instant::now();
    let mut exec = ctl.engine.exec_start(child, &command)?;
    let input = exec.input();
    let about = |error: io::Error| Error::host("cannot watch the connection", error);
    let watched = stream.try_clone().map_err(about)?;
    let (over, keep_alive) = io::pipe().map_err(about)?;
    let output = thread::scope(|scope| {
        scope.spawn(|| kill_on_hangup(&watched, &over, &input));
        let output = match args.stream {
            true => follow(exec.as_mut(), id, stream, &input),
            false => gather(exec.as_mut()),
        };
        drop(keep_alive);
        output
    });
    let CommandOutput { stdout, mut stderr, exit } = output?;
    let code = match exit.ending {
        Ending::Timeout => {
            stderr = timed_out(&stderr, args.timeout);
            -1
        }
        _ => exit.status(),
    };
    Ok(replies::exec_result(&ctl.visible_name(child), (&stdout, &stderr), code, begun.elapsed()))
}

fn timed_out(output: &str, after: Span) -> String {
    let words = format!("Timed out after {}s", after.0.as_secs_f64());
    match output.is_empty() {
        true => words,
        false => format!("{output}\n{words}"),
    }
}

/// The output of a command and its exit.
struct CommandOutput {
    stdout: String,
    stderr: String,
    exit: msb_spec::Exit,
}

fn gather(exec: &mut dyn Exec) -> Result<CommandOutput> {
    let captured = msb_api::capture(exec, MAX_OUTPUT_BYTES)?;
    Ok(CommandOutput {
        stdout: replies::text(&captured.stdout, captured.stdout_bytes),
        stderr: replies::text(&captured.stderr, captured.stderr_bytes),
        exit: captured.exit,
    })
}

/// Streams the output of a command. It is killed if the client stops reading.
fn follow(
    exec: &mut dyn Exec,
    id: &Value,
    stream: &mut UnixStream,
    input: &Arc<dyn ExecInput>,
) -> Result<CommandOutput> {
    while let Some(event) = exec.next()? {
        if let ExecEvent::Exited(exit) = event {
            return Ok(CommandOutput { stdout: String::new(), stderr: String::new(), exit });
        }
        if let Some(output_piece) = replies::output_piece(id, &event)
            && write_line(stream, &output_piece).is_err()
        {
            let _ = input.signal(SIGKILL);
        }
    }
    Err(Error::new(Kind::Protocol, "the exit of the command was not reported"))
}

/// Kills a command when its client closes the connection. A client that only shuts down its write
/// side stays connected. Returns when the pipe is closed.
fn kill_on_hangup(client: &UnixStream, over: &PipeReader, input: &Arc<dyn ExecInput>) {
    loop {
        let mut waits = [PollFd::new(client, PollFlags::empty()), PollFd::new(over, PollFlags::IN)];
        match poll(&mut waits, None) {
            Err(Errno::INTR) => continue,
            Ok(_) if waits[1].revents().is_empty() => {
                let _ = input.signal(SIGKILL);
            }
            _ => {}
        }
        return;
    }
}
