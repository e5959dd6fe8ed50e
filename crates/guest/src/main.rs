//! PID 1 inside a sandbox.
//!
//! Starts what the worker asks for, reaps what dies, serves files, and ends with its worker. It
//! trusts nothing in here but its own memory: /etc/passwd is an image's, and so is every file.

mod commands;
mod files;
mod link;
mod tree;
mod users;

use commands::Commands;
use link::Link;
use msb_sys::signal::{SIGCHLD, Signals};
use msb_wire::ToGuest;
use rustix::event::{PollFd, PollFlags, poll};

/// Reads as the boot script that it is.
fn main() {
    // Nobody else in here may read our memory or descriptors through /proc.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    // The worker's death closes the link, which ends us; this is for the moments before we look.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let Ok(signals) = Signals::collect(&[SIGCHLD]) else {
        return;
    };
    let mut link = Link::to_worker();
    let restricted = std::env::args_os().nth(1).is_some_and(|word| word == "restricted");
    let mut commands = Commands::new(restricted);
    loop {
        let mut waits =
            [PollFd::new(link.socket(), PollFlags::IN), PollFd::new(signals.fd(), PollFlags::IN)];
        match poll(&mut waits, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        let [asked, died] = waits.map(|wait| !wait.revents().is_empty());
        if died {
            while signals.take().is_some() {}
            for exited in commands.reap() {
                link.tell(&exited, &[]);
            }
            if commands.are_over() {
                return;
            }
        }
        if asked {
            // The worker is gone: so are we, and with PID 1 the kernel ends everything in here.
            let Some((request, fds)) = link.next() else {
                return;
            };
            serve(&mut link, &mut commands, request, fds);
        }
    }
}

fn serve(
    link: &mut Link,
    commands: &mut Commands,
    request: ToGuest,
    fds: Vec<std::os::fd::OwnedFd>,
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
    }
}
