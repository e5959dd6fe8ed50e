//! Root filesystems with an init of their own: s6 as Debian has it, busybox's.

use crate::Msb;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is taken of the packages `s6` and `execline`.
const S6: [&str; 7] = [
    "/usr/bin/s6-svscan",
    "/usr/bin/s6-supervise",
    "/usr/bin/s6-svc",
    "/usr/bin/s6-svstat",
    "/usr/bin/s6-svscanctl",
    "/usr/lib/execline/bin/execlineb",
    "/usr/lib/execline/bin/foreground",
];

#[cfg(target_arch = "x86_64")]
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
#[cfg(target_arch = "aarch64")]
const LOADER: &str = "/lib/ld-linux-aarch64.so.1";

/// As images of s6-overlay are: `/init` is a script that becomes s6-svscan.
const S6_INIT: &str = "#!/usr/lib/execline/bin/execlineb -P\n\
                       /usr/lib/execline/bin/foreground { /bin/echo init begins }\n\
                       /usr/bin/s6-svscan /etc/services\n";

/// Says that it runs, and when it is told to end that it does.
const POLITE: &str = "#!/bin/sh\necho polite runs\ntrap 'echo polite >> /ended; exit 0' TERM\n\
                      while :; do sleep 1 & wait $!; done\n";

/// Counts how often it began.
const COUNTED: &str = "#!/bin/sh\necho begun >> /begun\nexec sleep 1000\n";

/// What busybox's init does.
const INITTAB: &str = "::sysinit:/bin/echo inittab read\n::respawn:/etc/services/polite/run\n\
                       ::shutdown:/bin/touch /shut\n";

impl Msb {
    /// [`Msb::rootfs`] with two services, and s6 as `/init`.
    pub fn s6_rootfs(&self) -> PathBuf {
        let root = self.services_rootfs("s6");
        for name in S6 {
            copy_program(&root, Path::new(name));
        }
        program(&root.join("init"), S6_INIT);
        self.chown_tree(&root);
        root
    }

    /// [`Msb::rootfs`] with a service, and busybox as `/sbin/init`.
    pub fn busybox_init_rootfs(&self) -> PathBuf {
        let root = self.services_rootfs("busybox");
        fs::create_dir_all(root.join("sbin")).expect("a directory");
        symlink("../bin/busybox", root.join("sbin/init")).expect("a link");
        symlink("busybox", root.join("bin/poweroff")).expect("a link");
        fs::write(root.join("etc/inittab"), INITTAB).expect("a file");
        self.chown_tree(&root);
        root
    }

    /// A private copy of [`Msb::rootfs`].
    pub fn services_rootfs(&self, name: &str) -> PathBuf {
        let root = self.scratch().join(name);
        let copied = Command::new("cp").arg("-a").arg(self.rootfs()).arg(&root).status();
        assert!(copied.is_ok_and(|status| status.success()), "a copy of the root filesystem");
        for (service, script) in [("polite", POLITE), ("counted", COUNTED)] {
            let directory = root.join("etc/services").join(service);
            fs::create_dir_all(&directory).expect("a directory");
            program(&directory.join("run"), script);
        }
        root
    }

    /// Gives a tree to the user.
    pub fn chown_tree(&self, root: &Path) {
        let list = Command::new("find").arg(root).output().expect("find");
        for path in String::from_utf8_lossy(&list.stdout).lines().map(Path::new) {
            if !path.is_symlink() {
                self.chown(path);
            }
        }
    }
}

fn program(path: &Path, text: &str) {
    fs::write(path, text).expect("a file");
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("its mode");
}

/// Copies a program of this machine, with the libraries that it needs, to the same places.
pub fn copy_program(root: &Path, path: &Path) {
    // As ldd does, which wants a shell that the lab does not have.
    let needs = Command::new(LOADER).arg("--list").arg(path).output().expect("the loader");
    let needs = String::from_utf8_lossy(&needs.stdout).into_owned();
    let libraries = needs.split_whitespace().filter(|word| word.starts_with('/')).map(Path::new);
    for file in libraries.chain([path]) {
        let place = root.join(file.strip_prefix("/").expect("an absolute path"));
        fs::create_dir_all(place.parent().expect("a directory")).expect("a directory");
        fs::copy(file, &place)
            .unwrap_or_else(|error| panic!("s6 and execline are installed: {file:?}: {error}"));
    }
}
