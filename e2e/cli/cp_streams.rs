//! `msb cp` with `-`, with several sources, between sandboxes, and killed in the middle.

use crate::files::described;
use msb_e2e::{Msb, eventually, gives};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

fn boxed(msb: &Msb, script: &str) {
    msb.words("create -n box").ok();
    msb.run(["exec", "box", "--", "sh", "-c", script]).ok();
}

/// What `msb` writes to stdout, byte by byte.
fn bytes(msb: &Msb, words: &str) -> Vec<u8> {
    let output = msb.command(words.split(' ')).output().expect("msb can be executed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn unpacked(msb: &Msb, archive: &[u8], to: &str) -> Vec<String> {
    let (file, root) = (msb.file(&format!("{to}.tar"), archive), msb.scratch().join(to));
    fs::create_dir(&root).expect("a directory");
    gives(Command::new("tar").arg("-xf").arg(file).arg("-C").arg(&root)).ok();
    described(&root)
}

#[test]
fn a_dash_is_stdout_and_a_directory_an_archive() {
    for msb in Msb::each() {
        let long = "n".repeat(120);
        boxed(
            &msb,
            &format!(
                "umask 022; printf '\\0\\377x' > /f; mkdir -p /d/e; echo 1 > /d/a; chmod 755 /d/a; \
                 ln -s ../a /d/e/l; echo 2 > /d/e/{long}; mkfifo /d/p; ln -s /d /link"
            ),
        );
        assert_eq!(bytes(&msb, "cp box:/f -"), b"\0\xffx");
        assert!(!msb.scratch().join("-").exists());
        let tree = |name: &str| {
            vec![
                "/ 755".to_owned(),
                format!("{name}/ 755"),
                format!("{name}/a 755 1\\n"),
                format!("{name}/e/ 755"),
                format!("{name}/e/l -> ../a"),
                format!("{name}/e/{long} 644 2\\n"),
            ]
        };
        assert_eq!(unpacked(&msb, &bytes(&msb, "cp box:/d/ -"), "out"), tree("d"));
        assert_eq!(unpacked(&msb, &bytes(&msb, "cp -q box:/link -"), "again"), tree("link"));
        let gave = msb.words("cp box:/d -").ok();
        assert!(gave.stderr.contains("left out 1 devices"), "{}", gave.stderr);
        let gave = msb.words("cp box:/nothing -");
        assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{gave:?}");
        // At a terminal nothing moves the cursor.
        msb.run(["exec", "box", "--", "sh", "-c", "printf '\\033[2Jx\\n' > /escape"]).ok();
        let gave = msb.on_terminal("cp box:/escape -");
        assert!(gave.stdout.contains("\\u{1b}[2Jx") && !gave.stdout.contains('\x1b'), "{gave:?}");
        assert!(msb.on_terminal("cp box:/d -").stdout.contains("not written to a terminal"));
    }
}

#[test]
fn a_dash_is_stdin_too() {
    for msb in Msb::each() {
        boxed(&msb, "umask 022; mkdir /app /d; echo old > /app/tool; chmod 755 /app/tool");
        msb.run_with(["cp", "-", "box:/app/new"], b"\0bytes\n").ok();
        msb.run_with(["cp", "-", "box:/app/tool"], b"new\n").ok();
        let script = "od -c /app/new | head -1; stat -c '%a %n' /app/*; cat /app/tool; ls -A /app";
        let gave = msb.run(["exec", "box", "--", "sh", "-c", script]).line();
        assert_eq!(
            gave,
            "0000000  \\0   b   y   t   e   s  \\n\n644 /app/new\n755 /app/tool\nnew\nnew\ntool"
        );
        // An archive, from another tool and from ourselves.
        for (path, text) in [("t/a", "1\n"), ("t/deep/b", "2\n")] {
            msb.file(path, text);
        }
        symlink("a", msb.scratch().join("t/link")).unwrap();
        fs::hard_link(msb.scratch().join("t/a"), msb.scratch().join("t/same")).unwrap();
        let tar = gives(Command::new("tar").args(["-cf", "t.tar", "t"]).current_dir(msb.scratch()));
        tar.ok();
        let archive = fs::read(msb.scratch().join("t.tar")).unwrap();
        msb.run_with(["cp", "-", "box:/d"], &archive).ok();
        msb.words("cp box:/d/t back").ok();
        let tree = described(&msb.scratch().join("t"));
        assert_eq!(described(&msb.scratch().join("back")), tree);
        let own = bytes(&msb, "cp box:/d/t -");
        msb.words("exec box -- mkdir /e").ok();
        msb.run_with(["cp", "-", "box:/e"], &own).ok();
        msb.words("cp box:/e/t twice").ok();
        assert_eq!(described(&msb.scratch().join("twice")), tree);
        let gave = msb.run_with(["cp", "-", "box:/d"], b"no archive at all");
        assert_eq!(gave.code, 125);
        assert!(gave.stderr.contains("not a tar archive"), "{}", gave.stderr);
    }
}

/// One entry of an archive, with any name.
fn entry(kind: u8, name: &str, target: &str, content: &[u8]) -> Vec<u8> {
    let mut header = [0u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..107].copy_from_slice(b"0000644");
    header[108..115].copy_from_slice(b"0000000");
    header[116..123].copy_from_slice(b"0000000");
    header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
    header[136..147].copy_from_slice(b"00000000000");
    header[156] = kind;
    header[157..157 + target.len()].copy_from_slice(target.as_bytes());
    header[257..265].copy_from_slice(b"ustar  \0");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let padding = vec![0; content.len().next_multiple_of(512) - content.len()];
    [&header[..], content, &padding].concat()
}

#[test]
fn an_archive_writes_only_below_its_directory() {
    let msb = Msb::new();
    boxed(&msb, "mkdir /d /other; echo untouched > /other/x");
    let end = vec![0; 1024];
    let attacks: [&[Vec<u8>]; 5] = [
        &[entry(b'0', "../other/x", "", b"evil")],
        &[entry(b'2', "l", "/other", b""), entry(b'0', "l/x", "", b"evil")],
        &[entry(b'2', "l2", "/other", b""), entry(b'5', "l2/new", "", b"")],
        &[entry(b'2', "l3", "/other", b""), entry(b'5', "l3", "", b"")],
        &[entry(b'1', "h", "../other/x", b"")],
    ];
    for attack in attacks {
        let gave = msb.run_with(["cp", "-", "box:/d"], &[attack.concat(), end.clone()].concat());
        assert_eq!(gave.code, 125, "{gave:?}");
        assert!(gave.stderr.contains("leads out of the archive"), "{}", gave.stderr);
    }
    // A link that is replaced by a file is not followed.
    let archive = [entry(b'2', "y", "/other/x", b""), entry(b'0', "y", "", b"mine"), end.clone()];
    msb.run_with(["cp", "-", "box:/d"], &archive.concat()).ok();
    let gave = msb.run(["exec", "box", "--", "sh", "-c", "cat /other/x; ls /other; cat /d/y"]);
    assert_eq!(gave.line(), "untouched\nx\nmine");
    // A few bytes that claim a terabyte.
    let mut sparse = entry(b'S', "s", "", b"");
    sparse[483..495].copy_from_slice(b"010000000000");
    sparse[148..156].fill(b' ');
    let sum: u32 = sparse[..512].iter().map(|byte| u32::from(*byte)).sum();
    sparse[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let gave = msb.run_with(["cp", "-", "box:/d"], &[sparse, end].concat());
    assert_eq!(gave.code, 125, "{gave:?}");
}

#[test]
fn several_sources_go_into_a_directory() {
    for msb in Msb::each() {
        boxed(&msb, "mkdir /d; echo 3 > /c; echo 4 > /e");
        let (_, _) = (msb.file("a", "1"), msb.file("b/x", "2"));
        msb.words("cp a b box:/c box:/d").ok();
        let listed = msb.run(["exec", "box", "--", "sh", "-c", "cd /d; find . -type f | sort"]);
        assert_eq!(listed.line(), "./a\n./b/x\n./c");
        fs::create_dir(msb.scratch().join("out")).unwrap();
        msb.chown(&msb.scratch().join("out"));
        msb.words("cp box:/c box:/e out").ok();
        let out = described(&msb.scratch().join("out"));
        assert_eq!(out, ["/ 755", "c 644 3\\n", "e 644 4\\n"]);
        for (words, why) in [
            ("cp a b box:/d/a", "not a directory: `box:/d/a`"),
            ("cp a b box:/nothing", "not a directory: `box:/nothing`"),
            ("cp box:/c box:/e nothing", "not a directory: `nothing`"),
            ("cp a box:/c out", "a source and the target are on the host"),
            ("cp box:/c box:/e -", "only one path of a sandbox can be written to stdout"),
            ("cp a -", "only one path of a sandbox can be written to stdout"),
            ("cp - out", "stdin can only be copied into a sandbox"),
        ] {
            let gave = msb.words(words);
            assert_eq!(gave.code, 125, "{words}: {gave:?}");
            assert!(gave.stderr.contains(why), "{words}: {}", gave.stderr);
        }
    }
}

#[test]
fn a_tree_goes_from_one_sandbox_to_another() {
    for msb in Msb::each() {
        msb.words("create -n two").ok();
        boxed(
            &msb,
            "umask 022; mkdir -p /t/e; echo 1 > /t/a; chmod 755 /t/a; ln -s a /t/l; mkfifo /t/p; \
             truncate -s 3G /t/holes; echo end >> /t/holes; echo f > /f",
        );
        let gave = msb.words("cp box:/t two:/new").ok();
        assert!(gave.stderr.contains("left out 1 devices"), "{}", gave.stderr);
        msb.words("cp box:/f two:/new").ok();
        msb.words("stop two").ok();
        msb.words("cp box:/t/a two:/b").ok();
        assert_eq!(msb.json(["inspect", "two"])["status"], "stopped");
        msb.words("start two").ok();
        let script = "cd /new; stat -c '%a %s %n' a e f holes; readlink l; cat /b; tail -c 4 holes; \
                      test $(stat -c %b holes) -lt 1000 && echo sparse; ls -A";
        assert_eq!(
            msb.run(["exec", "two", "--", "sh", "-c", script]).line(),
            "755 2 a\n755 4096 e\n644 2 f\n644 3221225476 holes\na\n1\nend\nsparse\na\ne\nf\nholes\nl"
                .replace("4096", &size_of_e(&msb))
        );
        // In one sandbox, and never a file onto itself.
        msb.words("cp box:/f box:/t").ok();
        assert_eq!(msb.words("exec box -- cat /t/f").line(), "f");
        let gave = msb.words("cp box:/f box:/f");
        assert!(gave.stderr.contains("the source is the target"), "{gave:?}");
        assert_eq!(msb.words("exec box -- cat /f").line(), "f");
        let gave = msb.words("cp box:/nothing two:/x");
        assert!(gave.stderr.contains("/nothing"), "{gave:?}");
        assert_eq!(msb.words("exec two -- ls /x").code, 2);
    }
}

/// Size of an empty directory there, which depends on the file system.
fn size_of_e(msb: &Msb) -> String {
    msb.words("exec two -- stat -c %s /new/e").line()
}

/// Bytes of a file that takes longer to be copied than a process takes to be killed.
const LARGE: u64 = 300 << 20;

#[test]
fn a_copy_that_is_killed_leaves_no_half_of_a_file() {
    for msb in Msb::each() {
        boxed(&msb, &format!("head -c {LARGE} /dev/zero > /big; mkdir /in"));
        let out = msb.scratch().join("out");
        fs::create_dir(&out).unwrap();
        msb.chown(&out);
        let is_whole = |path: &Path| fs::metadata(path).map_or(true, |meta| meta.len() == LARGE);
        let mut child = msb.spawn(["cp", "box:/big", "out/big"]);
        eventually("the copy begins", || fs::read_dir(&out).unwrap().count() > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_whole(&out.join("big")), "{:?}", fs::metadata(out.join("big")));
        // Into a sandbox.
        let file = msb.file("large", "");
        fs::File::options().write(true).open(&file).unwrap().set_len(0).unwrap();
        fs::write(&file, vec![b'x'; LARGE as usize]).unwrap();
        let wait = "while test -z \"$(ls -A /in)\"; do :; done";
        let mut waiting = msb.command(["exec", "box", "--", "sh", "-c", wait]);
        let mut waiting = waiting.stdout(Stdio::null()).spawn().unwrap();
        let mut child = msb.spawn(["cp", "large", "box:/in/large"]);
        waiting.wait().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let script = "test ! -e /in/large || stat -c %s /in/large";
        let size = msb.run(["exec", "box", "--", "sh", "-c", script]).line();
        assert!(size.is_empty() || size == LARGE.to_string(), "{size}");
    }
}
