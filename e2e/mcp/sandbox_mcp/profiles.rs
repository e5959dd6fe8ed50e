//! Profiles of config.toml: what a sandbox of that name has.

use super::{SandboxMcpClient, write_config};
use msb_e2e::{Msb, skip};
use serde_json::json;

#[test]
fn a_profile_gives_a_sandbox_of_its_name_its_size() {
    for msb in Msb::each() {
        write_config(
            &msb,
            "[profile.big]\ncpus = 1\nmemory = '256M'\n[profile.small]\nmemory = '128M'\n",
        );
        let mut mcp = SandboxMcpClient::open(&msb);
        assert_eq!(mcp.run_in("big", "echo in"), "in");
        mcp.run_in("small", "true");
        mcp.run("true");
        let status = mcp.masked("status", json!({}));
        let line = |name: &str| {
            let is_it = |line: &&str| line.split_whitespace().next() == Some(name);
            status.lines().find(is_it).unwrap_or_else(|| panic!("no {name}: {status}")).to_owned()
        };
        assert!(line("big").contains("  1cpu/256M  "), "{status}");
        assert!(line("small").contains("  2cpu/128M  "), "{status}");
        assert!(line("default").contains("  2cpu/512M  "), "{status}");
        assert!(status.lines().any(|line| line.starts_with("Profiles:")), "{status}");
        // It is so, and not only said.
        let big = msb.json(["inspect", "big"]).to_string();
        assert!(big.contains("268435456"), "{big}");
        // More than it may have is refused it.
        let hog = "python3 -c 'x = bytearray(400 << 20); print(len(x))' 2> /dev/null";
        let said = mcp.run_in("big", hog);
        assert!(!said.contains("419430400"), "{said}");
        assert_eq!(mcp.run(hog), "419430400");
    }
}

#[test]
fn a_profile_that_cannot_be_had_is_an_honest_error() {
    let Some(msb) = Msb::as_user() else {
        return skip("there is no user to test as");
    };
    let has_kvm = msb.user_command("/usr/bin/test").args(["-w", "/dev/kvm"]).status();
    if has_kvm.is_ok_and(|status| status.success()) {
        return skip("this user may make virtual machines");
    }
    write_config(&msb, "[profile.vm]\nvirtualization = true\n");
    let mut mcp = SandboxMcpClient::open(&msb);
    let said = mcp.says("exec", json!({"command": "echo in", "sandbox": "vm"}));
    assert!(said.starts_with("Error") && said.to_lowercase().contains("kvm"), "{said}");
    assert_eq!(msb.words("ls -q").line(), "", "not a weaker one");
    assert_eq!(mcp.run("echo in"), "in");
}
