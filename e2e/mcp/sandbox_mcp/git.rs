//! `git_clone`, from a server in the sandbox that wants a token.

use super::SandboxMcpClient;
use msb_e2e::Msb;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Only the tool under test gets it: the server knows its checksum.
const TOKEN: &str = "tok3n'of \"nobody$else";
const TOKEN_SUM: &str = "2fa5638bbc1ceeb8ea5483ca727379740a5b3895362c05012790d25ee4a0d185";

const SERVER: &str = include_str!("git_server.py");
const URL: &str = "http://127.0.0.1:8123/r.git";

/// A repository of two commits and two branches, and a server for it.
fn serve(mcp: &mut SandboxMcpClient) {
    let made = mcp.run(
        "set -e; mkdir -p /srv/git; git init -q --bare /srv/git/r.git; \
         git init -q /tmp/w; cd /tmp/w; git checkout -q -b trunk; \
         git config user.name a; git config user.email a@b; \
         echo 1 > f; git add f; git commit -qm first; \
         git checkout -q -b side; echo 3 > h; git add h; git commit -qm aside; \
         git checkout -q trunk; echo 2 > f; git commit -qam second; \
         git push -q /srv/git/r.git trunk side; \
         git -C /srv/git/r.git symbolic-ref HEAD refs/heads/trunk; \
         rm -rf /tmp/w",
    );
    assert_eq!(made, "");
    mcp.says("write_file", json!({"path": "/srv/server.py", "content": SERVER}));
    let command = format!("python3 /srv/server.py {TOKEN_SUM}");
    mcp.says("bg", json!({"command": command, "name": "git"}));
    let up = "until [ -e /tmp/serving ]; do sleep 0.02; done";
    assert_eq!(mcp.run(up), "", "{}", mcp.says("logs", json!({"name": "git"})));
}

/// What is said of a clone: where it came from, its log and its files.
#[track_caller]
fn cloned(mcp: &mut SandboxMcpClient, arguments: Value) -> (String, Vec<String>, String) {
    let said = mcp.masked("git_clone", arguments);
    let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
    assert!(lines.len() >= 4 && lines.last().is_some_and(|it| it == "(Nms)"), "{said}");
    let files = lines.remove(lines.len() - 2);
    let log = lines[1..lines.len() - 1].to_vec();
    (lines[0].clone(), log, files)
}

#[test]
fn a_repository_is_cloned_and_its_token_is_nowhere() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        serve(&mut mcp);
        let arguments = json!({"repo": URL, "token": TOKEN, "path": "/workspace/r"});
        let (head, log, files) = cloned(&mut mcp, arguments);
        assert_eq!(head, format!("Cloned {URL} -> /workspace/r"));
        assert_eq!(log.len(), 1, "shallow: {log:?}");
        assert!(log[0].ends_with(" second"), "{log:?}");
        assert_eq!(files, "1 files");
        assert_eq!(mcp.run("cat /workspace/r/f; git -C r rev-list --count HEAD"), "2\n1");
        let deep = json!({"repo": URL, "token": TOKEN, "path": "/workspace/it's deep",
            "shallow": false, "branch": "side"});
        let (_, log, files) = cloned(&mut mcp, deep);
        assert!(log[0].ends_with(" aside"), "{log:?}");
        assert_eq!(files, "2 files");
        assert_eq!(mcp.run("git -C \"it's deep\" rev-list --count HEAD"), "2");
        // Without it, or with another, nothing is cloned, and there is no prompt.
        for token in ["", "wrong-t0ken"] {
            let wrong = json!({"repo": URL, "token": token, "path": "/workspace/none"});
            let said = mcp.masked("git_clone", wrong);
            assert!(said.starts_with("Error cloning: ") && said.ends_with("\n(Nms)"), "{said}");
            assert!(!said.contains("wrong-t0ken"), "{said}");
        }
        // The server looked, too, while clients waited for it.
        assert_eq!(mcp.run("cat /tmp/looked"), "not in ps");
        assert!(!mcp.says("history", json!({"limit": 100})).contains("t0ken"));
        // Written so that this command does not hold it, which is kept, too.
        let files = "grep -rl -e 'tok[3]n' -e 'wrong-t[0]ken' /workspace /tmp /root /etc /home /var /run \
                     2> /dev/null; true";
        assert_eq!(mcp.run(files), "");
        assert!(!msb.words("logs default").ok().stdout.contains("ok3n"));
        drop(mcp);
        // Each part of it: quotes may have been written otherwise.
        for part in ["tok3n", "nobody$else", "wrong-t0ken"] {
            assert_eq!(holds(&msb.home(), part.as_bytes()), None::<String>, "{part}");
        }
    }
}

/// A file of the state directory that holds these bytes. Layers of images are older than that.
fn holds(directory: &Path, bytes: &[u8]) -> Option<String> {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let kind = entry.file_type().expect("a kind");
        let found = match () {
            () if kind.is_dir() => holds(&path, bytes),
            () if kind.is_file() => fs::read(&path)
                .is_ok_and(|content| content.windows(bytes.len()).any(|it| it == bytes))
                .then(|| path.display().to_string()),
            () => None,
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

#[test]
fn what_is_cloned_is_a_repository_and_nothing_else() {
    let msb = Msb::new();
    let mut mcp = SandboxMcpClient::open(&msb);
    serve(&mut mcp);
    let local = json!({"repo": "file:///srv/git/r.git", "path": "/workspace/l"});
    let (head, log, _) = cloned(&mut mcp, local.clone());
    assert_eq!(head, "Cloned file:///srv/git/r.git -> /workspace/l");
    assert!(log[0].ends_with(" second"), "{log:?}");
    // What is in the way is not touched.
    mcp.run("echo mine > l/f");
    mcp.says("git_clone", local.clone());
    mcp.says("git_clone", local);
    assert_eq!(mcp.run("cat l/f"), "mine");
    for (repo, branch, path) in [
        ("--upload-pack=touch /workspace/pwned", "", "/workspace/x"),
        ("-c core.sshCommand=id", "", "/workspace/x"),
        ("ext::sh -c touch% /workspace/pwned", "", "/workspace/x"),
        ("/srv/git/r.git; touch /workspace/pwned", "", "/workspace/x"),
        ("$(touch /workspace/pwned)", "", "/workspace/x"),
        ("/srv/git/r.git", "--upload-pack=touch /workspace/pwned", "/workspace/x"),
        ("/srv/git/r.git", "no-such-branch", "/workspace/x"),
        ("/srv/git/none.git", "", "/workspace/x"),
        ("", "", "/workspace/x"),
    ] {
        let said = mcp.says("git_clone", json!({"repo": repo, "branch": branch, "path": path}));
        assert!(said.starts_with("Error"), "{repo} {branch} {path}: {said}");
        assert_eq!(mcp.run("ls -A"), "l", "{repo} {branch} {path}");
    }
    mcp.says("git_clone", json!({"repo": "/srv/git/r.git", "path": "--bare"}));
    mcp.says("git_clone", json!({"repo": "/srv/git/r.git", "path": "a;touch /workspace/pwned"}));
    assert_eq!(mcp.run("ls -d pwned 2> /dev/null; true"), "");
}
