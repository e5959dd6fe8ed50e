//! Rules by name: TLS and HTTP must show the host name that was allowed.

use crate::testnet::TestNet;

const FLAGS: [&str; 4] = ["--net-default", "deny", "--net-rule", "allow@shared.example.com"];

/// Attack 33.
#[test]
fn an_address_that_was_never_asked_for_is_refused() {
    for user in TestNet::users() {
        user.lasting("net", &FLAGS);
        let probes = ["tcp 203.0.113.18 443", "tcp 203.0.113.18 7000", "udp 203.0.113.18 7000"];
        assert_eq!(user.probe_in("net", &probes), ["refused"; 3]);
        assert_eq!(user.probe_in("net", &["name shared.example.com"]), ["203.0.113.18"]);
        assert_eq!(user.probe_in("net", &probes[1..]), ["open", "open"]);
        // Nor is its neighbour.
        let others = ["tcp 203.0.113.19 443", "tcp 203.0.113.17 443"];
        assert_eq!(user.probe_in("net", &others), ["refused"; 2]);
    }
}

/// Attack 34.
#[test]
fn tls_must_show_the_name_that_was_allowed() {
    for user in TestNet::users() {
        user.lasting("net", &FLAGS);
        let word = format!("/whom?{}", user.msb.uid());
        let script = "cd /world; python=/usr/bin/python3; getent hosts shared.example.com \
                      >/dev/null; \
                      $python web.py sni 203.0.113.18 443 shared.example.com; \
                      $python web.py sni 203.0.113.18 443 hidden.example.com; \
                      $python web.py sni 203.0.113.18 443 -; \
                      $python web.py sni 203.0.113.18 443 SHARED.example.com; \
                      $python web.py say 203.0.113.18 443 'GET / HTTP/1.0\\r\\n\\r\\n'; \
                      $python web.py say 203.0.113.18 443 'SSH-2.0-x\\r\\n'; \
                      $python web.py say 203.0.113.18 443 '\\x16\\x03\\x01\\x00\\x05hello'";
        let gave = user.within("net", script).ok();
        let lines: Vec<&str> = gave.stdout.lines().collect();
        assert_eq!(lines[0], "200 shared.example.com", "{gave:#?}");
        assert_eq!(lines[1..3], ["refused"; 2], "{gave:#?}");
        assert!(lines[3].starts_with("200 "), "{gave:#?}");
        assert!(lines[4].contains("403") || lines[4] == "refused", "{gave:#?}");
        assert_eq!(lines[lines.len() - 2..], ["refused"; 2], "{gave:#?}");
        let script = format!("curl -sS --cacert /world/ca.pem https://shared.example.com{word}");
        assert_eq!(user.within("net", &script).line(), "shared.example.com");
        let log = user.net.log("access");
        assert!(log.contains(&word), "{log}");
        user.told("net", "hidden.example.com");
    }
}

/// Attack 34.
#[test]
fn http_must_show_the_name_that_was_allowed() {
    for user in TestNet::users() {
        user.lasting("net", &FLAGS);
        let word = format!("/deny-{}", user.msb.uid());
        let script = format!(
            "cd /world; python=/usr/bin/python3; getent hosts shared.example.com >/dev/null; \
             $python web.py host 203.0.113.18 80 shared.example.com; \
             $python web.py host 203.0.113.18 80 hidden.example.com {word}; \
             $python web.py say 203.0.113.18 80 'GET {word} HTTP/1.0\\r\\n\\r\\n'; \
             $python web.py say 203.0.113.18 80 'hello {word}\\r\\n'; \
             $python web.py say 203.0.113.18 80 '\\x00\\x01\\x02'"
        );
        let gave = user.within("net", &script).ok();
        assert!(gave.stdout.starts_with("200 shared.example.com\n403 "), "{gave:#?}");
        // A page of ours says why; a real server would say 200 or 400.
        assert!(!gave.stdout.contains(" 400 ") && !gave.stdout.contains("nginx"), "{gave:#?}");
        let log = user.net.log("access");
        assert!(!log.contains(&word), "{log}");
    }
}

/// Attack 34: every way to name two hosts at once.
#[test]
fn a_request_cannot_name_two_hosts() {
    for user in TestNet::users() {
        user.lasting("net", &FLAGS);
        let word = format!("two-hosts-{}", user.msb.uid());
        let script = format!(
            "/usr/bin/python3 /world/hosts.py 203.0.113.18 shared.example.com hidden.example.com \
             {word}"
        );
        let gave = user.within("net", &script).ok();
        assert_eq!(gave.stdout.lines().count(), 18, "{gave:#?}");
        for line in gave.stdout.lines() {
            let (case, status) = line.split_once(": ").unwrap();
            // Of two requests on one connection the first is fine.
            let fine = case == "second" && status == "404";
            assert!(fine || ["400", "403", "421", "closed"].contains(&status), "{line}");
        }
        // The server of both was asked for neither.
        let log = user.net.log("access");
        assert!(!log.contains(&word), "{log}");
    }
}

#[test]
fn other_protocols_pass_on_other_ports() {
    for user in TestNet::users() {
        let script = "/usr/bin/python3 /world/streams.py speaks shared.example.com 7002; \
                      /usr/bin/python3 /world/streams.py echo shared.example.com 7000 100000";
        let gave = user.inside(&FLAGS, script).line();
        assert_eq!(gave, "hello, I speak first\nme too\nsame");
    }
}

/// A page in place of an answer: it says which rule it was, and what to do about it.
#[test]
fn a_denied_page_says_why_and_what_to_do() {
    for user in TestNet::users() {
        user.lasting("net", &["--net-rule", "deny@hidden.example.com"]);
        let script = "curl -sS -i --resolve hidden.example.com:80:203.0.113.18 \
                      http://hidden.example.com/page";
        let gave = user.within("net", script).ok();
        assert!(gave.stdout.starts_with("HTTP/1.1 403 "), "{gave:#?}");
        assert!(gave.stdout.contains("deny@hidden.example.com"), "{gave:#?}");
        assert!(gave.stdout.contains("msb net"), "{gave:#?}");
        assert!(gave.stdout.contains("allow"), "{gave:#?}");
    }
}
