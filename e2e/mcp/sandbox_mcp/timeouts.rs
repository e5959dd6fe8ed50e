//! Commands that do not end by themselves.

use super::{SandboxMcpClient, comes_back_to, process_names, untimed};
use msb_e2e::{Msb, eventually};
use serde_json::json;

/// Whatever it has said until then; more may be told of how it was ended.
#[track_caller]
fn times_out(mcp: &mut SandboxMcpClient, command: &str) {
    let said = mcp.says("exec", json!({"command": command, "timeout": 0.5}));
    let told = said.rsplit_once("[stderr] ").map_or("", |(_, told)| untimed(told));
    let well = told.contains("Timed out after 0.5s") && told.ends_with("\n[exit code -1]");
    assert!(well, "{command}: {told}");
}

#[test]
fn a_command_is_over_at_its_limit_and_its_shell_goes_on() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        mcp.run("KEPT=kept; cd /tmp");
        let before = process_names(&msb, "default");
        let said = mcp.says("exec", json!({"command": "sleep 1000", "timeout": 0.5}));
        assert_eq!(untimed(&said), "[stderr] Timed out after 0.5s\n[exit code -1]");
        assert_eq!(mcp.run("echo $KEPT"), "kept", "the shell is the same");
        comes_back_to(&msb, &before, "sleep");
        // Several programs, and one that asks not to be interrupted.
        times_out(&mut mcp, "sleep 1001 | sleep 1002 | cat");
        times_out(&mut mcp, "sh -c \"trap '' TERM INT HUP; sleep 1003\"");
        times_out(&mut mcp, "(trap '' TERM INT HUP; sleep 1004; sleep 1005)");
        comes_back_to(&msb, &before, "a trap");
        assert_eq!(mcp.run("echo again"), "again");
        assert!(mcp.says("status", json!({})).contains("shell:alive"));
    }
}

/// The shell itself is what does not end.
#[test]
fn no_shell_outlives_its_limit() {
    for msb in Msb::each() {
        let mut mcp = SandboxMcpClient::open(&msb);
        mcp.run("true");
        let before = process_names(&msb, "default");
        for command in [
            "while :; do :; done",
            "trap '' TERM INT HUP; while :; do :; done",
            "trap '' TERM INT; echo x; while :; do sleep 0.1; done",
            "kill -STOP $$",
            "exec sleep 1000",
            "setsid sleep 1000",
        ] {
            times_out(&mut mcp, command);
            comes_back_to(&msb, &before, command);
            assert_eq!(mcp.run("echo again"), "again", "after {command}");
            comes_back_to(&msb, &before, command);
        }
        assert!(mcp.says("status", json!({})).contains("shell:alive"));
    }
}

/// What was printed until then may be told or not; what comes after it is no other's.
#[test]
fn output_of_a_command_that_timed_out_is_not_that_of_the_next() {
    let msb = Msb::new();
    let mut mcp = SandboxMcpClient::open(&msb);
    for command in ["yes", "yes >&2", "while :; do echo y; done"] {
        times_out(&mut mcp, command);
        assert_eq!(mcp.run("echo mine"), "mine", "after {command}");
    }
}

#[test]
fn a_cancelled_call_ends_its_command_and_not_the_shell() {
    let msb = Msb::new();
    let mut mcp = SandboxMcpClient::open(&msb);
    mcp.run("KEPT=kept");
    let call = mcp.begin("sleep 1000");
    let sleeps = || process_names(&msb, "default").contains(&"sleep".to_owned());
    eventually("the command runs", sleeps);
    mcp.client.cancel(call);
    eventually("it has ended", || !sleeps());
    assert_eq!(mcp.run("echo $KEPT"), "kept");
}

/// A call that waits for its turn is not over before it has had one.
#[test]
fn waiting_for_the_shell_costs_no_call_its_time() {
    let msb = Msb::new();
    let mut mcp = SandboxMcpClient::open(&msb);
    mcp.run("true");
    let first = mcp.begin("sleep 1; echo first");
    let arguments = json!({"command": "echo second", "timeout": 0.5});
    let params = json!({"name": "exec", "arguments": arguments});
    let second = mcp.client.begin("tools/call", params);
    let results = mcp.client.ends(&[first, second]);
    let said: Vec<String> = results.iter().map(super::text_of).collect();
    let said: Vec<&str> = said.iter().map(|it| untimed(it)).collect();
    assert_eq!(said, ["first", "second"]);
}
