//! Attacks on the mount table and on the root directory.

use msb_e2e::{Msb, ends, eventually, skip};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

/// Attacks 15 and 16.
#[test]
fn there_is_no_way_to_a_namespace_or_a_mount() {
    for msb in Msb::each() {
        msb.program("namespaces", include_str!("../programs/namespaces.c"));
        for flags in [&[][..], &["--security", "restricted"]] {
            let gave = msb.shell_with(flags, "namespaces").ok();
            let worked: Vec<&str> =
                gave.stdout.lines().filter(|line| line.ends_with(" done")).collect();
            assert_eq!(worked, [""; 0], "{flags:?}");
            assert!(gave.stdout.lines().count() > 40, "{gave:#?}");
        }
        assert_ne!(msb.shell("unshare -Ur true").code, 0);
        assert_ne!(msb.run(["run", "host", "--", "unshare", "-Ur", "true"]).code, 0);
        assert_ne!(msb.shell("echo 100 > /proc/sys/user/max_user_namespaces").code, 0);
    }
}

/// Attack 15.
#[test]
fn mounts_made_inside_are_not_seen_outside() {
    for msb in Msb::each() {
        let name = format!("msb-canary-{}-{}", std::process::id(), msb.uid());
        msb.program("mounting", include_str!("../programs/mounting.c"));
        msb.lasting("web", ["--allow-userns", "--tmpfs", "/cache"]);
        let id = msb.run(["exec", "-d", "web", "--", "mounting", &name, "/tmp", "/root"]).line();
        eventually("the mounts are made", || {
            msb.run(["logs", "web", "--exec", &id]).stdout == "mounted 2\n"
        });
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!table.contains(&name), "{table}");
        assert!(!table.contains("/cache"), "{table}");
    }
}

/// Attack 15: even where all mounts of the host have shared propagation.
#[test]
fn mounts_do_not_propagate_through_a_shared_directory() {
    for msb in Msb::each().into_iter().filter(|_| Msb::new().is_root()) {
        let shared = SharedMount::tmpfs(&msb, "shared");
        fs::create_dir(shared.0.join("below")).unwrap();
        msb.chown(&shared.0.join("below"));
        let name = format!("msb-canary-shared-{}-{}", std::process::id(), msb.uid());
        msb.program("mounting", include_str!("../programs/mounting.c"));
        let volume = format!("{}:/shared", shared.0.display());
        msb.lasting("web", ["--allow-userns", "-v", &volume]);
        let attack = ["mounting", &name, "/shared/below", "/shared"];
        let id = msb.run([&["exec", "-d", "web", "--"], &attack[..]].concat()).line();
        eventually("the mounts are made", || {
            msb.run(["logs", "web", "--exec", &id]).stdout == "mounted 2\n"
        });
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!table.contains(&name), "{table}");
    }
}

/// Attack 15: what the host mounts later is not shown inside either.
#[test]
fn mounts_made_outside_later_do_not_appear_inside() {
    for msb in Msb::each().into_iter().filter(|_| Msb::new().is_root()) {
        let shared = SharedMount::tmpfs(&msb, "shared");
        fs::create_dir(shared.0.join("below")).unwrap();
        let volume = format!("{}:/shared", shared.0.display());
        msb.lasting("web", ["-v", &volume]);
        let later = SharedMount::tmpfs(&msb, "shared/below");
        fs::write(later.0.join("canary"), "later").unwrap();
        assert_eq!(msb.shell_in("web", "ls /shared/below").line(), "");
    }
}

/// Attack 16.
#[test]
fn changing_the_root_does_not_lead_out() {
    for msb in Msb::each() {
        let canary = msb.file("canary", "root-secret");
        msb.program("roots", include_str!("../programs/roots.c"));
        let shared = msb.file("volume/file", "");
        let volume = format!("{}:/volume", shared.parent().unwrap().display());
        let attack = format!("roots {}", canary.display());
        for flags in [&["-v", &volume][..], &["--allow-userns", "-v", &volume]] {
            let gave = msb.shell_with(flags, &attack).ok();
            assert_eq!(gave.stdout, "tried\n");
        }
        let up = "cd /volume; cd ..; cat ../canary canary; cat /volume/../canary; \
                  cat /volume/../../canary; true";
        assert_eq!(msb.shell_with(["-v", &volume], up).line(), "");
    }
}

/// Attack 16: a directory that leaves the mount while a command stands in it.
#[test]
fn a_directory_moved_out_of_a_mount_does_not_take_a_command_along() {
    for msb in Msb::each() {
        msb.file("secret/canary", "moved-secret");
        let standing = msb.file("volume/a/b/file", "");
        for level in standing.ancestors().skip(1).take(3) {
            msb.chown(level);
        }
        let volume = format!("{}:/volume", msb.scratch().join("volume").display());
        msb.lasting("web", ["-v", &volume]);
        let attack = "cd /volume/a/b && touch ready && sleep 1; cat ../canary ../../canary \
                      ../secret/canary ../../secret/canary ../../../secret/canary; ls ..; ls ../..; \
                      touch ../../intruder ../intruder; true";
        let child = msb.spawn(["exec", "web", "--", "sh", "-c", attack]);
        let place = msb.scratch().join("volume/a/b");
        eventually("a command stands in the directory", || place.join("ready").exists());
        fs::rename(&place, msb.scratch().join("secret/b")).unwrap();
        let gave = ends(child);
        assert!(!gave.stdout.contains("moved-secret"), "{gave:#?}");
        assert!(!msb.scratch().join("intruder").exists());
        assert!(!msb.scratch().join("secret/intruder").exists());
    }
}

/// A read-only mount stays so, whatever is remounted inside.
#[test]
fn a_read_only_volume_cannot_be_made_writable() {
    for msb in Msb::each() {
        let file = msb.file("volume/file", "unchanged");
        let volume = format!("{}:/volume:ro", file.parent().unwrap().display());
        let single = format!("{}:/single:ro", file.display());
        let attack = "mount -o remount,rw /volume; mount -o remount,rw,bind /volume; \
                      echo changed > /volume/file; echo changed > /single; touch /volume/new; \
                      rm -f /volume/file; mv /volume/file /volume/other; chmod 777 /volume/file; \
                      touch -d 2001-01-01 /volume/file; echo x > /proc/self/cwd/volume/file";
        let nested = format!(
            "{attack}; unshare -Urm sh -c '{attack}; mkdir /tmp/again; \
             mount --rbind /volume /tmp/again; mount -o remount,rw,bind /tmp/again; \
             echo changed > /tmp/again/file; umount /volume; umount -l /volume; {attack}'"
        );
        let flags = ["-v", &volume, "--mount-file", &single];
        msb.shell_with(flags, attack);
        msb.shell_with([&flags[..], &["--allow-userns"]].concat(), &nested);
        let before = fs::metadata(&file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "unchanged");
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
        assert!(before.modified().unwrap().elapsed().unwrap().as_secs() < 3600);
    }
}

/// Links in an image are followed below its own root, not below the host's.
#[test]
fn mount_points_that_are_links_stay_inside() {
    let links = ["/etc", "../../../../../../etc", "/proc/1/root/etc", "/proc/self/cwd/etc"];
    for msb in Msb::each() {
        let outside = msb.scratch().join("outside");
        fs::create_dir(&outside).unwrap();
        msb.chown(&outside);
        let rootfs = msb.rootfs();
        for (index, target) in links.iter().enumerate() {
            symlink(target, rootfs.join(format!("link{index}"))).unwrap();
        }
        symlink(&outside, rootfs.join("out")).unwrap();
        let source = msb.file("volume/file", "from-volume");
        let volume = source.parent().unwrap().display().to_string();
        let source = source.display().to_string();
        let listing = |path: &str| -> Vec<PathBuf> {
            let mut all: Vec<PathBuf> =
                fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
            all.sort();
            all
        };
        let before = listing("/etc");
        for link in (0..links.len()).map(|n| format!("/link{n}")).chain(["/out".to_owned()]) {
            let at = |name: &str| format!("{link}/msb-canary-{name}");
            let tries: [[&str; 2]; 10] = [
                ["-v", &format!("{volume}:{}", at("dir"))],
                ["-v", &format!("{volume}:{link}")],
                ["--mount-file", &format!("{source}:{}", at("file"))],
                ["--tmpfs", &at("tmpfs")],
                ["--tmpfs", &link],
                ["--text", &format!("{}=text", at("text"))],
                ["--copy", &format!("{source}:{}", at("copy"))],
                ["--mkdir", &at("mkdir")],
                ["--symlink", &format!("{}=/etc/passwd", at("symlink"))],
                ["-w", &at("workdir")],
            ];
            for flags in tries {
                msb.shell_with(flags, "sleep 0");
                let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
                assert!(!table.contains("msb-canary-dir"), "{flags:?}: {table}");
            }
            msb.shell_with(["--remove", &format!("{link}/hostname")], "true");
        }
        assert_eq!(listing("/etc"), before);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }
}

/// Attack 11, in what a caller says instead of an image: CVE-2024-21626.
#[test]
fn a_working_directory_named_by_a_descriptor_is_not_the_hosts() {
    for msb in Msb::each() {
        let canary = msb.file("canary", "workdir-secret");
        let look = format!(
            "cat canary ../canary ../../canary ../../../../../../../..{}; \
                            cat ../../../../../../../../etc/hostname; true",
            canary.display()
        );
        msb.lasting::<&str>("web", []);
        fs::write(msb.rootfs().join("etc/hostname"), "inside").unwrap();
        for fd in 0..12 {
            for process in ["self", "1", "thread-self"] {
                let workdir = format!("/proc/{process}/fd/{fd}");
                let ran = msb.run(["exec", "-w", &workdir, "web", "--", "sh", "-c", &look]);
                assert!(!ran.stdout.contains("workdir-secret"), "{workdir}: {ran:#?}");
            }
            let workdir = format!("/proc/self/fd/{fd}");
            let ran = msb.shell_with(["-w", &workdir], &look);
            assert!(!ran.stdout.contains("workdir-secret"), "{workdir}: {ran:#?}");
        }
    }
}

/// What a sandbox changes in its root is its own: the directory it started from stays as it was.
#[test]
fn the_image_directory_is_not_changed() {
    for msb in Msb::each() {
        let rootfs = msb.rootfs();
        let list = || {
            let find = Command::new("find")
                .arg(&rootfs)
                .args(["-printf", "%p %m %U %G %s %T@ %l\n"])
                .output()
                .unwrap();
            String::from_utf8_lossy(&find.stdout).into_owned()
        };
        let before = list();
        let attack = "rm -rf /etc/passwd /bin/ls; echo x >> /etc/group; chmod -R 777 /etc; \
                      chown -R 33:33 /root; mkdir /new; mv /tmp /tmp2; ln -sf x /bin/sh";
        msb.shell(attack);
        msb.lasting::<&str>("web", []);
        msb.shell_in("web", attack);
        assert_eq!(list(), before);
    }
}

/// A mount of the test's own, with shared propagation.
struct SharedMount(PathBuf);

impl SharedMount {
    fn tmpfs(msb: &Msb, name: &str) -> Self {
        let path = msb.scratch().join(name);
        fs::create_dir_all(&path).expect("a directory");
        let run = |args: &[&str]| {
            let status = Command::new("mount").args(args).arg(&path).status().expect("mount runs");
            assert!(status.success(), "mount {args:?}");
        };
        run(&["-t", "tmpfs", "msb-test"]);
        run(&["--make-shared"]);
        msb.chown(&path);
        Self(path)
    }
}

impl Drop for SharedMount {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            skip(&format!("{} could not be unmounted", self.0.display()));
        }
    }
}
