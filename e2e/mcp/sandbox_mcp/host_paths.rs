//! Files of the host: only those that a client may name. Attack 41b.

use super::SandboxMcpClient;
use msb_e2e::{Msb, eventually};
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

fn text(path: &std::path::Path) -> &str {
    path.to_str().expect("a path of ours")
}

#[test]
fn files_and_directories_are_copied_both_ways() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        let file = msb.file("in/a 'b'.txt", "hello");
        msb.file("in/deeper/-x", "below");
        let directory = msb.scratch().join("in");
        let said = mcp.masked("upload", json!({"local_path": text(&file)}));
        let to = "/workspace/a 'b'.txt";
        assert_eq!(said, format!("Uploaded {} -> {to} (5B, Nms)", file.display()));
        assert_eq!(mcp.says("read_file", json!({"path": to})), "hello");
        let all = json!({"local_path": text(&directory), "sandbox_path": "/workspace/up"});
        let said = mcp.masked("upload", all);
        let begin = format!("Uploaded {}/ -> /workspace/up (2 files, ", directory.display());
        assert!(said.starts_with(&begin) && said.ends_with("B tar, Nms)"), "{said}");
        assert_eq!(mcp.run("cd up; find . -type f | sort"), "./a 'b'.txt\n./deeper/-x");
        let out = msb.scratch().join("out.txt");
        let back = json!({"sandbox_path": to, "local_path": text(&out)});
        let said = mcp.masked("download", back);
        assert_eq!(said, format!("Downloaded {to} -> {} (5B, Nms)", out.display()));
        assert_eq!(fs::read_to_string(&out).expect("it is there"), "hello");
        let out = msb.scratch().join("out");
        let back = json!({"sandbox_path": "/workspace/up", "local_path": text(&out)});
        let said = mcp.masked("download", back);
        let begin = format!("Downloaded /workspace/up/ -> {}", out.display());
        assert!(said.starts_with(&begin) && said.ends_with("B tar, Nms)"), "{said}");
        assert_eq!(fs::read_to_string(out.join("deeper/-x")).expect("it is there"), "below");
        // What is not there.
        let gone = msb.scratch().join("none");
        let said = mcp.says("upload", json!({"local_path": text(&gone)}));
        assert_eq!(said, format!("Error: {} does not exist on host", gone.display()));
        let none = json!({"sandbox_path": "/none", "local_path": text(&gone)});
        let said = mcp.says("download", none);
        assert_eq!(said, "Error: /none does not exist in sandbox");
        assert!(!gone.exists());
    }
}

#[test]
fn a_directory_is_kept_in_step_until_it_is_told_to_stop() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        msb.file("src/f", "one");
        msb.file("src/.git/config", "secret");
        msb.file("src/node_modules/x", "much");
        let from = msb.scratch().join("src");
        let start = json!({"local_dir": text(&from), "sandbox_dir": "/workspace/s"});
        let said = mcp.says("sync_start", start);
        let job = &said["Sync started [".len()..said.find(']').expect("a job")].to_owned();
        let names = ".DS_Store, .git, .venv, __pycache__, node_modules, venv";
        let expected = format!(
            "Sync started [{job}]: {from} -> default:/workspace/s\nInitial sync: 1 files\n\
             Polling every 1.0s (ignoring {names})",
            from = from.display()
        );
        assert_eq!(said, expected);
        assert_eq!(super::mask(job), "sync-ID");
        assert_eq!(mcp.run("ls -A s"), "f");
        let status = mcp.says("status", json!({}));
        let line = format!(
            "\nSync jobs:\n  {job}: {} -> default:/workspace/s (1 files, running)",
            from.display()
        );
        assert!(status.contains(&line), "{status}");
        msb.file("src/g", "two");
        eventually("a new file is there", || mcp.run("cat s/g 2> /dev/null") == "two");
        fs::remove_file(from.join("f")).expect("it is there");
        eventually("one that is gone is gone", || mcp.run("ls -A s") == "g");
        let said = mcp.says("sync_stop", json!({"job_id": job}));
        let begin = format!("Stopped sync [{job}]: {} -> default:/workspace/s (", from.display());
        assert_eq!(said, format!("{begin}2 files synced total)"));
        msb.file("src/h", "three");
        assert!(!mcp.says("status", json!({})).contains("Sync jobs"));
        let said = mcp.says("sync_stop", json!({"job_id": job}));
        assert_eq!(said, format!("Error: no sync job '{job}'. Active: none"));
        assert_eq!(mcp.run("ls -A s"), "g");
        let said = mcp.says("sync_start", json!({"local_dir": text(&from.join("g"))}));
        assert_eq!(said, format!("Error: {} is not a directory", from.join("g").display()));
    }
}

#[test]
fn nothing_outside_what_is_allowed_is_read_or_written() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        mcp.run("echo from inside > f; mkdir d; echo from inside > d/canary");
        let outside: PathBuf = msb.scratch().with_extension("outside");
        fs::create_dir(&outside).expect("a directory");
        msb.chown(&outside);
        fs::write(outside.join("canary"), "of the host").expect("a file");
        msb.chown(&outside.join("canary"));
        symlink(&outside, msb.scratch().join("link")).expect("a link");
        symlink(outside.join("canary"), msb.scratch().join("file-link")).expect("a link");
        let name = outside.file_name().and_then(|it| it.to_str()).expect("a name");
        let ways = [
            text(&outside).to_owned(),
            format!("../{name}"),
            text(&msb.scratch().join("..").join(name)).to_owned(),
            text(&msb.scratch().join("link")).to_owned(),
            "link".to_owned(),
        ];
        for way in &ways {
            for path in [format!("{way}/canary"), way.clone()] {
                let said = mcp.says("upload", json!({"local_path": path}));
                assert!(said.starts_with("Error"), "upload {path}: {said}");
            }
            let said = mcp.says("sync_start", json!({"local_dir": way}));
            assert!(said.starts_with("Error"), "sync {way}: {said}");
            for (from, to) in [
                ("/workspace/f", format!("{way}/canary")),
                ("/workspace/f", format!("{way}/new")),
                ("/workspace/f", format!("{way}/new/deeper")),
                ("/workspace/d", way.clone()),
                ("/workspace/d", format!("{way}/new")),
            ] {
                let arguments = json!({"sandbox_path": from, "local_path": to});
                let said = mcp.says("download", arguments);
                assert!(said.starts_with("Error"), "download to {to}: {said}");
            }
        }
        let arguments = json!({"sandbox_path": "/workspace/f", "local_path": "file-link"});
        let said = mcp.says("download", arguments);
        assert!(said.starts_with("Error"), "{said}");
        for path in ["file-link", "/etc/passwd", "/proc/self/environ"] {
            let said = mcp.says("upload", json!({"local_path": path}));
            assert!(said.starts_with("Error"), "{path}: {said}");
        }
        assert_eq!(fs::read_to_string(outside.join("canary")).expect("a file"), "of the host");
        assert_eq!(fs::read_dir(&outside).expect("a directory").count(), 1);
        assert_eq!(mcp.run("find . -type f | sort"), "./d/canary\n./f");
        fs::remove_dir_all(&outside).expect("a directory");
    }
}

/// A link in the sandbox is not followed on the host, nor one on the host into it.
#[test]
fn links_lead_nowhere_else() {
    let msb = Msb::new();
    let mut mcp = SandboxMcpClient::open(&msb);
    let canary = msb.scratch().with_extension("canary");
    fs::write(&canary, "of the host").expect("a file");
    msb.file("tree/f", "x");
    symlink(&canary, msb.scratch().join("tree/link")).expect("a link");
    let tree = json!({"local_path": "tree", "sandbox_path": "/workspace/tree"});
    mcp.says("upload", tree.clone());
    assert_eq!(mcp.run("cat tree/link 2>&1 | grep -c 'of the host'"), "0\n[exit code 1]");
    let sync = json!({"local_dir": "tree", "sandbox_dir": "/workspace/sync"});
    mcp.says("sync_start", sync);
    assert_eq!(mcp.run("cat sync/link 2>&1 | grep -c 'of the host'"), "0\n[exit code 1]");
    // A tree of the sandbox with a link, and a file that would go through it.
    mcp.run(&format!("mkdir -p out; ln -s {} out/l; echo bad > out/x", canary.display()));
    mcp.says("download", json!({"sandbox_path": "/workspace/out", "local_path": "out"}));
    mcp.run("rm out/l; echo bad > out/l");
    mcp.says("download", json!({"sandbox_path": "/workspace/out", "local_path": "out"}));
    assert_eq!(fs::read_to_string(&canary).expect("a file"), "of the host");
    fs::remove_file(canary).expect("a file");
}
