//! `install`, with a package tool of the test's own in place of Alpine's.

use super::{SandboxMcpClient, untimed};
use msb_e2e::Msb;
use msb_e2e::images::Image;
use msb_e2e::tar::Entry;
use serde_json::json;

/// Notes each of its arguments in a line, and does as a file says.
const APK: &str = "#!/bin/sh\nprintf '%s\\n' \"$@\" > /arguments\n[ ! -e /does ] || . /does\n";

/// A mcp where an image of this name is one that is called Alpine.
fn with_alpine(msb: &Msb, name: &str) -> SandboxMcpClient {
    let alpine = Image::busybox().entries([
        Entry::directory("sbin"),
        Entry::program("sbin/apk", APK.as_bytes().to_vec()),
        Entry::file("etc/alpine-release", "3.22.0\n"),
    ]);
    let alpine = alpine.config(&json!({"Env": ["PATH=/bin:/usr/bin:/sbin"]})).layout();
    let layout = alpine.path().to_str().expect("a path of ours");
    msb.run(["load", "-q", "-i", layout, "-t", name]).ok();
    msb.write_config("");
    SandboxMcpClient::open(msb)
}

#[test]
fn packages_are_installed_and_the_end_of_the_output_is_shown() {
    for msb in Msb::each() {
        let mut mcp = with_alpine(&msb, "mcp-dev");
        let said = mcp.says("install", json!({"packages": "curl git>=2.0 so:lib.so.1"}));
        assert_eq!(untimed(&said), "Installed curl git>=2.0 so:lib.so.1");
        let arguments = mcp.run("cat /arguments");
        assert_eq!(arguments, "add\n--no-cache\ncurl\ngit>=2.0\nso:lib.so.1");
        let does = "echo fetch; for i in 1 2 3 4 5 6; do echo \"($i/6) Installing p$i (1-r0)\"; done; \
                    echo Executing trigger; echo 'OK: 9 MiB in 30 packages'";
        mcp.says("write_file", json!({"path": "/does", "content": does}));
        let said = mcp.says("install", json!({"packages": "p6"}));
        let last: Vec<String> = (3..7).map(|i| format!("({i}/6) Installing p{i} (1-r0)")).collect();
        assert_eq!(untimed(&said), format!("{}\nOK: 9 MiB in 30 packages", last.join("\n")));
        let does = "echo 'ERROR: unable to select packages' >&2; exit 1";
        mcp.says("write_file", json!({"path": "/does", "content": does}));
        let said = mcp.masked("install", json!({"packages": "nosuch"}));
        let said = said.replace("\n\n", "\n");
        assert_eq!(said, "Error: ERROR: unable to select packages\n(Nms)");
        let history = mcp.says("history", json!({"limit": 1}));
        assert!(history.contains("[exit:1]") && history.contains("nosuch"), "{history}");
    }
}

/// The original handed this text to a shell.
#[test]
fn packages_are_names_and_no_commands() {
    let msb = Msb::new();
    let mut mcp = with_alpine(&msb, "mcp-dev");
    for packages in [
        "; touch /workspace/pwned",
        "curl && touch /workspace/pwned",
        "curl | tee /workspace/pwned",
        "$(touch /workspace/pwned)",
        "`touch /workspace/pwned`",
        "curl\ntouch /workspace/pwned",
        "curl > /workspace/pwned",
        "curl' ; touch /workspace/pwned '",
        "*",
        "--evil",
        "curl --root=/workspace --evil",
        "-X http://127.0.0.1/evil curl",
        "--allow-untrusted /workspace/x.apk",
    ] {
        mcp.run("rm -f /arguments");
        mcp.says("install", json!({"packages": packages}));
        assert_eq!(mcp.run("ls -A /workspace"), "", "{packages}");
        // Refused, or told apart from what is an option.
        let arguments = mcp.run("cat /arguments 2> /dev/null; true");
        let options = arguments.lines().take_while(|argument| *argument != "--");
        let options: Vec<&str> = options.filter(|argument| argument.starts_with('-')).collect();
        assert!(options.iter().all(|it| *it == "--no-cache"), "{packages}: {arguments}");
    }
    let said = mcp.says("install", json!({"packages": " "}));
    assert!(said.starts_with("Error"), "{said}");
}

#[test]
fn sandboxes_start_from_an_image_of_their_own_where_it_can_be_built() {
    let msb = Msb::new();
    let mut mcp = with_alpine(&msb, "alpine:3.22");
    assert_eq!(mcp.run("cat /etc/alpine-release"), "3.22.0");
    assert!(mcp.run("cat /arguments").contains("\npython3"));
    let status = mcp.says("status", json!({}));
    assert!(status.contains("\nImage:    mcp-dev\n"), "{status}");
    assert!(mcp.says("images", json!({})).contains("mcp-dev"));
    let said = mcp.says("spawn", json!({}));
    assert!(said.contains("\n  Image: mcp-dev\n"), "{said}");
    assert_eq!(mcp.run_in("default-child-0000", "cat /etc/alpine-release"), "3.22.0");
    let said = mcp.says("spawn", json!({"image": "mcp-dev"}));
    assert!(said.contains("\n  Image: mcp-dev\n"), "{said}");
    // A busybox as everything else is enough.
    assert_eq!(mcp.run("X=1; exit 3"), "[exit code 3]");
    assert_eq!(mcp.run("sleep 0.01 & echo here"), "here");
    let said = mcp.says("exec", json!({"command": "sleep 1000", "timeout": 0.5}));
    assert_eq!(untimed(&said), "[stderr] Timed out after 0.5s\n[exit code -1]");
    let bg = mcp.masked("bg", json!({"command": "sleep 1000", "name": "w"}));
    assert!(bg.starts_with("Started [w] PID N\n"), "{bg}");
    let killed = mcp.masked("kill", json!({"name": "w"}));
    assert!(killed.starts_with("Killed [w] PID N"), "{killed}");
}
