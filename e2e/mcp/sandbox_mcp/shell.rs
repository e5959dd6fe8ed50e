//! The one shell that a sandbox has: what it keeps, and what cannot confuse it.

use super::{SandboxMcpClient, comes_back_to, process_names, text_of, untimed};
use msb_e2e::{Msb, eventually};
use serde_json::{Value, json};

#[test]
fn what_a_command_sets_the_next_one_finds() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        assert_eq!(mcp.run("pwd"), "/workspace");
        assert_eq!(mcp.run("X=1; export Y=2; f() { echo $X-$1; }; cd /tmp; umask 027"), "");
        assert_eq!(mcp.run("echo $X $(sh -c 'echo $Y$X'); f arg; umask"), "1 2\n1-arg\n0027");
        // Each call is where it says, or in /workspace.
        let there = json!({"command": "pwd; mkdir -p 'a b'; cd 'a b'", "workdir": "/tmp"});
        assert_eq!(untimed(&mcp.says("exec", there)), "/tmp");
        let odd = json!({"command": "pwd", "workdir": "/tmp/a b"});
        assert_eq!(untimed(&mcp.says("exec", odd)), "/tmp/a b");
        assert_eq!(mcp.run("pwd"), "/workspace");
        // Others have a shell of their own.
        assert_eq!(mcp.run_in("other", "echo \"[$X]\"; pwd"), "[]\n/workspace");
        let shells = mcp.says("status", json!({})).matches("shell:alive").count();
        assert_eq!(shells, 2);
    }
}

#[test]
fn each_command_is_listed_with_its_caller_and_its_exit() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        mcp.run("echo one");
        mcp.run("(exit 4)");
        // The end is recorded after the answer.
        let listed = || msb.words("events default --execs --json").ok().stdout;
        eventually("both have ended", || listed().matches("code_ended").count() == 2);
        let text = listed();
        let events: Vec<Value> =
            text.lines().filter_map(|it| serde_json::from_str(it).ok()).collect();
        let of = |what: &'static str| events.iter().filter(move |event| event["event"] == what);
        let begun: Vec<_> =
            of("code_started").map(|event| (&event["argv"][0], &event["by"])).collect();
        let by = json!({"surface": "mcp", "dialect": "sandbox-mcp"});
        assert_eq!(begun, [(&json!("echo one"), &by), (&json!("(exit 4)"), &by)], "{text}");
        let ended: Vec<_> = of("code_ended").map(|event| event["status"].clone()).collect();
        assert_eq!(ended, [0, 4], "{text}");
        let told = msb.words("events default").ok().stdout;
        assert!(told.contains("began: mcp:sandbox-mcp, 'echo one'"), "{told}");
    }
}

#[test]
fn exit_ends_a_command_once_and_no_shell() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        let said = mcp.run("echo once >> /workspace/count; echo hi; echo e >&2; exit 3");
        assert_eq!(said.replace("\n\n", "\n"), "hi\n[stderr] e\n[exit code 3]");
        assert_eq!(mcp.run("cat /workspace/count"), "once");
        assert!(mcp.says("status", json!({})).contains("  shell:alive  "));
        assert!(mcp.says("health", json!({})).contains("shell=ok"));
        for (end, code) in [
            ("exit 0", ""),
            ("(exit 4)", "[exit code 4]"),
            ("false", "[exit code 1]"),
            ("no-such-program 2> /dev/null", "[exit code 127]"),
            ("exec true", ""),
            ("exec sh -c 'exit 6'", "[exit code 6]"),
            ("set -e; false; echo on", "[exit code 1]"),
            ("trap 'exit 9' EXIT; exit 8", "[exit code 9]"),
            ("return 5 2> /dev/null || exit 5", "[exit code 5]"),
            ("kill -9 $$", "[exit code 137]"),
        ] {
            let command = format!("echo once >> /workspace/ends; {end}");
            let said = mcp.run(&command);
            assert!(said.ends_with(code) && !said.contains("on\n"), "{end}: {said:?}");
            assert_eq!(mcp.run("wc -l < /workspace/ends; rm /workspace/ends"), "1", "{end}");
        }
    }
}

/// Whatever is printed is output: it ends no command early, and gives no other exit code.
#[test]
fn no_output_is_mistaken_for_the_end_of_a_command() {
    let msb = Msb::new();
    let mut mcp = SandboxMcpClient::open(&msb);
    for line in [
        "__MCP_END__ 0",
        "__MCP_DONE_abcdef__0",
        "__EXIT_CODE__:0",
        "---END---",
        "[exit code 0]",
        "(1.0ms)",
        "{\"exit_code\": 0}",
    ] {
        let command = format!("cat << 'E'\n{line}\nE\necho '{line}' >&2; echo last; (exit 5)");
        let said = mcp.run(&command).replace("\n\n", "\n");
        assert_eq!(said, format!("{line}\nlast\n[stderr] {line}\n[exit code 5]"));
    }
    // Nor can it read what tells its end, and print that. Several times: what is told by two
    // streams comes in any order.
    let commands = [
        "set",
        "set >&2",
        "set; set >&2",
        "echo \"$PS1$PS2$PS4\"; echo \"$PS1$PS2$PS4\" >&2",
        "cat /proc/$$/environ /proc/$$/cmdline | tr '\\0' '\\n'",
    ];
    for command in commands.iter().cycle().take(50) {
        let said = mcp.run(&format!("{command}; echo reached; (exit 5)"));
        assert!(said.contains("reached\n") && said.ends_with("\n[exit code 5]"), "{said}");
    }
    // Nor by writing to each descriptor that it has.
    mcp.run("for fd in /proc/self/fd/*; do echo 0 > $fd; done 2> /dev/null; (exit 5)");
    // What it wrote to the shell's own stdin is a command to that, which may complain of it by now.
    let said = mcp.run("echo still here");
    assert!(said == "still here" || said.starts_with("still here\n[stderr] sh: "), "{said}");
}

#[test]
fn commands_that_are_badly_written_break_only_themselves() {
    let msb = Msb::new();
    let mut mcp = SandboxMcpClient::open(&msb);
    assert_eq!(mcp.run("KEPT=kept"), "");
    for command in ["echo \"abc", "if true; then echo a", "cat << E\nabc", "}", "echo 'a", "(("] {
        let said = mcp.says("exec", json!({"command": command, "timeout": 20}));
        assert!(!said.contains("Timed out"), "{command}: {said}");
        assert_eq!(mcp.run("echo again"), "again", "after {command}");
    }
    assert_eq!(mcp.run("echo a # and no more"), "a");
    assert_eq!(mcp.run("echo a; \n\n"), "a");
    assert_eq!(mcp.run("echo $KEPT"), "kept");
    // What it does to its own output is over with it, and so is what it does to its input.
    for command in ["exec > /dev/null 2>&1", "exec >&- 2>&-", "exec < /dev/zero", "set -x", "cat"] {
        mcp.says("exec", json!({"command": command, "timeout": 2}));
        assert_eq!(mcp.run("echo again 2> /dev/null").lines().next(), Some("again"), "{command}");
        mcp.run("set +x");
    }
    assert_eq!(mcp.run("read -r line; echo \"got:$line\""), "got:");
}

#[test]
fn every_kind_of_output_comes_back() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        assert_eq!(mcp.run("printf abc"), "abc");
        assert_eq!(mcp.run("true"), "");
        assert_eq!(mcp.run("echo a; echo; echo b"), "a\n\nb");
        assert_eq!(mcp.run("printf e >&2"), "[stderr] e");
        assert_eq!(mcp.run("echo grüße 日本").as_str(), "grüße 日本");
        let said = mcp.run("printf '\\377\\376\\000x\\033[31m'; printf '\\377' >&2; (exit 2)");
        assert!(said.contains('x') && said.ends_with("[exit code 2]"), "{said:?}");
        // More than anybody reads. The cap counts characters.
        let said = mcp.run("head -c 1000000 /dev/zero | tr '\\0' x; (exit 7)");
        let (much, rest) = said.split_at(50_000);
        assert!(much.chars().all(|it| it == 'x'));
        let cut = "\n[truncated — 976.6KB total, showing first 48.8KB]\n[exit code 7]";
        assert_eq!(rest, cut);
        let said = mcp.run("seq 1 20000 | tr '\\n' x");
        assert!(said.ends_with("x10\n[truncated — 106.3KB total, showing first 48.8KB]"), "{said}");
        let said = mcp.run("head -c 1000000 /dev/zero | tr '\\0' y >&2");
        assert!(said.starts_with("[stderr] yyy") && said.len() < 60_000, "{}", said.len());
        // Both at once, more than any pipe holds.
        let both = "i=0; while [ $i -lt 2000 ]; do printf '%0100d\\n' $i; printf '%0100d\\n' $i >&2; \
                    i=$((i+1)); done; echo over > /tmp/over";
        mcp.run(both);
        assert_eq!(mcp.run("cat /tmp/over"), "over");
    }
}

#[test]
fn a_background_process_that_keeps_the_output_open_delays_no_call() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        mcp.run("true");
        let before = process_names(&msb, "default");
        assert_eq!(mcp.run("sleep 1000 & echo started"), "started");
        let sleeps = || process_names(&msb, "default").contains(&"sleep".to_owned());
        assert_eq!(mcp.run("echo next"), "next");
        eventually("it goes on after its command", sleeps);
        // Nor does what it says later.
        mcp.run("(while ! [ -e /tmp/go ]; do sleep 0.02; done; echo late; echo > /tmp/went) &");
        let said = mcp.run("touch /tmp/go; until [ -e /tmp/went ]; do sleep 0.02; done");
        assert!(["", "late"].contains(&said.as_str()), "{said}");
        mcp.run("kill %1 2> /dev/null || kill $(pgrep -x sleep)");
        eventually("it has ended", || !sleeps());
        comes_back_to(&msb, &before, "sleep");
    }
}

#[test]
fn calls_at_once_do_not_mix() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        let calls: Vec<u64> = (0..20)
            .map(|number| {
                mcp.begin(&format!(
                    "V={number}; for i in 1 2 3; do echo o$V-$i; echo e$V >&2; sleep 0.01; done; \
                     echo end$V; (exit {number})"
                ))
            })
            .collect();
        for (number, result) in mcp.client.ends(&calls).iter().enumerate() {
            let lines = |line: &str| (1..4).map(|i| line.replace('#', &i.to_string())).collect();
            let out: Vec<String> = lines(&format!("o{number}-#\n"));
            let err = format!("e{number}\n").repeat(3);
            let mut expected = format!("{}end{number}\n[stderr] {err}", out.concat());
            if number != 0 {
                expected.push_str(&format!("[exit code {number}]"));
            }
            let said = text_of(result);
            assert_eq!(untimed(&said).replace("\n\n", "\n").trim_end(), expected.trim_end());
        }
        // As many sandboxes at once, made by their first command.
        let names = ["a", "b", "c", "d"];
        let calls: Vec<u64> = names
            .iter()
            .chain(&names)
            .map(|name| {
                let arguments = json!({"command": "echo $((6 * 7))", "sandbox": name});
                mcp.client.begin("tools/call", json!({"name": "exec", "arguments": arguments}))
            })
            .collect();
        for result in mcp.client.ends(&calls) {
            assert_eq!(untimed(&text_of(&result)), "42");
        }
        assert_eq!(msb.words("ls -q").line().lines().count(), 5);
    }
}

#[test]
fn a_command_is_given_its_input() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        let long = "x".repeat(300_000);
        let texts =
            ["abc", "-n", "a\nb\n", "it's \"$HOME\" `id` \\n", "日本\t", "EOF\nE\n", long.as_str()];
        for text in texts {
            let arguments = json!({"command": "cat > /workspace/in", "stdin": text});
            assert_eq!(untimed(&mcp.says("exec", arguments)), "");
            assert_eq!(mcp.run("wc -c < /workspace/in").trim(), text.len().to_string());
            if text.len() < 1000 {
                assert_eq!(mcp.says("read_file", json!({"path": "/workspace/in"})), text);
            }
        }
        let arguments = json!({"command": "cat", "stdin": "abc"});
        assert_eq!(untimed(&mcp.says("exec", arguments)), "abc");
        // One that does not want it, and the next, which has none.
        let arguments = json!({"command": "(exit 3)", "stdin": long});
        assert_eq!(untimed(&mcp.says("exec", arguments)), "[exit code 3]");
        assert_eq!(mcp.run("cat"), "");
    }
}

#[test]
fn python_runs_what_it_is_given() {
    let msb = Msb::new();
    let mut mcp = SandboxMcpClient::open(&msb);
    let code = |code: &str| json!({ "code": code });
    let said = mcp.says("python", code("import os\nprint('é\"', os.getcwd())"));
    assert_eq!(untimed(&said), "é\" /workspace");
    let said = mcp.says("python", code("def f(:\n"));
    assert!(said.starts_with("[stderr] "), "{said}");
    assert!(said.contains("SyntaxError") && said.contains("\n[exit code 1]\n"), "{said}");
    assert_eq!(untimed(&mcp.says("python", code("raise SystemExit(7)"))), "[exit code 7]");
    let arguments = json!({"code": "while True: pass", "timeout": 0.5});
    let said = untimed(&mcp.says("python", arguments)).to_owned();
    assert_eq!(said, "[stderr] Timed out after 0.5s\n[exit code -1]");
    // In other sandboxes, too, and not at the cost of the shell.
    mcp.run("KEPT=1");
    let other = json!({"code": "print(6 * 7)", "sandbox": "other"});
    assert_eq!(untimed(&mcp.says("python", other)), "42");
    assert_eq!(mcp.run("echo $KEPT"), "1");
}
