//! What is set up before the first command: patches, scripts, mounts, environment, workdir.

use msb_e2e::Msb;
use std::fs;

#[test]
fn patches_are_made_in_order_before_the_first_command() {
    for msb in Msb::each() {
        msb.file("src/sub/file", "copied\n");
        msb.file("one", "one file\n");
        let gave = msb.run([
            "run",
            "--mkdir",
            "/made/deep",
            "--text",
            "/made/text=first line\n",
            "--append",
            "/made/text=second line\n",
            "--append",
            "/made/new=appended",
            "--remove",
            "/etc/passwd",
            "--symlink",
            "/made/link=text",
            "--copy",
            "src:/made/tree",
            "--copy",
            "one:/made/one",
            "--",
            "sh",
            "-c",
            "cat /made/link /made/tree/sub/file /made/one /made/new; ls -d /made/deep; \
             test -e /etc/passwd || echo removed",
        ]);
        assert_eq!(
            gave.line(),
            "first line\nsecond line\ncopied\none file\nappended/made/deep\nremoved"
        );
    }
}

#[test]
fn patches_can_be_a_list_in_a_file() {
    for msb in Msb::each() {
        msb.file("host-file", "from the host\n");
        msb.file(
            "patches.toml",
            r##"
            [[patch]]
            mkdir = { path = "/p" }
            [[patch]]
            text = { path = "/p/run", content = "#!/bin/sh\necho ran\n", mode = 0o755 }
            [[patch]]
            append = { path = "/p/run", content = "echo more\n" }
            [[patch]]
            symlink = { path = "/p/link", target = "run" }
            [[patch]]
            copy = { from = "host-file", to = "/p/file" }
            [[patch]]
            remove = { path = "/etc/group" }
            "##,
        );
        let script = "/p/link; cat /p/file; test -e /etc/group || echo removed";
        let gave = msb.run(["run", "--patch", "patches.toml", "--", "sh", "-c", script]);
        assert_eq!(gave.line(), "ran\nmore\nfrom the host\nremoved");
    }
}

#[test]
fn patches_do_not_touch_the_image_and_are_made_once() {
    for msb in Msb::each() {
        let root = msb.rootfs();
        let image = root.to_str().unwrap();
        let create = ["create", "-n", "box", "--append", "/etc/group=added\n", "--remove"];
        msb.run(create.into_iter().chain(["/etc/passwd", image])).ok();
        msb.words("restart box").ok();
        let gave = msb.run(["exec", "box", "--", "grep", "-c", "added", "/etc/group"]);
        assert_eq!(gave.line(), "1");
        assert!(root.join("etc/passwd").exists());
        assert_eq!(fs::read_to_string(root.join("etc/group")).unwrap(), "root:x:0:\nweb:x:33:\n");
    }
}

#[test]
fn a_patch_that_cannot_be_made_leaves_no_sandbox() {
    for msb in Msb::each() {
        for flags in [
            "--copy /no/such:/x",
            "--text relative=x",
            "--text nothing",
            "--symlink x",
            "--mkdir /etc/passwd/x",
            "--patch no-such-file",
        ] {
            let gave = msb.words(&format!("create -n box {flags}"));
            assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{flags}: {gave:?}");
            assert!(gave.stderr.starts_with("error: "), "{flags}: {gave:?}");
            assert_eq!(msb.words("ls -q").line(), "", "{flags}");
        }
    }
}

#[test]
fn a_patch_does_not_follow_a_link_out_of_the_sandbox() {
    for msb in Msb::each() {
        let outside = msb.file("outside", "untouched");
        let link = format!("/link={}", outside.display());
        let gave = msb.run(["run", "--symlink", &link, "--text", "/link=changed", "--", "true"]);
        assert_eq!(fs::read_to_string(outside).unwrap(), "untouched", "{gave:?}");
    }
}

#[test]
fn scripts_are_on_the_path() {
    for msb in Msb::each() {
        let create = ["create", "-n", "box", "--script", "hi=echo hello $1", "--script"];
        let python = "py=#!/usr/bin/env python3\nprint('from python')";
        msb.run(create.into_iter().chain([python])).ok();
        assert_eq!(msb.words("exec box -- hi you").line(), "hello you");
        assert_eq!(msb.words("exec box -- py").line(), "from python");
        assert_eq!(msb.run(["run", "--script", "../x=echo", "--", "true"]).code, 125);
    }
}

#[test]
fn a_volume_is_the_hosts_directory_and_read_only_means_it() {
    for msb in Msb::each() {
        msb.file("shared/in", "from outside\n");
        let volume = format!("{}:/mnt", msb.scratch().join("shared").display());
        let script = "cat /mnt/in; echo from inside > /mnt/out; stat -c %u /mnt/in";
        let gave = msb.run(["run", "-v", &volume, "--", "sh", "-c", script]);
        assert_eq!(gave.line(), "from outside\n0");
        let out = msb.scratch().join("shared/out");
        assert_eq!(fs::read_to_string(&out).unwrap(), "from inside\n");
        use std::os::unix::fs::MetadataExt;
        let owner = fs::metadata(msb.scratch()).unwrap().uid();
        assert_eq!(fs::metadata(&out).unwrap().uid(), owner);

        let script = "cat /mnt/in; echo x > /mnt/out2 || echo refused; rm /mnt/in || echo refused; \
                      mount -o remount,rw /mnt || echo refused; chmod 777 /mnt/in || echo refused";
        let read_only = format!("{volume}:ro");
        let gave = msb.run(["run", "-v", &read_only, "--", "sh", "-c", script]);
        assert_eq!(gave.line(), "from outside\nrefused\nrefused\nrefused\nrefused");
        assert!(!msb.scratch().join("shared/out2").exists());
    }
}

#[test]
fn a_relative_volume_is_below_the_current_directory() {
    for msb in Msb::each() {
        msb.file("here/file", "relative\n");
        assert_eq!(msb.words("run -v ./here:/mnt -- cat /mnt/file").line(), "relative");
    }
}

#[test]
fn a_single_file_can_be_mounted() {
    for msb in Msb::each() {
        let file = msb.file("conf", "outside\n");
        let mount = format!("{}:/etc/my.conf", file.display());
        let script = "cat /etc/my.conf; echo inside > /etc/my.conf";
        let gave = msb.run(["run", "--mount-file", &mount, "--", "sh", "-c", script]);
        assert_eq!(gave.line(), "outside");
        assert_eq!(fs::read_to_string(&file).unwrap(), "inside\n");
        let mount = format!("{mount}:ro");
        let gave = msb.run(["run", "--mount-file", &mount, "--", "sh", "-c", script]);
        assert_ne!(gave.code, 0);
        assert_eq!(fs::read_to_string(&file).unwrap(), "inside\n");
    }
}

#[test]
fn a_memory_file_system_has_the_size_that_was_asked_for() {
    for msb in Msb::each() {
        let script = "dd if=/dev/zero of=/scratch/x bs=64k count=100 2>&1 | grep -o 'No space.*'; \
                      stat -c %s /scratch/x; stat -f -c %T /scratch";
        let gave = msb.run(["run", "--tmpfs", "/scratch:2M", "--", "sh", "-c", script]);
        assert_eq!(gave.line(), "No space left on device\n2097152\ntmpfs");
    }
}

#[test]
fn an_environment_comes_from_a_file_and_flags_win() {
    for msb in Msb::each() {
        msb.file("env", "# a comment\nA=from file\nB=two words\n\nC=x=y\n");
        let gave = msb.run([
            "run",
            "--env-file",
            "env",
            "-e",
            "A=from flag",
            "--",
            "sh",
            "-c",
            "echo $A/$B/$C",
        ]);
        assert_eq!(gave.line(), "from flag/two words/x=y");
        assert_eq!(msb.words("run --env-file no-such -- true").code, 125);
    }
}

#[test]
fn an_entrypoint_is_handed_the_command() {
    for msb in Msb::each() {
        assert_eq!(msb.words("run --entrypoint echo -- a b").line(), "a b");
        assert_eq!(msb.words("run --entrypoint /bin/echo").line(), "");
    }
}

#[test]
fn the_host_name_is_the_sandboxes_own() {
    for msb in Msb::each() {
        let script = "import socket; print(socket.gethostname())";
        let args = ["run", "--hostname", "inside.example", "--", "python3", "-c", script];
        assert_eq!(msb.run(args).line(), "inside.example");
        assert_eq!(msb.run(["run", "-n", "box1", "--", "python3", "-c", script]).line(), "box1");
        assert_eq!(msb.words("run --hostname no/good -- true").code, 125);
    }
}

#[test]
fn a_workdir_is_made_and_entered() {
    for msb in Msb::each() {
        assert_eq!(msb.words("run -w /a/b/c -- pwd").line(), "/a/b/c");
        assert_eq!(msb.words("run -w relative -- pwd").code, 125);
    }
}

#[test]
fn the_shell_can_be_chosen() {
    for msb in Msb::each() {
        let gave = msb.run_with(["run", "--shell", "/bin/bash"], b"echo ${BASH_VERSION:+bash}");
        assert_eq!(gave.line(), "bash");
    }
}

#[test]
fn a_sandbox_can_be_written_down_and_flags_win() {
    for msb in Msb::each() {
        msb.file("data/file", "mounted\n");
        msb.file(
            "box.toml",
            "name = 'written'\nhostname = 'toml'\nworkdir = '/app'\nmemory = '128M'\n\
             command = ['sh', '-c', 'echo $A $B; pwd; cat /data/file']\nmounts = ['./data:/data:ro']\n\
             [env]\nA = '1'\nB = '1'\n[labels]\nteam = 'x'\n",
        );
        let gave = msb.words("run --conf box.toml -e B=2");
        assert_eq!(gave.line(), "1 2\n/app\nmounted");
        let plan =
            msb.json("run --conf box.toml --dry-run --json --memory 64M -n other".split(' '));
        assert_eq!(plan["name"], "other");
        assert_eq!(plan["hostname"], "toml");
        assert_eq!(plan["labels"], serde_json::json!({"team": "x"}));
        assert_eq!(plan["limits"]["memory"]["value"], (64u64 << 20).to_string());

        msb.file("bad.toml", "imagee = 'host'\n");
        let gave = msb.words("run --conf bad.toml -- true");
        assert_eq!(gave.code, 125);
        assert!(gave.stderr.contains("imagee"), "{gave:?}");
    }
}

#[test]
fn nothing_is_mounted_over_the_sandboxes_own_places() {
    for msb in Msb::each() {
        for flags in ["-v .:/proc", "-v .:/sys/fs", "--tmpfs /dev", "-v .:relative", "-v .:/"] {
            let gave = msb.words(&format!("run {flags} -- true"));
            assert_eq!(gave.code, 125, "{flags}: {gave:?}");
        }
    }
}

#[test]
fn a_command_for_create_is_refused_and_not_ignored() {
    let msb = Msb::new();
    let conf = msb.file("box.toml", "command = ['true']\n");
    for flags in [["--entrypoint", "/bin/sh"], ["--conf", conf.to_str().unwrap()]] {
        let gave = msb.run([&["create", "-n", "box"], &flags[..]].concat());
        assert_eq!(gave.code, 125, "{gave:#?}");
        assert!(gave.stderr.contains("runs no command of its own"), "{gave:#?}");
    }
    assert_eq!(msb.run(["ls", "-q"]).line(), "");
}
