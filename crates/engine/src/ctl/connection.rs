//! One connection from inside: a line comes, and an answer goes, or several if it is to be told
//! what a command says.

use super::answers::{self, MOST_SAID, Refusal};
use super::process::Desk;
use super::requests::{Ask, LINE_LIMIT, Method, Request};
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

/// How long a request may take to come, and an answer to be read.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long, and how many times, what nobody reads is thrown away.
const FAREWELL: Duration = Duration::from_millis(200);
const FAREWELL_READS: usize = 64;
/// A character has four bytes at most.
const MOST_BYTES: usize = MOST_SAID * 4;

pub(super) fn serve(mut stream: UnixStream, desk: &Desk) {
    let limited = stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
    if limited.is_err() {
        return;
    }
    let request = match line(&mut stream) {
        Ok(line) => Request::parse(&line),
        Err(refusal) => Request { id: Value::Null, method: Err(refusal) },
    };
    let Request { id, method } = request;
    let answered = match method {
        Err(refusal) => Err(refusal),
        Ok(_) if !desk.allows() => Err(Refusal::limit("Too many requests, wait a moment")),
        Ok(method) => done(desk, method, &id, &mut stream),
    };
    let told = match answered {
        Ok(result) => json!({ "id": id, "result": result }),
        Err(refusal) => refusal.told(&id),
    };
    let _ = tell(&mut stream, &told);
    hang_up(&mut stream);
}

/// Takes what was said beyond the request: if it were left there, the answer would be lost with it.
fn hang_up(stream: &mut UnixStream) {
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.set_read_timeout(Some(FAREWELL));
    let mut buffer = [0; 4096];
    for _ in 0..FAREWELL_READS {
        if !stream.read(&mut buffer).is_ok_and(|length| length > 0) {
            return;
        }
    }
}

/// Reads one line, within a limit of bytes and of time for all of it.
fn line(stream: &mut UnixStream) -> std::result::Result<Vec<u8>, Refusal> {
    let until = Instant::now() + PATIENCE;
    let mut line = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            // Who says no more has said it all.
            Ok(0) if !line.is_empty() => return Ok(line),
            Ok(0) => return Err(Refusal::invalid("Empty request")),
            Ok(n) => match buffer[..n].iter().position(|byte| *byte == b'\n') {
                Some(end) => {
                    line.extend_from_slice(&buffer[..end]);
                    break;
                }
                None => line.extend_from_slice(&buffer[..n]),
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(Refusal::invalid("Read timeout")),
        }
        if line.len() > LINE_LIMIT {
            break;
        }
        if Instant::now() > until {
            return Err(Refusal::invalid("Read timeout"));
        }
    }
    match line.len() > LINE_LIMIT {
        true => Err(Refusal::invalid(format!("Request too large (max {LINE_LIMIT} bytes)"))),
        false => Ok(line),
    }
}

fn tell(stream: &mut UnixStream, what: &Value) -> io::Result<()> {
    let mut line = what.to_string();
    line.push('\n');
    stream.write_all(line.as_bytes())
}

fn done(
    desk: &Desk,
    method: Method,
    id: &Value,
    stream: &mut UnixStream,
) -> std::result::Result<Value, Refusal> {
    let parent = &desk.parent;
    match method {
        Method::Ping => Ok(json!({ "ok": true, "parent": desk.inner(parent) })),
        Method::Spawn(spec) => {
            spawn(desk, spec).map(|child| answers::spawned(&names(desk, &child), &child))
        }
        Method::List => {
            let brood = desk.engine.children(parent).map_err(|error| Refusal::of(&error))?;
            let listed = |child: &Child| answers::listed(&names(desk, child), child);
            let children: Vec<Value> = brood.children.iter().map(listed).collect();
            Ok(json!({ "children": children }))
        }
        Method::Destroy(name) => {
            let child = own(desk, &name)?;
            let removed = desk.engine.remove_child(parent, &child.name);
            removed.map_err(|error| gone(desk, &error, &name))?;
            Ok(json!({ "ok": true, "message": format!("Destroyed sandbox '{name}' ({name})") }))
        }
        Method::Exec { name, ask } => {
            let child = own(desk, &name)?;
            run(desk, &child.name, &ask, id, stream).map_err(|error| gone(desk, &error, &name))
        }
        Method::Run { spec, ask } => {
            let child = spawn(desk, spec)?;
            let ran = run(desk, &child.name, &ask, id, stream);
            // It may have ended by itself.
            let _ = desk.engine.remove_child(parent, &child.name);
            ran.map_err(|error| Refusal::of(&error))
        }
    }
}

/// What a child is called inside, and by whom it is reached there.
fn names<'a>(desk: &Desk, child: &'a Child) -> (String, &'a str) {
    (desk.called(&child.name), desk.inner(&child.name))
}

/// A child of this sandbox; others are as if there were none.
fn own(desk: &Desk, name: &str) -> std::result::Result<Child, Refusal> {
    let not_found = || Refusal::no_child(name, desk.inner(&desk.parent));
    let brood = desk.engine.children(&desk.parent).map_err(|error| Refusal::of(&error))?;
    brood.children.into_iter().find(|child| desk.called(&child.name) == name).ok_or_else(not_found)
}

/// A child that ended meanwhile is none.
fn gone(desk: &Desk, error: &Error, name: &str) -> Refusal {
    match error.kind() {
        Kind::NotFound | Kind::State => Refusal::no_child(name, desk.inner(&desk.parent)),
        _ => Refusal::of(error),
    }
}

fn spawn(desk: &Desk, mut spec: ChildSpec) -> std::result::Result<Child, Refusal> {
    let parent = desk.inner(&desk.parent);
    let asked = spec.name.take();
    let spawned =
        desk.engine.spawn_called(&desk.parent, &spec, asked.as_ref(), &Fetching::default());
    spawned.map_err(|error| match error.kind() {
        Kind::Denied if spec.image.is_some() => {
            let image = spec.image.as_ref().map(answers::familiar).unwrap_or_default();
            let message = format!("Image '{image}' not allowed for children of '{parent}'");
            Refusal { code: "PERMISSION_DENIED", message }
        }
        Kind::Exists => {
            let name = asked.as_ref().map(Name::as_str).unwrap_or_default();
            Refusal::invalid(format!("Sandbox '{name}' already exists"))
        }
        Kind::Limit => limit(desk).unwrap_or_else(|| Refusal::of(&error)),
        _ => Refusal::of(&error),
    })
}

/// Which limit was reached, where that can be seen.
fn limit(desk: &Desk) -> Option<Refusal> {
    let policy = desk.engine.home().plan(&desk.parent).ok()?.spawn?;
    let brood = desk.engine.children(&desk.parent).ok()?;
    if brood.spawned >= policy.max_total {
        return Some(Refusal::limit("Lifetime child limit reached"));
    }
    let full = brood.children.len() >= policy.max_concurrent as usize;
    full.then(|| Refusal::limit("Concurrent child limit reached"))
}

/// Runs a command in a child. It ends when whoever asked hangs up.
fn run(desk: &Desk, child: &Name, ask: &Ask, id: &Value, stream: &mut UnixStream) -> Result<Value> {
    let command = Command {
        argv: ["/bin/sh", "-c", &ask.command].map(str::to_owned).to_vec(),
        workdir: ask.workdir.clone(),
        stdin: Stdin::Closed,
        timeout: Some(ask.timeout),
        ..Command::default()
    };
    let begun = Instant::now();
    let mut exec = desk.engine.exec_start(child, &command)?;
    let input = exec.input();
    let about = |error: io::Error| Error::host("cannot watch who asks", error);
    let watched = stream.try_clone().map_err(about)?;
    let (over, goes_on) = io::pipe().map_err(about)?;
    let said = thread::scope(|scope| {
        scope.spawn(|| end_with(&watched, &over, &input));
        let said = match ask.stream {
            true => follow(exec.as_mut(), id, stream, &input),
            false => gather(exec.as_mut()),
        };
        drop(goes_on);
        said
    });
    let Said { stdout, mut stderr, exit } = said?;
    let code = match exit.ending {
        Ending::Timeout => {
            stderr = timed_out(&stderr, ask.timeout);
            -1
        }
        _ => exit.status(),
    };
    Ok(answers::ran(&desk.called(child), (&stdout, &stderr), code, begun.elapsed()))
}

fn timed_out(said: &str, after: Span) -> String {
    let words = format!("Timed out after {}s", after.0.as_secs_f64());
    match said.is_empty() {
        true => words,
        false => format!("{said}\n{words}"),
    }
}

/// What a command has said, and how it ended.
struct Said {
    stdout: String,
    stderr: String,
    exit: msb_spec::Exit,
}

fn gather(exec: &mut dyn Exec) -> Result<Said> {
    let captured = msb_api::capture(exec, MOST_BYTES)?;
    Ok(Said {
        stdout: answers::text(&captured.stdout, captured.stdout_bytes),
        stderr: answers::text(&captured.stderr, captured.stderr_bytes),
        exit: captured.exit,
    })
}

/// Tells what it says as it comes; whoever does not read it any more ends it.
fn follow(
    exec: &mut dyn Exec,
    id: &Value,
    stream: &mut UnixStream,
    input: &Arc<dyn ExecInput>,
) -> Result<Said> {
    while let Some(event) = exec.next()? {
        if let ExecEvent::Exited(exit) = event {
            return Ok(Said { stdout: String::new(), stderr: String::new(), exit });
        }
        if let Some(piece) = answers::piece(id, &event)
            && tell(stream, &piece).is_err()
        {
            let _ = input.signal(SIGKILL);
        }
    }
    Err(Error::new(Kind::Protocol, "the end of the command was not told"))
}

/// Ends a command when its client hangs up. One that only says no more goes on listening.
/// Nobody looks any more once the pipe is closed.
fn end_with(client: &UnixStream, over: &PipeReader, input: &Arc<dyn ExecInput>) {
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
