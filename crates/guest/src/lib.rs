//! The guest: PID 1 inside a sandbox.
//!
//! It starts commands for the worker, reaps processes, serves files, and exits with its worker. It
//! trusts nothing inside but its own memory: every file, such as /etc/passwd, is the image's.
//!
//! It is a library, because on the `process` tier a fork of the worker becomes the guest without
//! execve, which would cost more than all mounts of the jail.

mod commands;
mod files;
mod init;
mod links;
mod mirror_dir;
mod oom;
mod pause;
mod session;
mod sftp;
mod tree;
mod users;
pub mod vm;
mod volume;
mod worker_link;

use commands::Commands;
use init::InitProcess;
use links::{Listeners, StreamKind, StreamUser};
use msb_spec::UserRef;
use msb_sys::signal::{SIGCHLD, Signals};
use msb_wire::{FromGuest, InitFailure, LinkFailure, ToGuest};
use oom::OomScore;
use pause::ProcessPause;
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, OwnedFd};
use worker_link::WorkerLink;

pub use init::{PendingInit, become_init};
pub use volume::serve_volume;

/// Runs as PID 1 until the worker has exited or the main command has. Returns the exit code.
///
/// `restricted` commands get no capabilities. `pending_init` becomes PID 1 of a nested pid
/// namespace. The process must have one thread; descriptors 0 to 2 are /dev/null, and all others
/// but the given ones are closed.
pub fn run(worker_link: OwnedFd, restricted: bool, pending_init: Option<PendingInit>) -> i32 {
    msb_sys::process::set_name(c"msb-guest");
    let oom = OomScore::open(pending_init.as_ref().map(|pending_init| pending_init.proc.as_fd()));
    // Other processes inside must not read our memory or descriptors through /proc.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    // The worker's exit closes the link, which ends us; this covers the time before the loop.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let Ok(signals) = Signals::collect(&[SIGCHLD]) else { return 125 };
    let mut worker_link = WorkerLink::new(worker_link);
    let mut commands = Commands::new(restricted, oom);
    let mut init = pending_init.map(InitProcess::new);
    commands.set_init(init.as_ref().map(|init| init.pid));
    // Children that exited before signals were collected.
    for exited in commands.reap(init.as_ref().map(|init| init.proc().as_fd())) {
        worker_link.send(&exited, &[]);
    }
    let mut paused = None;
    let mut listeners = Listeners::default();
    loop {
        let mut waits = [
            PollFd::from_borrowed_fd(worker_link.socket(), PollFlags::IN),
            PollFd::new(signals.fd(), PollFlags::IN),
        ];
        match poll(&mut waits, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return 125,
        }
        let [requested, died] = waits.map(|wait| !wait.revents().is_empty());
        if died {
            while signals.take().is_some() {}
            let exited = commands.reap(init.as_ref().map(|init| init.proc().as_fd()));
            exited.iter().for_each(|one| worker_link.send(one, &[]));
            // A pause stops them as well, and resumes them later.
            if paused.is_none() {
                commands.kill_stopped_servers();
            }
            // If other processes are left, they may still write output; then the worker kills us.
            let alone = matches!(exited.last(), Some(FromGuest::Exited { alone: true, .. }));
            if alone && commands.is_main_done() {
                return 0;
            }
        }
        if requested {
            // The worker is gone. When PID 1 exits, the kernel kills everything inside.
            let Some((request, fds)) = worker_link.next() else {
                return 0;
            };
            let inside = InsideProcesses { commands: &mut commands, init: init.as_mut() };
            serve(&mut worker_link, inside, &mut paused, &mut listeners, request, fds);
        }
    }
}

/// Processes that the guest manages.
struct InsideProcesses<'a> {
    commands: &'a mut Commands,
    init: Option<&'a mut InitProcess>,
}

fn serve(
    worker_link: &mut WorkerLink,
    InsideProcesses { commands, init }: InsideProcesses<'_>,
    paused: &mut Option<ProcessPause>,
    listeners: &mut Listeners,
    request: ToGuest,
    fds: Vec<OwnedFd>,
) {
    let drop_caps = commands.drops_caps();
    let fork_stream = |user: Option<UserRef>, kind: &StreamKind, fds| {
        links::fork_server(StreamUser { name: user.as_ref(), drop_caps }, kind, fds)
    };
    match request {
        ToGuest::Exec { id, argv, env, workdir, user, tty, rlimits, last, sweep } => {
            if last {
                commands.set_main(id);
            }
            if sweep {
                commands.kill_session_after(id);
            }
            let command = commands::SpawnRequest { argv, env, workdir, user, tty, rlimits };
            let (answer, terminal) = commands.start(id, &command, &fds);
            worker_link.send(&answer, terminal.as_slice());
        }
        ToGuest::Signal { id, signal } => commands.signal(id, signal),
        ToGuest::SignalAll { signal } => match init.filter(|init| init.is_running()) {
            // The init stops what it has started.
            Some(init) => {
                init.stop();
                commands.signal_each(signal);
            }
            None => drop(msb_sys::signal::send(-1, signal)),
        },
        ToGuest::Init(handover) => {
            let failure = match init {
                Some(init) => init.start(handover),
                None => Some(InitFailure::Process { errno: libc::ESRCH }),
            };
            worker_link.send(&FromGuest::Init { failure }, &[]);
        }
        ToGuest::Files { user } => {
            commands.add_server(files::fork_server(user.as_ref(), fds));
        }
        ToGuest::Sftp { user } => commands.add_server(fork_stream(user, &StreamKind::Sftp, fds)),
        ToGuest::Dial { user, to } => {
            commands.add_server(fork_stream(user, &StreamKind::Dial(to), fds));
        }
        ToGuest::Listen { user, at, id } => {
            let kind = match listeners.add(id) {
                Ok(accepts) => StreamKind::Listen(at, accepts),
                Err(failure) => StreamKind::Refused(failure),
            };
            commands.add_server(fork_stream(user, &kind, fds));
        }
        ToGuest::Accept { listener, number } => {
            if !fds.first().is_some_and(|socket| listeners.pass(listener, number, socket)) {
                commands.add_server(fork_stream(
                    None,
                    &StreamKind::Refused(LinkFailure::Gone),
                    fds,
                ));
            }
        }
        // For microVMs only; the worker does not send this to a jail.
        ToGuest::Layer => drop(fds),
        ToGuest::Pause => {
            let proc = init.map(|init| init.proc().as_fd());
            *paused = paused.take().or_else(|| ProcessPause::stop_all(proc));
            worker_link.send(&FromGuest::Paused { paused: paused.is_some() }, &[]);
        }
        ToGuest::Resume => {
            if let Some(paused) = paused.take() {
                paused.resume(init.map(|init| init.proc().as_fd()));
            }
            worker_link.send(&FromGuest::Paused { paused: false }, &[]);
        }
    }
}
