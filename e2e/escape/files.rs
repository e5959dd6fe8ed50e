//! Attacks on files and copies.

use crate::hostile_worker::{self, Kind};
use msb_e2e::{Msb, as_unprivileged_user, compiled, skip};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Attack 1.
#[test]
fn dot_dot_in_a_copy_out_does_not_reach_the_host() {
    for msb in Msb::each() {
        let canary = msb.file("canary", "copy-secret");
        msb.lasting::<&str>("web", []);
        let path = canary.display().to_string();
        let encoded = path.replace('/', "%2f");
        for from in [
            path.clone(),
            format!("/../../../../../../../..{path}"),
            format!("/tmp/../../..{path}"),
            format!("/proc/1/root/../..{path}"),
            format!("/proc/1/cwd/..{path}"),
            format!("/proc/self/cwd{path}"),
            format!("..{path}"),
            format!("/%2e%2e{encoded}"),
        ] {
            let out = msb.scratch().join("out");
            let gave = msb.run(["cp", &format!("web:{from}"), out.to_str().unwrap()]);
            assert_ne!(gave.code, 0, "{from}");
            assert!(fs::read_to_string(&out).is_err(), "{from} came out");
        }
    }
}

/// Attack 1.
#[test]
fn dot_dot_in_a_copy_in_does_not_reach_the_host() {
    for msb in Msb::each() {
        let canary = msb.file("canary", "untouched");
        let intruder = msb.file("intruder", "intruder");
        msb.lasting::<&str>("web", []);
        let path = canary.display().to_string();
        let target = format!("/var/tmp/msb-intruder-{}", msb.uid());
        for to in [
            path.clone(),
            format!("/../../../../../../..{path}"),
            format!("/tmp/../../..{path}"),
            format!("/proc/1/root/../../..{path}"),
            format!("/proc/1/cwd/../..{path}"),
            format!("/../../..{target}"),
            format!("/proc/self/root/..{target}"),
        ] {
            msb.run(["cp", intruder.to_str().unwrap(), &format!("web:{to}")]);
            let flag = format!("{}:{to}", intruder.display());
            msb.shell_with(["--copy", &flag], "true");
            msb.shell_with(["--text", &format!("{to}=intruder")], "true");
            msb.shell_with(["--append", &format!("{to}=intruder")], "true");
            msb.shell_with(["--remove", &to], "true");
            msb.shell_with(["--symlink", &format!("{to}=/etc/passwd")], "true");
            assert_eq!(fs::read_to_string(&canary).unwrap(), "untouched", "{to}");
            assert!(!Path::new(&target).exists(), "{to}");
        }
    }
}

/// Attacks 1, 2 and 5: a guest that was taken over sends a tree of its own making.
#[test]
fn a_hostile_tree_stays_below_where_it_was_asked_to() {
    for msb in Msb::each() {
        let outside = msb.scratch().join("outside");
        let canary = msb.file("outside/canary", "untouched");
        msb.lasting::<&str>("web", []);
        let link = Kind::Link(outside.as_os_str().as_bytes());
        let file = Kind::File(b"intruder");
        let long = [b"x/".repeat(2500), b"y".to_vec()].concat();
        let absolute = canary.as_os_str().as_bytes();
        let root: (&[u8], Kind<'_>) = (b"", Kind::Directory);
        let trees: Vec<Vec<(&[u8], Kind<'_>)>> = vec![
            vec![root, (b"../canary", file)],
            vec![root, (b"../outside/canary", file)],
            vec![root, (b"a/../../outside/canary", file)],
            vec![root, (absolute, file)],
            vec![root, (b"link", link), (b"link/canary", file)],
            vec![root, (b"link", link), (b"link", Kind::Directory), (b"link/canary", file)],
            vec![root, (b"link", link), (b"link/new", Kind::Directory)],
            vec![root, (b"link", link), (b"link/other", link)],
            vec![(b"", link), (b"canary", file)],
            vec![(b"", link), (b"", Kind::Directory), (b"canary", file)],
            vec![(b"", link), (b"", file)],
            vec![(b"canary", file)],
            vec![root, (b".", file)],
            vec![root, (b"..", file)],
            vec![root, (b"a//b", file)],
            vec![root, (b"a/", file)],
            vec![root, (b"zero\0byte", file)],
            vec![root, (&long, file)],
            vec![root, (b"file", file), (b"file/below", file)],
            vec![root, (b"set-id", file), (b"set-id-dir", Kind::Directory), (b"dev", Kind::Other)],
        ];
        for (index, tree) in trees.iter().enumerate() {
            let place = msb.scratch().join(format!("place{index}"));
            fs::create_dir(&place).unwrap();
            msb.chown(&place);
            hostile_worker::answer(&msb, &hostile_worker::tree(tree));
            msb.run(["cp", "web:/tree", place.join("out").to_str().unwrap()]);
            hostile_worker::answer(&msb, &hostile_worker::tree(tree));
            msb.run(["cp", "web:/tree", place.to_str().unwrap()]);
            let names = |path: &Path| -> Vec<String> {
                let mut names: Vec<String> = fs::read_dir(path)
                    .unwrap()
                    .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
                    .collect();
                names.sort();
                names
            };
            assert_eq!(fs::read_to_string(&canary).unwrap(), "untouched", "tree {index}");
            assert_eq!(names(&outside), ["canary"], "tree {index}");
            assert!(!msb.scratch().join("canary").exists(), "tree {index}");
            let strange: Vec<String> =
                names(&place).into_iter().filter(|name| name != "out" && name != "tree").collect();
            assert_eq!(strange, [""; 0], "tree {index}");
            assert_eq!(set_id_files(&place), [""; 0], "tree {index}");
        }
        hostile_worker::restore(&msb);
    }
}

/// Attacks 1 and 27: a tree that never ends as it said it would.
#[test]
fn a_copy_from_a_hostile_guest_ends() {
    for msb in Msb::each() {
        msb.lasting::<&str>("web", []);
        let root = hostile_worker::entry(b"", Kind::Directory, 0o755);
        let promised = [
            hostile_worker::text(b"file"),
            hostile_worker::number(0),
            hostile_worker::number(0o644),
            hostile_worker::number(u64::MAX),
            hostile_worker::number(0),
        ]
        .concat();
        let broken: Vec<Vec<u8>> = vec![
            Vec::new(),
            vec![0xff, 0xff, 0xff, 0xff, hostile_worker::ENTRY],
            vec![0xff, 0xff, 0xff, 0x7f, hostile_worker::BYTES, 1, 2, 3],
            vec![0, 0, 0, 0, 0],
            vec![4, 0, 0, 0, hostile_worker::ENTRY, 0xff, 0xff, 0xff, 0xff],
            [root.clone(), hostile_worker::frame(hostile_worker::ENTRY, &promised)].concat(),
            [
                root.clone(),
                hostile_worker::frame(hostile_worker::ENTRY, &promised),
                hostile_worker::frame(hostile_worker::BYTES, b""),
            ]
            .concat(),
            [root.clone(), hostile_worker::frame(hostile_worker::BYTES, b"unasked")].concat(),
            [root, hostile_worker::frame(hostile_worker::REPLY, &[9, 9, 9])].concat(),
            hostile_worker::frame(hostile_worker::ENTRY, &[0x80; 64]),
        ];
        for bytes in broken {
            let out = msb.scratch().join("out");
            let _ = fs::remove_dir_all(&out);
            hostile_worker::answer(&msb, &bytes);
            let gave = msb.run(["cp", "web:/tree", out.to_str().unwrap()]);
            assert_eq!(gave.code, 125, "{bytes:?}: {gave:#?}");
            assert!(gave.stderr.starts_with("error: "), "{bytes:?}: {gave:#?}");
            assert!(!gave.stderr.contains("panicked"), "{bytes:?}: {gave:#?}");
        }
        hostile_worker::restore(&msb);
    }
}

/// Attack 2.
#[test]
fn a_guests_link_never_brings_the_hosts_content_out() {
    for msb in Msb::each() {
        let canary = msb.file("host/canary", "link-secret");
        let directory = canary.parent().unwrap().display().to_string();
        msb.lasting::<&str>("web", []);
        msb.shell_in(
            "web",
            &format!(
                "mkdir /out && cd /out && ln -s {0}/canary file && ln -s {0} dir && \
                 ln -s /proc/1/root{0}/canary proc && ln -s ../../../../..{0}/canary dots",
                directory
            ),
        )
        .ok();
        let out = msb.scratch().join("out");
        msb.run(["cp", "web:/out", out.to_str().unwrap()]).ok();
        for name in ["file", "dir", "proc", "dots"] {
            let meta = fs::symlink_metadata(out.join(name)).unwrap();
            assert!(meta.is_symlink(), "{name} is {meta:?}");
        }
        for name in ["file", "dir", "proc", "dots"] {
            let single = msb.scratch().join(format!("single-{name}"));
            msb.run(["cp", &format!("web:/out/{name}"), single.to_str().unwrap()]);
            let copied = fs::symlink_metadata(&single);
            assert!(copied.is_err() || copied.unwrap().is_symlink(), "{name}");
        }
    }
}

/// Attack 2: the link that the first copy left is not a way for the second.
#[test]
fn a_second_copy_does_not_write_through_links_of_the_first() {
    for msb in Msb::each() {
        let canary = msb.file("host/canary", "untouched");
        let directory = canary.parent().unwrap().display().to_string();
        msb.lasting::<&str>("web", []);
        let first = format!(
            "mkdir /out && ln -s {directory} /out/dir && ln -s {directory}/canary /out/file"
        );
        msb.shell_in("web", &first).ok();
        let out = msb.scratch().join("out");
        msb.run(["cp", "web:/out/.", out.to_str().unwrap()]);
        msb.run(["cp", "web:/out", out.to_str().unwrap()]);
        let second = "rm /out/dir /out/file; mkdir /out/dir; \
                      echo intruder | tee /out/dir/canary /out/dir/new /out/file";
        msb.shell_in("web", second).ok();
        msb.run(["cp", "web:/out/.", out.to_str().unwrap()]);
        msb.run(["cp", "web:/out", out.to_str().unwrap()]);
        msb.run(["cp", "web:/out", msb.scratch().to_str().unwrap()]);
        assert_eq!(fs::read_to_string(&canary).unwrap(), "untouched");
        assert_eq!(fs::read_dir(canary.parent().unwrap()).unwrap().count(), 1);
    }
}

/// Attack 2, the other way: a link in the sandbox is followed there and not here.
#[test]
fn a_copy_in_through_a_guests_link_stays_inside() {
    for msb in Msb::each() {
        let canary = msb.file("host/canary", "untouched");
        let intruder = msb.file("intruder/canary", "intruder");
        let directory = canary.parent().unwrap().display().to_string();
        msb.lasting::<&str>("web", []);
        let links = format!(
            "ln -s {directory} /dir; ln -s {directory}/canary /file; \
                             ln -s /proc/1/root{directory} /proc-dir"
        );
        msb.shell_in("web", &links).ok();
        for to in ["/dir", "/dir/canary", "/file", "/proc-dir/canary", "/proc-dir"] {
            msb.run(["cp", intruder.to_str().unwrap(), &format!("web:{to}")]);
            msb.run(["cp", intruder.parent().unwrap().to_str().unwrap(), &format!("web:{to}")]);
        }
        assert_eq!(fs::read_to_string(&canary).unwrap(), "untouched");
        assert_eq!(fs::read_dir(canary.parent().unwrap()).unwrap().count(), 1);
    }
}

/// Attack 4.
#[test]
fn devices_pipes_and_sockets_are_left_out_of_a_copy_out() {
    for msb in Msb::each() {
        msb.program("special", include_str!("programs/special.c"));
        msb.lasting::<&str>("web", []);
        let make = "mkdir /out; special /out; echo content > /out/file; ln /out/file /out/hard";
        msb.shell_in("web", make).ok();
        let out = msb.scratch().join("out");
        msb.run(["cp", "web:/out", out.to_str().unwrap()]).ok();
        let mut names: Vec<_> =
            fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["file", "hard"]);
        for single in ["/out/fifo", "/out/socket", "/dev/zero", "/dev/tty", "/dev", "/proc/kmsg"] {
            let target = msb.scratch().join("single");
            let _ = fs::remove_dir_all(&target);
            msb.run(["cp", &format!("web:{single}"), target.to_str().unwrap()]);
            assert_eq!(special_files(msb.scratch()), [""; 0], "{single}");
        }
    }
}

/// Attack 4.
#[test]
fn a_copy_out_does_not_write_through_what_is_there() {
    for msb in Msb::each() {
        let canary = msb.file("host/canary", "untouched");
        let out = msb.scratch().join("out");
        fs::create_dir(&out).unwrap();
        fs::hard_link(&canary, out.join("hard")).unwrap();
        symlink(&canary, out.join("soft")).unwrap();
        symlink(canary.parent().unwrap(), out.join("dir")).unwrap();
        let pipe = Command::new("mkfifo").arg(out.join("pipe")).status().unwrap();
        assert!(pipe.success());
        msb.chown(&out);
        msb.chown(&out.join("pipe"));
        msb.lasting::<&str>("web", []);
        let make = "mkdir -p /out/dir; for name in hard soft pipe dir/canary dir/new; \
                    do echo intruder > /out/$name; done";
        msb.shell_in("web", make).ok();
        for name in ["hard", "soft", "pipe"] {
            let target = out.join(name);
            msb.run(["cp", &format!("web:/out/{name}"), target.to_str().unwrap()]);
        }
        msb.run(["cp", "web:/out", msb.scratch().to_str().unwrap()]);
        assert_eq!(fs::read_to_string(&canary).unwrap(), "untouched");
        assert_eq!(fs::read_dir(canary.parent().unwrap()).unwrap().count(), 1);
    }
}

/// Attack 4.
#[test]
fn devices_pipes_and_sockets_do_not_hold_up_a_copy_in() {
    for msb in Msb::each() {
        let canary = msb.file("canary", "link-secret");
        let tree = msb.file("tree/file", "content").parent().unwrap().to_owned();
        let special = compiled("special", include_str!("programs/special.c"));
        assert!(msb.user_command(special).arg(&tree).status().unwrap().success());
        let _listener = UnixListener::bind(tree.join("listening")).unwrap();
        symlink(&canary, tree.join("link")).unwrap();
        msb.lasting::<&str>("web", []);
        msb.run(["cp", tree.to_str().unwrap(), "web:/tree"]).ok();
        let look = "cd /tree && echo * && cat link; readlink link";
        let seen = msb.shell_in("web", look).line();
        assert_eq!(seen, format!("file link\n{}", canary.display()));
        let flag = format!("{}:/tree", tree.display());
        assert_eq!(msb.shell_with(["--copy", &flag], look).line(), seen);
        msb.run(["cp", tree.join("fifo").to_str().unwrap(), "web:/fifo"]);
    }
}

/// Attack 5.
#[test]
fn set_id_bits_do_not_come_out_of_a_copy() {
    for msb in Msb::each() {
        msb.program("setid", include_str!("programs/setid.c"));
        msb.lasting::<&str>("web", []);
        msb.shell_in("web", "mkdir /out; setid /out; chmod 6777 /out/chmod /out").ok();
        let out = msb.scratch().join("out");
        msb.run(["cp", "web:/out", out.to_str().unwrap()]).ok();
        assert!(fs::read_dir(&out).unwrap().count() > 5);
        assert_eq!(set_id_files(&out), [""; 0]);
        assert_eq!(special_files(&out), [""; 0]);
        assert_eq!(security_attributes(&out), "");
        // And not in, so that a host's set-id program is none inside.
        let program = msb.file("program", "");
        fs::set_permissions(&program, Permissions::from_mode(0o6755)).unwrap();
        msb.run(["cp", program.to_str().unwrap(), "web:/program"]).ok();
        assert_eq!(msb.shell_in("web", "stat -c %a /program").line(), "755");
    }
}

/// Attack 5.
#[test]
fn set_id_programs_cannot_be_made_in_a_writable_volume() {
    for msb in Msb::each() {
        msb.program("setid", include_str!("programs/setid.c"));
        let owners = if msb.is_root() { vec![0, 65534] } else { vec![msb.uid()] };
        for (index, owner) in owners.into_iter().enumerate() {
            let existing = msb.file(&format!("volume{index}/existing"), "original");
            let volume = existing.parent().unwrap();
            for path in [volume, &existing] {
                chown(path, Some(owner), Some(owner)).unwrap();
            }
            fs::set_permissions(volume, Permissions::from_mode(0o777)).unwrap();
            fs::set_permissions(&existing, Permissions::from_mode(0o6777)).unwrap();
            let flag = format!("{}:/volume", volume.display());
            msb.shell_with(["-v", &flag], "setid /volume").ok();
            check_volume(volume, owner);
            let name = format!("web{index}");
            msb.lasting(&name, ["-v", &flag]);
            msb.shell_in(&name, "rm -rf /volume/[a-df-z]*; setid /volume").ok();
            check_volume(volume, owner);
            msb.run(["exec", "-u", "33", &name, "--", "setid", "/volume"]).ok();
            check_volume(volume, owner);
        }
    }
}

/// Nothing in a directory that a sandbox has written gives an ordinary user anything.
#[track_caller]
fn check_volume(volume: &Path, owner: u32) {
    let existing = fs::metadata(volume.join("existing")).expect("it was there before");
    let was_written =
        fs::read(volume.join("existing")).expect("it was there before") != b"original";
    let others: Vec<String> =
        set_id_files(volume).into_iter().filter(|path| was_written || path != "existing").collect();
    assert_eq!(others, [""; 0], "owner {owner}, existing {:o}", existing.mode());
    assert_eq!(special_files(volume), [""; 0]);
    assert_eq!(security_attributes(volume), "");
    let entries =
        fs::read_dir(volume).expect("a directory").map(|entry| entry.expect("an entry").path());
    let programs: Vec<PathBuf> = entries.filter(|path| path.is_file()).collect();
    assert!(programs.len() > 4, "{programs:?}");
    for program in programs {
        if let Some(mut stranger) = as_unprivileged_user(&program) {
            let Ok(output) = stranger.output() else { continue };
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let own = "uid 65534 euid 65534 gid 65534 egid 65534\n";
            assert!(said.is_empty() || said == own, "{}: {said}", program.display());
        }
    }
}

/// Attack 5: root of a nested namespace is root of the volume's files, too.
#[test]
fn capabilities_cannot_be_left_in_a_volume_from_a_nested_namespace() {
    for msb in Msb::each() {
        msb.program("nested", include_str!("programs/nested.c"));
        let volume = msb.file("volume/file", "").parent().unwrap().to_owned();
        let flag = format!("{}:/volume", volume.display());
        msb.shell_with(["--allow-userns", "-v", &flag], "nested /volume").ok();
        assert!(volume.join("nested").exists());
        assert_eq!(security_attributes(&volume), "");
    }
}

/// Attack 5: set-id files in a sandbox's layer belong to no real user, and cannot be reached.
#[test]
fn set_id_programs_of_the_layer_are_worth_nothing_on_the_host() {
    for msb in Msb::each() {
        msb.program("setid", include_str!("programs/setid.c"));
        msb.lasting::<&str>("web", []);
        let make = "cp /bin/setid /tmp/program; chmod 6755 /tmp/program; \
                    cp /bin/setid /tmp/other; chown 33:33 /tmp/other; chmod 6755 /tmp/other";
        msb.shell_in("web", make).ok();
        let made = set_id_files(&msb.home());
        assert_eq!(made.len(), 2, "{made:?}");
        for path in made.iter().map(|path| msb.home().join(path)) {
            let meta = fs::metadata(&path).unwrap();
            if msb.is_root() {
                // Far above every user that a distribution or a directory service hands out.
                assert!(meta.uid() > 65535 && meta.gid() > 65535, "{meta:?}");
            } else {
                assert_ne!(meta.uid(), 0);
            }
            if let Some(mut stranger) = as_unprivileged_user(&path) {
                let ran = stranger.output().map(|output| output.stdout).unwrap_or_default();
                assert_eq!(String::from_utf8_lossy(&ran), "");
            }
        }
    }
}

/// Attack 5: the host's own set-id programs are ordinary ones in the `host` image.
#[test]
fn set_id_programs_of_the_host_give_nothing_inside() {
    let Some(root) = Msb::each().into_iter().find(Msb::is_root) else {
        return skip("needs root");
    };
    let program = PlantedFile::new("/usr/local/bin", "setid", 0o755);
    fs::copy(compiled("setid", include_str!("programs/setid.c")), &program.0).unwrap();
    fs::set_permissions(&program.0, Permissions::from_mode(0o6755)).unwrap();
    let path = program.0.to_str().unwrap();
    let gave = root.run(["run", "-u", "33", "host", "--", path]);
    assert_eq!(gave.line(), "uid 33 euid 33 gid 33 egid 33");
}

/// Attack 5.
#[test]
fn files_that_only_root_may_read_are_closed_in_the_host_image() {
    if !Msb::new().is_root() {
        return skip("needs root to make files that only root may read");
    }
    let planted: Vec<PlantedFile> = ["/usr/local", "/usr/local/bin", "/opt", "/etc", "/usr/lib"]
        .into_iter()
        .map(|place| PlantedFile::new(place, "canary", 0o600))
        .chain([PlantedFile::new("/etc", "python3-canary", 0o600)])
        .collect();
    let closed = PlantedFile::closed_directory("/opt", "closed");
    let files: Vec<String> = planted
        .iter()
        .map(|planted| planted.0.clone())
        .chain([closed.0.join("inner")])
        .map(|path| path.display().to_string())
        .collect();
    let attack = format!(
        "for file in {0}; do cat $file; cp $file /tmp/stolen; chmod 777 $file; cat $file; \
         chown 0:0 $file; cat $file; ln $file /tmp/hard; cat /tmp/hard; mv $file /tmp/moved; \
         cat /tmp/moved; dd if=$file; chmod 777 {1}; cat $file; mv {1} /tmp/dir; \
         cat /tmp/dir/inner; rm -rf $file; done 2>/dev/null; true",
        files.join(" "),
        closed.0.display()
    );
    for msb in Msb::each() {
        for flags in [&[][..], &["--allow-userns"]] {
            let args = [&["run"], flags, &["host", "--", "sh", "-c", &attack]].concat();
            let gave = msb.run(args);
            assert!(!gave.stdout.contains("root-only-secret"), "{gave:#?}");
        }
        let copied = msb.scratch().join("copied");
        msb.run(["create", "-q", "-n", "web", "host"]).ok();
        for file in &files {
            msb.run(["cp", &format!("web:{file}"), copied.to_str().unwrap()]);
            assert!(!fs::read_to_string(&copied).is_ok_and(|text| text.contains("secret")));
        }
        let kept = Command::new("grep").args(["-rl", "root-only-secret"]).arg(msb.home()).output();
        assert_eq!(String::from_utf8_lossy(&kept.unwrap().stdout), "");
    }
    for file in &files {
        assert_eq!(fs::read_to_string(file).unwrap(), "root-only-secret", "{file}");
    }
}

/// Attack 5: root inside is the user, an owner of some files below /usr and /opt.
#[test]
fn files_that_only_the_user_may_read_are_closed_in_the_host_image() {
    let Some(msb) = Msb::as_user().filter(|_| Msb::new().is_root()) else {
        return skip("needs root to give files below /usr and /opt to a user");
    };
    let secrets = ["/usr/local", "/opt", "/usr/lib"].map(|place| {
        let planted = PlantedFile::new(place, "user-canary", 0o600);
        msb.chown(&planted.0);
        planted
    });
    let closed = PlantedFile::closed_directory("/opt", "user-closed");
    let shown = PlantedFile::new("/opt", "user-shown", 0o644);
    for path in [&closed.0, &closed.0.join("inner"), &shown.0] {
        msb.chown(path);
    }
    let inner = closed.0.join("inner");
    let files = secrets.iter().map(|planted| &planted.0).chain([&inner]);
    let files: Vec<String> = files.map(|path| path.display().to_string()).collect();
    let attack = format!(
        "for file in {0}; do cat $file; cp $file /tmp/stolen; chmod 777 $file; cat $file; \
         chown 0:0 $file; cat $file; ln $file /tmp/hard; cat /tmp/hard; mv $file /tmp/moved; \
         cat /tmp/moved; dd if=$file; chmod 777 {1}; cat $file; mv {1} /tmp/dir; \
         cat /tmp/dir/inner; cat {1}/*; done 2>/dev/null; true",
        files.join(" "),
        closed.0.display()
    );
    for flags in [&[][..], &["--allow-userns"]] {
        let args = [&["run"], flags, &["host", "--", "sh", "-c", &attack]].concat();
        let gave = msb.run(args).ok();
        assert!(!gave.stdout.contains("root-only-secret"), "{gave:#?}");
    }
    // World-readable files can be read, and written over inside.
    let path = shown.0.display();
    let script = format!("cat {path} && echo over >> {path} && tail -c 5 {path}");
    let gave = msb.run(["run", "host", "--", "sh", "-c", &script]).ok();
    assert_eq!(gave.stdout, "root-only-secretover\n");
    assert_eq!(fs::read_to_string(&shown.0).unwrap(), "root-only-secret");
}

/// Attack 5: a lease on a file holds up a process that opens it to write.
#[test]
fn a_read_only_mount_gives_no_leases() {
    for msb in Msb::each().into_iter().chain(Msb::with_one_id()) {
        msb.program("leases", include_str!("programs/leases.c"));
        let shown = msb.file("shown/file", "shown");
        let volume = format!("{}:/shown:ro", shown.parent().unwrap().display());
        let gave = msb.shell_with(["-v", &volume], "leases /shown /shown/file /tmp").ok();
        assert_eq!(gave.stdout, "tried 9\n");
    }
}

/// Attack 6.
#[test]
fn odd_names_survive_a_round_trip() {
    let names: [&[u8]; 10] = [
        b"new\nline",
        b"invalid \xff\xfe",
        &[b'x'; 255],
        "\u{202e}gnp.exe".as_bytes(),
        b"\x1b]0;title\x07\x1b[2J",
        b"-rf",
        b"* ?",
        b"\\back\"quote'",
        b" ",
        "caf\u{e9}".as_bytes(),
    ];
    for msb in Msb::each() {
        let tree = msb.scratch().join("tree");
        fs::create_dir(&tree).unwrap();
        msb.chown(&tree);
        for name in names {
            let path = tree.join(OsStr::from_bytes(name));
            fs::write(&path, name).unwrap();
            msb.chown(&path);
        }
        msb.lasting::<&str>("web", []);
        let there = msb.run(["cp", tree.to_str().unwrap(), "web:/tree"]).ok();
        let back = msb.scratch().join("back");
        let again = msb.run(["cp", "web:/tree", back.to_str().unwrap()]).ok();
        for name in names {
            assert_eq!(fs::read(back.join(OsStr::from_bytes(name))).unwrap(), name);
        }
        assert_eq!(fs::read_dir(&back).unwrap().count(), names.len());
        assert_eq!((there.stderr.as_str(), again.stderr.as_str()), ("", ""));
    }
}

/// Paths of files with a set-id bit, below a directory.
fn set_id_files(directory: &Path) -> Vec<String> {
    found(directory, &["-perm", "/6000", "-not", "-type", "l"])
}

/// Paths of what is neither file, directory nor link. A device with number zero is how an
/// overlay says that something was removed, and leads nowhere.
fn special_files(directory: &Path) -> Vec<String> {
    let devices = found(directory, &["(", "-type", "b", "-o", "-type", "c", ")"]);
    devices
        .into_iter()
        .filter(|path| {
            let meta = fs::symlink_metadata(directory.join(path)).expect("it was just found");
            meta.file_type().is_block_device() || meta.rdev() != 0
        })
        .collect()
}

fn found(directory: &Path, test: &[&str]) -> Vec<String> {
    let output = Command::new("find")
        .arg(directory)
        .args(["-mindepth", "1"])
        .args(test)
        .args(["-printf", "%P\n"])
        .output()
        .expect("find runs");
    String::from_utf8_lossy(&output.stdout).lines().map(ToOwned::to_owned).collect()
}

/// `security.*` and `trusted.*` attributes of the files in a directory.
fn security_attributes(directory: &Path) -> String {
    let list = compiled("xattrs", include_str!("programs/xattrs.c"));
    let output = Command::new(list).arg(directory).output().expect("it was just compiled");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_privileged = |line: &&str| line.contains(" security.") || line.contains(" trusted.");
    text.lines().filter(is_privileged).collect::<Vec<_>>().join("\n")
}

/// Something in a directory of the host, gone when the test is over.
struct PlantedFile(PathBuf);

impl PlantedFile {
    fn new(directory: &str, name: &str, mode: u32) -> Self {
        let path = Path::new(directory).join(format!("msb-{}-{name}", std::process::id()));
        // A name that the `host` image would take from /etc, were it readable.
        let path = match name.strip_prefix("python3") {
            Some(rest) => {
                Path::new(directory).join(format!("python3-msb-{}{rest}", std::process::id()))
            }
            None => path,
        };
        fs::write(&path, "root-only-secret").expect("root may write here");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("its own file");
        Self(path)
    }

    fn closed_directory(directory: &str, name: &str) -> Self {
        let path = Path::new(directory).join(format!("msb-{}-{name}", std::process::id()));
        fs::create_dir(&path).expect("root may write here");
        fs::write(path.join("inner"), "root-only-secret").expect("its own directory");
        fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("its own directory");
        Self(path)
    }
}

impl Drop for PlantedFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        let _ = fs::remove_dir_all(&self.0);
    }
}
