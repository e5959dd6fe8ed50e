//! Programs that attack: C that needs nothing but the kernel, and shell scripts.

use crate::{CmdOutput, Msb, ids_of, own_uid, shared};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

impl Msb {
    /// Runs a shell script in a new sandbox of [`Msb::rootfs`].
    #[track_caller]
    pub fn shell(&self, script: &str) -> CmdOutput {
        self.shell_with::<&str>([], script)
    }

    /// Runs a shell script in a new sandbox of [`Msb::rootfs`] made with these flags.
    #[track_caller]
    pub fn shell_with<S: AsRef<OsStr>>(
        &self,
        flags: impl IntoIterator<Item = S>,
        script: &str,
    ) -> CmdOutput {
        let mut args: Vec<OsString> = vec!["run".into()];
        args.extend(flags.into_iter().map(|flag| flag.as_ref().to_owned()));
        args.push(self.rootfs().into());
        args.extend(["--", "sh", "-c", script].map(OsString::from));
        self.run(args)
    }

    /// Makes a sandbox of [`Msb::rootfs`] that goes on until the test is over.
    #[track_caller]
    pub fn lasting<S: AsRef<OsStr>>(&self, name: &str, flags: impl IntoIterator<Item = S>) {
        let mut args: Vec<OsString> = ["create", "-q", "-n", name].map(OsString::from).to_vec();
        args.extend(flags.into_iter().map(|flag| flag.as_ref().to_owned()));
        args.push(self.rootfs().into());
        self.run(args).ok();
    }

    /// Runs a shell script in a sandbox that runs.
    #[track_caller]
    pub fn shell_in(&self, name: &str, script: &str) -> CmdOutput {
        self.run(["exec", name, "--", "sh", "-c", script])
    }

    /// Compiles a C program that needs nothing but the kernel, and puts it into
    /// [`Msb::rootfs`] as `/bin/NAME`.
    pub fn program(&self, name: &str, source: &str) {
        let target = self.rootfs().join("bin").join(name);
        fs::copy(compiled(name, source), &target).expect("a program");
        self.chown(&target);
    }

    /// The real binary.
    pub fn binary(&self) -> PathBuf {
        shared().join("msb")
    }

    /// The host's id of the user that it runs as.
    pub fn uid(&self) -> u32 {
        self.user.as_ref().map_or_else(own_uid, |user| ids_of(user).0)
    }
}

/// A program as a user that owns no files; `None` where the tests are not root.
pub fn as_unprivileged_user(program: impl AsRef<OsStr>) -> Option<Command> {
    if own_uid() != 0 {
        return None;
    }
    let mut command = Command::new("setpriv");
    // setpriv keeps its capabilities until the next program; `env` is that one.
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", "env"]).arg(program);
    command.env_clear().env("PATH", "/usr/bin:/bin").current_dir("/").stdin(Stdio::null());
    Some(command)
}

/// A static executable for the host, made from C once for each name.
pub fn compiled(name: &str, source: &str) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let program = shared().join(format!("program-{name}"));
    if !program.exists() {
        let text = shared().join(format!("program-{name}.c"));
        fs::write(&text, source).expect("a file");
        let status = Command::new("gcc")
            .args(["-static", "-O1", "-Wall", "-Wno-unused-result", "-o"])
            .args([&program, &text])
            .status()
            .expect("gcc is installed");
        assert!(status.success(), "gcc cannot compile {name}");
    }
    program
}
