//! A terminal for a test to sit at: what a person types and sees, and how large their window is.

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::{CmdOutput, HANG, ends, eventually, signal_pid};

/// A program at a terminal of its own, and everything that it has shown there.
pub struct Terminal {
    keyboard: File,
    child: Child,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Starts a program at a terminal of this size.
    pub fn start(command: &Command, rows: u16, cols: u16) -> Self {
        // No program of another test may inherit it: a terminal hangs up with its last descriptor.
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).expect("a new terminal");
        grantpt(&ours).and_then(|()| unlockpt(&ours)).expect("it is ours");
        let theirs = ioctl_tiocgptpeer(&ours, flags).expect("its other side");
        let keyboard = File::from(ours);
        set_size(&keyboard, rows, cols);

        // `setsid --ctty` makes it the session's terminal, so that a resize is signalled.
        let mut session = Command::new("setsid");
        session.args(["--ctty", "--wait"]).arg(command.get_program()).args(command.get_args());
        session.env_clear().env("TERM", "xterm");
        session.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        session.current_dir(command.get_current_dir().expect("a test has one"));
        let again = || theirs.try_clone().expect("a descriptor more");
        session.stdin(again()).stdout(again()).stderr(Stdio::from(again()));
        let child = session.spawn().expect("setsid of util-linux");

        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut screen, seen) = (keyboard.try_clone().expect("a descriptor"), shown.clone());
        std::thread::spawn(move || {
            let mut buffer = [0u8; 4096];
            // Reading fails when the last program has left the terminal.
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                seen.lock().expect("no reader panics").extend_from_slice(&buffer[..count]);
            }
        });
        Self { keyboard, child, shown }
    }

    /// Types.
    pub fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("a terminal takes what is typed");
    }

    /// All that was shown, without carriage returns.
    pub fn shown(&self) -> String {
        let shown = self.shown.lock().expect("no reader panics");
        String::from_utf8_lossy(&shown).replace('\r', "")
    }

    /// Waits until some text is shown.
    #[track_caller]
    pub fn shows(&self, text: &str) {
        let begun = std::time::Instant::now();
        while !self.shown().contains(text) {
            assert!(begun.elapsed() < HANG, "`{text}` is not shown: {:?}", self.shown());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Changes the size of the window.
    pub fn resize(&self, rows: u16, cols: u16) {
        set_size(&self.keyboard, rows, cols);
    }

    /// Whether the program still runs.
    pub fn is_open(&mut self) -> bool {
        self.child.try_wait().expect("our own child").is_none()
    }

    /// Waits for the end of the program: its exit code, and all that was shown.
    #[track_caller]
    pub fn ends(mut self) -> (i32, String) {
        eventually("the program at the terminal ends", || !self.is_open());
        let CmdOutput { code, .. } = ends(self.child);
        // What was shown last may still be on its way.
        std::thread::sleep(std::time::Duration::from_millis(100));
        let shown = self.shown.lock().expect("no reader panics");
        (code, String::from_utf8_lossy(&shown).replace('\r', ""))
    }

    /// What a terminal does to its programs when its window is closed.
    pub fn hang_up(self) {
        signal_pid(self.child.id(), "HUP");
        self.ends();
    }
}

fn set_size(terminal: &File, rows: u16, cols: u16) {
    let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("it has a size");
}
