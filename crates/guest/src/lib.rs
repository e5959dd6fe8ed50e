//! PID 1 inside a sandbox.
//!
//! Starts what the worker asks for, reaps what dies, serves files, and ends with its worker. It
//! trusts nothing in here but its own memory: /etc/passwd is an image's, and so is every file.
//!
//! A library, because on the `process` tier the worker's child becomes the guest without executing
//! anything: starting a program costs more than all of the jail's mounts.

mod commands;
mod files;
mod init;
mod link;
mod links;
pub mod machine;
mod mirror;
mod oom;
mod pause;
mod session;
mod sftp;
mod tree;
mod users;
mod volume;

use commands::Commands;
use init::Init;
use link::Link;
use links::{Listeners, Wanted, Who};
use msb_spec::UserRef;
use msb_sys::signal::{SIGCHLD, Signals};
use msb_wire::{FromGuest, InitFailure, LinkFailure, ToGuest};
use oom::OomScore;
use pause::Paused;
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, OwnedFd};

pub use init::{Beside, become_init};
pub use volume::serve_volume;

/// Is PID 1 until the worker has gone or the last command has ended. Returns its exit code.
///
/// `restricted` commands get no capabilities. Whoever waits `beside` us becomes PID 1 of what is
/// inside, one pid namespace below. The process has one thread, descriptors 0 to 2 lead nowhere,
/// and all others but these are closed.
pub fn run(link: OwnedFd, restricted: bool, beside: Option<Beside>) -> i32 {
    msb_sys::process::set_name(c"msb-guest");
    let oom = OomScore::take(beside.as_ref().map(|beside| beside.proc.as_fd()));
    // Nobody else in here may read our memory or descriptors through /proc.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    // The worker's death closes the link, which ends us; this is for the moments before we look.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let Ok(signals) = Signals::collect(&[SIGCHLD]) else { return 125 };
    let mut link = Link::new(link);
    let mut commands = Commands::new(restricted, oom);
    let mut init = beside.map(Init::new);
    commands.watch(init.as_ref().map(|init| init.pid));
    // Who has died before we could hear of it.
    for exited in commands.reap(init.as_ref().map(|init| init.proc().as_fd())) {
        link.tell(&exited, &[]);
    }
    let mut paused = None;
    let mut listeners = Listeners::default();
    loop {
        let mut waits =
            [PollFd::new(link.socket(), PollFlags::IN), PollFd::new(signals.fd(), PollFlags::IN)];
        match poll(&mut waits, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return 125,
        }
        let [asked, died] = waits.map(|wait| !wait.revents().is_empty());
        if died {
            while signals.take().is_some() {}
            let exited = commands.reap(init.as_ref().map(|init| init.proc().as_fd()));
            exited.iter().for_each(|one| link.tell(one, &[]));
            // A pause stops them as well, and lets them go on.
            if paused.is_none() {
                commands.end_stopped_servers();
            }
            // Whoever is left may have something to say; then the worker ends us.
            let alone = matches!(exited.last(), Some(FromGuest::Exited { alone: true, .. }));
            if alone && commands.are_over() {
                return 0;
            }
        }
        if asked {
            // The worker is gone: so are we, and with PID 1 the kernel ends everything in here.
            let Some((request, fds)) = link.next() else {
                return 0;
            };
            let inside = Inside { commands: &mut commands, init: init.as_mut() };
            serve(&mut link, inside, &mut paused, &mut listeners, request, fds);
        }
    }
}

/// Who is inside.
struct Inside<'a> {
    commands: &'a mut Commands,
    init: Option<&'a mut Init>,
}

fn serve(
    link: &mut Link,
    Inside { commands, init }: Inside<'_>,
    paused: &mut Option<Paused>,
    listeners: &mut Listeners,
    request: ToGuest,
    fds: Vec<OwnedFd>,
) {
    let powerless = commands.are_powerless();
    let lead = |user: Option<UserRef>, wanted: &Wanted, fds| {
        links::serve_apart(Who { user: user.as_ref(), powerless }, wanted, fds)
    };
    match request {
        ToGuest::Exec { id, argv, env, workdir, user, tty, rlimits, last, sweep } => {
            if last {
                commands.end_with(id);
            }
            if sweep {
                commands.sweep_after(id);
            }
            let command = commands::Asked { argv, env, workdir, user, tty, rlimits };
            let (answer, terminal) = commands.start(id, &command, &fds);
            link.tell(&answer, terminal.as_slice());
        }
        ToGuest::Signal { id, signal } => commands.signal(id, signal),
        ToGuest::SignalAll { signal } => match init.filter(|init| init.is_up()) {
            // What it started ends when it wants.
            Some(init) => {
                init.ask_to_end();
                commands.signal_each(signal);
            }
            None => drop(msb_sys::signal::send(-1, signal)),
        },
        ToGuest::Init(handover) => {
            let failure = match init {
                Some(init) => init.hand_over(handover),
                None => Some(InitFailure::Process { errno: libc::ESRCH }),
            };
            link.tell(&FromGuest::Init { failure }, &[]);
        }
        ToGuest::Files { user } => {
            commands.add_server(files::serve_apart(user.as_ref(), fds));
        }
        ToGuest::Sftp { user } => commands.add_server(lead(user, &Wanted::Sftp, fds)),
        ToGuest::Dial { user, to } => {
            commands.add_server(lead(user, &Wanted::Dial(to), fds));
        }
        ToGuest::Listen { user, at, id } => {
            let wanted = match listeners.add(id) {
                Ok(orders) => Wanted::Listen(at, orders),
                Err(failure) => Wanted::Refused(failure),
            };
            commands.add_server(lead(user, &wanted, fds));
        }
        ToGuest::Accept { listener, number } => {
            if !fds.first().is_some_and(|socket| listeners.pass(listener, number, socket)) {
                commands.add_server(lead(None, &Wanted::Refused(LinkFailure::Gone), fds));
            }
        }
        // For machines only; the worker asks nobody else.
        ToGuest::Layer => drop(fds),
        ToGuest::Pause => {
            let proc = init.map(|init| init.proc().as_fd());
            *paused = paused.take().or_else(|| Paused::begin(proc));
            link.tell(&FromGuest::Paused { paused: paused.is_some() }, &[]);
        }
        ToGuest::Resume => {
            if let Some(paused) = paused.take() {
                paused.end(init.map(|init| init.proc().as_fd()));
            }
            link.tell(&FromGuest::Paused { paused: false }, &[]);
        }
    }
}
