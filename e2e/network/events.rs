//! Reports about flows: events, the table of open flows, and rules that change at run time.

use crate::testnet::TestNet;
use msb_e2e::{ends, eventually};
use std::io::{BufRead, BufReader};

#[test]
fn every_decision_is_recorded_with_its_rule() {
    for user in TestNet::users() {
        let flags = ["--net-rule", "deny@evil.example.net", "--net-rule", "deny@203.0.113.19"];
        user.lasting("net", &flags);
        let script = "curl -sS http://web.example.com/ >/dev/null; \
                      curl -s http://evil.example.net/; curl -s http://203.0.113.19/; \
                      curl -s http://10.9.9.9/; true";
        user.within("net", script).ok();
        eventually("the flow has ended", || !user.events("net", "ended").is_empty());
        let decided = |word: &str, kind: &str| {
            let events = user.told("net", word);
            let found = events.iter().find(|event| event["decided"]["kind"] == kind).cloned();
            found.unwrap_or_else(|| panic!("{word} {kind}: {events:#?}"))["decided"].clone()
        };
        let web = decided("203.0.113.10", "tcp");
        assert_eq!(web["decision"], "allow");
        assert_eq!(web["direction"], "egress");
        assert_eq!(web["name"], "web.example.com");
        assert_eq!(web["address"], "203.0.113.10");
        assert_eq!(web["port"], 80);
        assert_eq!(web["rule"], "allow@public");
        let evil = decided("evil.example.net", "dns");
        assert_eq!(
            (&evil["decision"], &evil["rule"]),
            (&"deny".into(), &"deny@evil.example.net".into())
        );
        let address = decided("203.0.113.19", "tcp");
        assert_eq!(
            (&address["decision"], &address["rule"]),
            (&"deny".into(), &"deny@203.0.113.19".into())
        );
        let private = decided("10.9.9.9", "tcp");
        assert_eq!((&private["decision"], &private["rule"]), (&"deny".into(), &"default".into()));
        let ended = user.events("net", "ended");
        let ended = ended.iter().find(|event| event["ended"]["flow"] == web["flow"]).unwrap();
        assert!(ended["ended"]["sent"].as_u64().unwrap() > 50, "{ended}");
        assert!(ended["ended"]["received"].as_u64().unwrap() > 100, "{ended}");
        // For users.
        let told = user.run(["events", "--net", "net"]).ok().stdout;
        let line = told.lines().find(|line| line.contains("web.example.com (203.0.113.10)"));
        assert!(line.is_some_and(|line| line.ends_with("by allow@public")), "{told}");
        let told = user.run(["events", "--net", "--denied", "net"]).ok().stdout;
        assert!(!told.contains("allow  ") && told.contains("deny@evil.example.net"), "{told}");
        for line in [
            "deny   dns  evil.example.net  by deny@evil.example.net; \
             `--net-rule allow@evil.example.net` allows it\n",
            "deny   tcp  10.9.9.9 port 80  by default; `--net-rule allow@10.9.9.9:tcp:80` allows it\n",
        ] {
            assert!(told.contains(line), "{line}{told}");
        }
    }
}

#[test]
fn a_run_tells_what_was_refused_and_the_flag_that_allows_it() {
    for user in TestNet::users() {
        let run = |flags: &[&str], script: &str| {
            let args = [&["run"], flags, &["host", "--", "sh", "-c", script]].concat();
            ends(user.command(args).spawn().expect("msb can be executed"))
        };
        let flags = ["--net-rule", "deny@evil.example.net"];
        let note = "note: the network policy refused evil.example.net; \
                    `--net-rule allow@evil.example.net` allows it\n";
        let script = "curl -s http://evil.example.net/ >/dev/null; exit 3";
        let gave = run(&flags, script);
        assert_eq!((gave.code, gave.stderr.as_str()), (3, note), "{gave:?}");
        // As it was told, before the others.
        let allowed = [&["--net-rule", "allow@evil.example.net"][..], &flags].concat();
        let gave = run(&allowed, script);
        assert_eq!((gave.code, gave.stderr.as_str()), (3, ""), "{gave:?}");
        let quiet = [&["-q"][..], &flags].concat();
        let gave = run(&quiet, script);
        assert_eq!((gave.code, gave.stderr.as_str()), (3, ""), "{gave:?}");
        let script = "for n in 1 2 3 4 5; do curl -s http://n$n.evil.example/; done; \
                      curl -s http://10.9.9.9/; true";
        let gave = run(&["--net-default", "deny"], script).ok();
        let text = "refused n1.evil.example, n2.evil.example, n3.evil.example and 3 more; \
                    `--net-rule allow@n1.evil.example --net-rule allow@n2.evil.example --net-rule \
                    allow@n3.evil.example` allows it\n";
        assert!(gave.stderr.contains(text), "{gave:?}");
        assert_eq!(gave.stderr.lines().count(), 1, "{gave:?}");
    }
}

#[test]
fn events_can_be_followed() {
    for user in TestNet::users() {
        user.lasting("net", &[]);
        let mut follow = user.command(["events", "--net", "-f", "--json", "net"]);
        let mut follow = follow.spawn().unwrap();
        let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
        user.within("net", "curl -s http://10.9.9.9/; true").ok();
        let line = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("10.9.9.9")));
        assert!(line.unwrap().unwrap().contains("\"deny\""));
        user.run(["stop", "net"]).ok();
        assert!(lines.all(|line| line.is_ok()), "it ends with the sandbox");
        assert!(follow.wait().unwrap().success());
        // They are still there.
        user.told("net", "10.9.9.9");
    }
}

#[test]
fn the_table_shows_what_is_open() {
    for user in TestNet::users() {
        user.lasting("net", &["-p", "8000"]);
        let script = "exec /usr/bin/python3 /world/streams.py wait web.example.com 7000";
        let mut waits = user.command(["exec", "net", "--", "sh", "-c", script]);
        let mut waits = waits.spawn().unwrap();
        let mut lines = BufReader::new(waits.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "open");
        let table = user.json(["net", "--json", "net"]);
        let flows = table["flows"].as_array().unwrap();
        let flow = flows.iter().find(|flow| flow["verdict"]["port"] == 7000).unwrap();
        assert_eq!(flow["verdict"]["name"], "web.example.com", "{table}");
        assert_eq!(flow["verdict"]["rule"], "allow@public", "{table}");
        assert_eq!((&flow["sent"], &flow["received"]), (&1.into(), &1.into()), "{table}");
        assert_eq!(table["policy"]["default"], "deny", "{table}");
        assert_eq!(table["ports"].as_array().unwrap().len(), 1, "{table}");
        let told = user.run(["net", "net"]).ok().stdout;
        for word in ["rule  allow@public", "port  127.0.0.1:", "web.example.com (203.0.113.10)"] {
            assert!(told.contains(word), "{told}");
        }
        waits.kill().unwrap();
        waits.wait().unwrap();
    }
}

#[test]
fn rules_change_while_it_runs() {
    for user in TestNet::users() {
        user.lasting("net", &["--net-default", "deny", "--net-rule", "allow@203.0.113.12"]);
        let probes = ["tcp web.example.com 80", "tcp 203.0.113.12 80", "tcp 10.9.9.10 80"];
        // A rule for an address lets no DNS query out.
        assert_eq!(user.probe_in("net", &probes), ["unknown", "open", "refused"]);
        let rules = user.run(["net", "net", "--allow", "web.example.com"]).line();
        assert_eq!(rules, "allow@web.example.com\nallow@203.0.113.12\ndeny everything else");
        assert_eq!(user.probe_in("net", &probes), ["open", "open", "refused"]);
        user.run(["net", "net", "--allow", "10.9.9.10:tcp:80", "--deny", "203.0.113.12"]).ok();
        assert_eq!(user.probe_in("net", &probes), ["open", "refused", "open"]);
        // Until it stops.
        user.run(["restart", "net"]).ok();
        assert_eq!(user.probe_in("net", &probes), ["unknown", "open", "refused"]);
        let wrong = user.run(["net", "net", "--allow", "allow@web.example.com"]);
        assert_ne!(wrong.code, 0);
    }
}

#[test]
fn open_flows_that_become_denied_are_ended() {
    for user in TestNet::users() {
        user.lasting("net", &[]);
        let script = "exec /usr/bin/python3 /world/streams.py wait web.example.com 7000";
        let mut waits = user.command(["exec", "net", "--", "sh", "-c", script]);
        let mut waits = waits.spawn().unwrap();
        let mut lines = BufReader::new(waits.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "open");
        user.run(["net", "net", "--deny", "web.example.com"]).ok();
        assert_eq!(lines.next().unwrap().unwrap(), "closed");
        waits.wait().unwrap();
        assert_eq!(user.probe_in("net", &["tcp 203.0.113.12 80"]), ["open"]);
    }
}

#[test]
fn rules_for_requests_change_while_it_runs() {
    for user in TestNet::users() {
        user.lasting("net", &["--net-rule", "allow@api.example.com:http"]);
        let script = "for path in /v1 /v2; do curl -s -o /dev/null -w '%{http_code}\\n' \
                      https://api.example.com$path; done";
        assert_eq!(user.within("net", script).line(), "200\n200");
        user.run(["net", "net", "--deny", "api.example.com:http:GET:/v2"]).ok();
        assert_eq!(user.within("net", script).line(), "200\n403");
    }
}

/// No client inside would trust the certificate of the gateway.
#[test]
fn a_rule_for_requests_cannot_come_too_late() {
    for user in TestNet::users() {
        user.lasting("net", &[]);
        let gave = user.run(["net", "net", "--deny", "api.example.com:http:GET:/v2"]);
        assert_ne!(gave.code, 0, "{gave:#?}");
        assert!(gave.stderr.contains("hint: "), "{gave:#?}");
        let script = "curl -s --cacert /world/ca.pem -o /dev/null -w '%{http_code}\\n' \
                      https://api.example.com/v2";
        assert_eq!(user.within("net", script).line(), "200");
    }
}

#[test]
fn a_sandbox_without_a_network_has_none_to_show() {
    for user in TestNet::users() {
        user.lasting("quiet", &["--no-net"]);
        for args in [
            &["net", "quiet"][..],
            &["net", "quiet", "--allow", "web.example.com"],
            &["port", "add", "quiet", "8080:80"],
        ] {
            let gave = user.run(args);
            assert_ne!(gave.code, 0, "{args:?}: {gave:#?}");
            assert!(gave.stderr.contains("network"), "{args:?}: {gave:#?}");
        }
        assert_eq!(user.run(["events", "--net", "quiet"]).line(), "");
    }
}
