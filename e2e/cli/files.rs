//! `msb cp`: files and trees, both ways, as they are.

use msb_e2e::Msb;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

fn into(name: &str, path: &OsStr) -> OsString {
    let mut whole = OsString::from(format!("{name}:"));
    whole.push(path);
    whole
}

/// A tree as text: for each path its kind, permissions and content, in order.
pub(crate) fn described(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).expect("it was listed");
        let name =
            path.strip_prefix(root).expect("below the root").as_os_str().as_bytes().escape_ascii();
        let mode = meta.permissions().mode() & 0o777;
        if meta.is_symlink() {
            found.push(format!("{name} -> {}", fs::read_link(&path).expect("a link").display()));
        } else if meta.is_dir() {
            found.push(format!("{name}/ {mode:o}"));
            waiting.extend(
                fs::read_dir(&path).expect("a directory").flatten().map(|entry| entry.path()),
            );
        } else {
            let content = fs::read(&path).expect("a file");
            found.push(format!("{name} {mode:o} {}", content.escape_ascii()));
        }
    }
    found.sort();
    found
}

#[test]
fn a_file_comes_back_as_it_went() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let bytes: Vec<u8> = (0..=255).cycle().take(3_000_001).collect();
        let source = msb.file("in.bin", &bytes);
        fs::set_permissions(&source, Permissions::from_mode(0o751)).unwrap();
        msb.words("cp in.bin box:/tmp/there.bin").ok();
        assert_eq!(msb.words("exec box -- stat -c %a:%s /tmp/there.bin").line(), "751:3000001");
        msb.words("cp box:/tmp/there.bin back.bin").ok();
        let back = msb.scratch().join("back.bin");
        assert!(fs::read(&back).unwrap() == bytes);
        assert_eq!(fs::metadata(back).unwrap().permissions().mode() & 0o777, 0o751);
    }
}

#[test]
fn a_tree_comes_back_as_it_went() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        msb.file("tree/a/deep/file", "deep");
        msb.file("tree/empty", "");
        msb.file("tree/script", "#!/bin/sh\n");
        let tree = msb.scratch().join("tree");
        fs::create_dir(tree.join("hollow")).unwrap();
        msb.chown(&tree.join("hollow"));
        fs::set_permissions(tree.join("hollow"), Permissions::from_mode(0o700)).unwrap();
        fs::set_permissions(tree.join("script"), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(tree.join("empty"), Permissions::from_mode(0o400)).unwrap();
        symlink("a/deep/file", tree.join("link")).unwrap();
        symlink("/no/such/thing", tree.join("dangling")).unwrap();
        symlink("..", tree.join("a/loop")).unwrap();
        msb.words("cp tree box:/srv/tree").ok();
        msb.words("cp box:/srv/tree back").ok();
        assert_eq!(described(&msb.scratch().join("back")), described(&tree));
        assert_eq!(msb.words("exec box -- cat /srv/tree/link").line(), "deep");
        assert_eq!(msb.words("exec box -- stat -c %u:%g /srv/tree/script").line(), "0:0");
    }
}

#[test]
fn a_directory_that_is_there_takes_the_source_into_it() {
    for msb in Msb::each() {
        msb.words("create -n box -w /app").ok();
        msb.file("dir/file", "x");
        msb.words("cp dir/file box:/app").ok();
        msb.words("cp dir box:/app").ok();
        let found = msb.words("exec box -- find /app").line();
        let mut found: Vec<&str> = found.lines().collect();
        found.sort_unstable();
        assert_eq!(found, ["/app", "/app/dir", "/app/dir/file", "/app/file"]);
        let out = msb.scratch().join("out");
        fs::create_dir(&out).unwrap();
        msb.chown(&out);
        msb.words("cp box:/app/dir out").ok();
        msb.words("cp box:/app/file .").ok();
        assert_eq!(fs::read_to_string(out.join("dir/file")).unwrap(), "x");
        assert_eq!(fs::read_to_string(msb.scratch().join("file")).unwrap(), "x");
    }
}

#[test]
fn odd_names_survive_both_ways() {
    let odd: [&[u8]; 6] = [b"two\nlines", b"\xff\xfe invalid", b"-rf", b"a:b", b" ", &[b'n'; 255]];
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let tree = msb.scratch().join("odd");
        fs::create_dir(&tree).unwrap();
        for name in odd {
            fs::write(tree.join(OsStr::from_bytes(name)), name).unwrap();
        }
        msb.words("cp odd box:/odd").ok();
        let script = "import os; print(len(os.listdir('/odd')))";
        assert_eq!(msb.run(["exec", "box", "--", "python3", "-c", script]).line(), "6");
        msb.words("cp box:/odd back").ok();
        assert_eq!(described(&msb.scratch().join("back")), described(&tree));
        for name in odd {
            let inside = Path::new("/odd").join(OsStr::from_bytes(name));
            let one = OsString::from("./one");
            msb.run([OsStr::new("cp"), &into("box", inside.as_os_str()), &one]).ok();
            assert_eq!(fs::read(msb.scratch().join("one")).unwrap(), name);
        }
    }
}

#[test]
fn five_hundred_small_files_go_in_and_out() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        for number in 0..500 {
            msb.file(&format!("many/{}/{number}", number % 10), format!("file {number}"));
        }
        msb.words("cp many box:/many").ok();
        assert_eq!(
            msb.run(["exec", "box", "--", "sh", "-c", "find /many -type f | wc -l"]).line(),
            "500"
        );
        msb.words("cp box:/many back").ok();
        let (there, back) = (msb.scratch().join("many"), msb.scratch().join("back"));
        assert_eq!(described(&back), described(&there));
    }
}

#[test]
fn what_is_missing_is_named_and_nothing_is_made() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let gave = msb.words("cp box:/no/such out");
        assert_eq!(gave.code, 125);
        assert!(gave.stderr.contains("/no/such"), "{gave:?}");
        assert!(!msb.scratch().join("out").exists());
        let gave = msb.words("cp nothing-here box:/tmp/x");
        assert_eq!(gave.code, 125);
        assert!(gave.stderr.contains("nothing-here"), "{gave:?}");
        assert_eq!(msb.words("exec box -- ls /tmp/x").code, 2);
        msb.file("file", "x");
        for line in ["cp file nobody:/x", "cp file other-file", "cp box:/etc box:"] {
            assert_eq!(msb.words(line).code, 125, "{line}");
        }
    }
}

#[test]
fn a_stopped_sandbox_can_be_copied_from_and_stays_stopped() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        msb.run(["exec", "box", "--", "sh", "-c", "echo result > /result"]).ok();
        msb.words("stop box").ok();
        msb.words("cp box:/result result").ok();
        assert_eq!(fs::read_to_string(msb.scratch().join("result")).unwrap(), "result\n");
        msb.words("cp result box:/again").ok();
        assert_eq!(msb.json(["inspect", "box"])["status"], "stopped");
        msb.words("start box").ok();
        assert_eq!(msb.words("exec box -- cat /again").line(), "result");
    }
}

#[test]
fn a_file_is_replaced_and_a_link_is_not_followed_out() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let outside = msb.file("outside", "untouched");
        msb.run(["exec", "box", "--", "sh", "-c", "mkdir /t; echo new > /t/x"]).ok();
        let out = msb.scratch().join("out");
        fs::create_dir(&out).unwrap();
        msb.chown(&out);
        symlink(&outside, out.join("x")).unwrap();
        msb.words("cp box:/t/x out/x").ok();
        assert_eq!(fs::read_to_string(&outside).unwrap(), "untouched");
        assert_eq!(fs::read_to_string(out.join("x")).unwrap(), "new\n");
    }
}

#[test]
fn a_copy_between_two_sandboxes_is_refused_or_done_but_never_misread() {
    for msb in Msb::each() {
        msb.words("create -n one").ok();
        msb.words("create -n two").ok();
        msb.run(["exec", "one", "--", "sh", "-c", "echo here > /f"]).ok();
        let gave = msb.words("cp one:/f two:/f");
        let there = msb.words("exec two -- cat /f");
        assert_eq!((gave.code == 0), (there.stdout == "here\n"), "{gave:?} {there:?}");
        assert!(!msb.scratch().join("two:").exists());
    }
}
