//! PID 1 inside a sandbox.
//!
//! Starts what the worker asks for, reaps what dies, serves files, and ends with its worker. It
//! trusts nothing in here but its own memory: /etc/passwd is an image's, and so is every file.
//!
//! A library, because on the `process` tier the worker's child becomes the guest without executing
//! anything: starting a program costs more than all of the jail's mounts.

mod commands;
mod files;
mod link;
pub mod machine;
mod mirror;
mod pause;
mod tree;
mod users;
mod volume;

use commands::Commands;
use link::Link;
use msb_sys::signal::{SIGCHLD, Signals};
use msb_wire::{FromGuest, ToGuest};
use pause::Paused;
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::OwnedFd;

pub use volume::serve_volume;

/// Is PID 1 until the worker has gone or the last command has ended. Returns its exit code.
///
/// `restricted` commands get no capabilities. The process has one thread, descriptors 0 to 2 lead
/// nowhere, and all others but the link are closed.
pub fn run(link: OwnedFd, restricted: bool) -> i32 {
    msb_sys::process::set_name(c"msb-guest");
    // Nobody else in here may read our memory or descriptors through /proc.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    // The worker's death closes the link, which ends us; this is for the moments before we look.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let Ok(signals) = Signals::collect(&[SIGCHLD]) else { return 125 };
    let mut link = Link::new(link);
    let mut commands = Commands::new(restricted);
    let mut paused = None;
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
            for exited in commands.reap() {
                link.tell(&exited, &[]);
            }
            if commands.are_over() {
                return 0;
            }
        }
        if asked {
            // The worker is gone: so are we, and with PID 1 the kernel ends everything in here.
            let Some((request, fds)) = link.next() else {
                return 0;
            };
            serve(&mut link, &mut commands, &mut paused, request, fds);
        }
    }
}

fn serve(
    link: &mut Link,
    commands: &mut Commands,
    paused: &mut Option<Paused>,
    request: ToGuest,
    fds: Vec<OwnedFd>,
) {
    match request {
        ToGuest::Exec { id, argv, env, workdir, user, tty, rlimits, last } => {
            if last {
                commands.end_with(id);
            }
            let command = commands::Asked { argv, env, workdir, user, tty, rlimits };
            let (answer, terminal) = commands.start(id, &command, &fds);
            link.tell(&answer, terminal.as_slice());
        }
        ToGuest::Signal { id, signal } => commands.signal(id, signal),
        ToGuest::SignalAll { signal } => {
            let _ = msb_sys::signal::send(-1, signal);
        }
        ToGuest::Files { user } => files::serve_apart(user.as_ref(), fds),
        // For machines only; the worker asks nobody else.
        ToGuest::Layer => drop(fds),
        ToGuest::Pause => {
            *paused = paused.take().or_else(Paused::begin);
            link.tell(&FromGuest::Paused { paused: paused.is_some() }, &[]);
        }
        ToGuest::Resume => {
            if let Some(paused) = paused.take() {
                paused.end();
            }
            link.tell(&FromGuest::Paused { paused: false }, &[]);
        }
    }
}
