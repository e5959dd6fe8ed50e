//! `msb volume cp`, `cat` and `ls`: files of a volume without a sandbox.

use super::shell;
use msb_e2e::{Msb, skip};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

#[test]
fn files_and_trees_are_copied_in_and_out() {
    for msb in Msb::each() {
        msb.words("volume create data").ok();
        let script = msb.file("in/run.sh", "#!/bin/sh\necho ran\n");
        fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
        msb.file("in/deep/er/file", "deep");
        symlink("deep/er/file", msb.scratch().join("in/link")).unwrap();
        msb.words("volume cp in data:/tree").ok();
        msb.words("volume cp in/run.sh data:").ok();
        msb.words("volume cp in/run.sh data:new/place/name").ok();
        assert_eq!(msb.words("volume ls -q data:").line(), "new\nrun.sh\ntree");
        assert_eq!(msb.words("volume ls -q data:/tree").line(), "deep\nlink\nrun.sh");
        assert_eq!(msb.words("volume cat data:/tree/link").line(), "deep");
        assert_eq!(
            msb.words("volume cat data:/new/place/name").ok().stdout,
            "#!/bin/sh\necho ran\n"
        );
        let listed = msb.json(["volume", "ls", "data:/tree", "--json"]);
        assert_eq!(
            (&listed[1]["kind"], &listed[1]["target"]),
            (&"link".into(), &"deep/er/file".into())
        );
        assert_eq!((&listed[2]["mode"], &listed[2]["uid"]), (&"0755".into(), &0.into()));
        assert_eq!(
            shell(&msb, &["data:/d"], "/d/tree/run.sh; cat /d/tree/link").line(),
            "ran\ndeep"
        );
        msb.words("volume cp data:/tree out").ok();
        assert_eq!(fs::read_to_string(msb.scratch().join("out/deep/er/file")).unwrap(), "deep");
        let found = fs::metadata(msb.scratch().join("out/run.sh")).unwrap();
        assert_eq!(found.mode() & 0o7777, 0o755);
        // Below a directory that is there, beside what is there, and over a file of that name.
        msb.file("more/tree/deep/second", "second");
        msb.file("more/tree/run.sh", "new");
        msb.words("volume cp more/tree data:/").ok();
        assert_eq!(msb.words("volume ls -q data:/tree/deep").line(), "er\nsecond");
        assert_eq!(msb.words("volume cat data:/tree/run.sh").line(), "new");
    }
}

#[test]
fn files_that_cannot_be_copied_are_reported() {
    for msb in Msb::each() {
        msb.words("volume create data").ok();
        msb.file("file", "file");
        msb.words("volume cp file data:/dir/file").ok();
        for (line, told) in [
            ("cp file other", "both paths are on the host"),
            ("cp data:/a data:/b", "from one volume to another"),
            ("cp missing data:/", "cannot copy `missing`"),
            ("cp data:/missing out", "in the volume, cannot open `/missing`"),
            ("cat data:/missing", "in the volume, cannot open `/missing`"),
            ("cat data:/dir", "in the volume, cannot read `/dir`"),
            ("cat plain", "not a path in a volume: `plain`"),
            ("ls data:/dir/file", "in the volume, cannot list `/dir/file`"),
            ("cp file data:/dir/file/below", "in the volume, cannot"),
        ] {
            let gave = msb.words(&format!("volume {line}"));
            assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{line}");
            assert!(gave.stderr.contains(told), "{line}: {gave:#?}");
        }
        assert_eq!(
            msb.words("volume ls -q data:/").line(),
            "dir",
            "nothing is left of failed copies"
        );
    }
}

#[test]
fn files_of_every_user_can_be_reached() {
    for msb in Msb::each() {
        msb.words("volume create data").ok();
        let script = "mkdir -m 700 /d/p; echo own > /d/p/f; chmod 600 /d/p/f; chown -R 33:33 /d/p";
        if shell(&msb, &["data:/d"], &format!("{script}; stat -c %u /d/p")).line() != "33" {
            skip("only one id");
            continue;
        }
        assert_eq!(msb.words("volume cat data:/p/f").line(), "own");
        assert_eq!(msb.json(["volume", "ls", "data:/p", "--json"])[0]["uid"], 33);
        msb.file("more", "more");
        msb.words("volume cp more data:/p/").ok();
        let gave = shell(&msb, &["data:/d"], "stat -c %u /d/p/more; cat /d/p/more");
        assert_eq!(gave.line(), "0\nmore");
        msb.words("volume rm data").ok();
        assert_eq!(fs::read_dir(msb.home().join("volumes")).unwrap().count(), 0);
    }
}

#[test]
fn odd_names_come_through_and_disturb_no_terminal() {
    for msb in Msb::each() {
        msb.words("volume create data").ok();
        let names: [&[u8]; 4] =
            [b"line\nend", b"\xff\xfe", "\u{202e}rtl".as_bytes(), b"esc\x1b[31m"];
        fs::create_dir(msb.scratch().join("odd")).unwrap();
        for name in names {
            fs::write(msb.scratch().join("odd").join(OsStr::from_bytes(name)), name).unwrap();
        }
        msb.words("volume cp odd data:/").ok();
        for line in ["volume ls data:/odd", "volume ls -q data:/odd", "volume ls --json data:/odd"]
        {
            let gave = msb.words(line).ok();
            assert!(!gave.stdout.contains(['\x1b', '\u{202e}']), "{gave:#?}");
        }
        for name in names {
            let place = [b"data:/odd/", name].concat();
            let gave =
                msb.run([OsStr::new("volume"), OsStr::new("cat"), OsStr::from_bytes(&place)]);
            assert_eq!(gave.ok().stdout, String::from_utf8_lossy(name));
        }
        msb.words("volume cp data:/odd back").ok();
        for name in names {
            let back = msb.scratch().join("back").join(OsStr::from_bytes(name));
            assert_eq!(fs::read(back).unwrap(), name);
        }
        let shown = msb.on_terminal("volume cat data:/odd/esc\\x1b[31m");
        assert!(!shown.stdout.contains("\x1b[31m"), "{shown:#?}");
    }
}
