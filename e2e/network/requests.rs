//! Rules for HTTP requests: which are intercepted, and that request smuggling fails.

use crate::testnet::{TestNet, TestUser};

/// The statuses of requests, one curl each, in a new sandbox.
#[track_caller]
fn statuses(user: &TestUser, rules: &[&str], requests: &[String]) -> Vec<String> {
    let mut flags = vec!["--net-default", "deny"];
    flags.extend(rules.iter().flat_map(|rule| ["--net-rule", rule]));
    let curls: Vec<String> = requests
        .iter()
        .map(|request| {
            format!("curl -s --path-as-is -o /dev/null -w '%{{http_code}}\\n' {request}; ")
        })
        .collect();
    let gave = user.inside(&flags, &format!("{} true", curls.concat())).ok();
    gave.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn requests_are_ruled_by_method_and_path() {
    for user in TestNet::users() {
        let word = format!("ruled-{}", user.msb.uid());
        let at = |rest: &str| format!("'https://api.example.com{rest}-{word}'");
        let requests = [
            at("/v1/x"),
            format!("-I {}", at("/v1/x")),
            format!("-X POST {}", at("/v1/x")),
            format!("-X GET -d body {}", at("/v1/x")),
            at("/v2/x"),
            at("/V1/x"),
            at("/v1"),
            at("/?/v1/"),
            format!("-X DELETE {}", at("/v1/x")),
            format!("-X get {}", at("/v1/x")),
        ];
        let rules = ["allow@api.example.com:http:GET,HEAD:/v1/"];
        let expected = ["200", "200", "403", "200", "403", "403", "403", "403", "403", "403"];
        assert_eq!(statuses(&user, &rules, &requests), expected);
        let paths: Vec<String> = user
            .net
            .requests(&word)
            .iter()
            .map(|request| format!("{} {}", request["method"], request["path"]).replace('"', ""))
            .collect();
        let path = format!("/v1/x-{word}");
        assert_eq!(paths, [format!("GET {path}"), format!("HEAD {path}"), format!("GET {path}")]);
    }
}

/// Neither the scheme nor the port is a way around.
#[test]
fn requests_are_ruled_on_every_port_and_without_encryption() {
    for user in TestNet::users() {
        let word = format!("ports-{}", user.msb.uid());
        let places = [
            "http://api.example.com",
            "https://api.example.com",
            "http://api.example.com:8080",
            "https://api.example.com:8443",
            "https://api.example.com:8443",
            // Plainly at the port of the other, and the other way round.
            "http://api.example.com:443",
            "https://api.example.com:80",
        ];
        let requests: Vec<String> = places
            .iter()
            .flat_map(|place| [format!("{place}/v1/{word}"), format!("{place}/no/{word}")])
            .collect();
        let rules = ["allow@api.example.com:http:GET:/v1/"];
        let outcomes = statuses(&user, &rules, &requests);
        assert_eq!(outcomes[..10], ["200", "403"].repeat(5), "{outcomes:?}");
        for (request, outcome) in requests.iter().zip(&outcomes).filter(|(r, _)| r.contains("/no/"))
        {
            assert_ne!(outcome, "200", "{request}");
        }
        assert!(user.net.requests(&format!("/no/{word}")).is_empty());
    }
}

#[test]
fn large_transfers_pass_interception() {
    for user in TestNet::users() {
        let flags = ["--net-rule", "allow@*.example.com:http"];
        let script = "head -c 50000000 /dev/urandom >/tmp/bulk; sha256sum </tmp/bulk; \
                      for version in 1.1 2; do \
                      curl -sS --http$version -T /tmp/bulk https://h2.example.com/upload; done; \
                      curl -sS -T /tmp/bulk https://api.example.com/upload; \
                      seq 300 | sed 's|.*|url=https://h2.example.com/many?&\\noutput=/dev/null|' \
                      >/tmp/urls; curl -sS -Z --http2 -K /tmp/urls --parallel-max 50 \
                      -w '%{http_code} %{http_version}\\n' | sort | uniq -c | tr -s ' '";
        let gave = user.inside(&flags, script).ok();
        let lines: Vec<&str> = gave.stdout.lines().collect();
        let sum = lines[0].split(' ').next().unwrap();
        let sent = format!("50000000 {sum}");
        assert_eq!(lines[1..], [&sent, &sent, &sent, " 300 200 2"], "{gave:#?}");
    }
}

/// Attacks on the way a path is read.
#[test]
fn a_path_cannot_be_written_around_its_rule() {
    for user in TestNet::users() {
        let word = format!("around-{}", user.msb.uid());
        let allowed = ["allow@api.example.com:http:GET:/v1/"];
        let out_of_it: Vec<String> = [
            "/v1/../admin",
            "/v1/%2e%2e/admin",
            "/v1/%2E%2e/admin",
            "/v1/.%2e/admin",
            "/v1/..%2fadmin",
            "/v1/%2e%2e%2fadmin",
            "/v1/..%5cadmin",
            "/v1/..\\\\admin",
            "/v1/x/../../admin",
            "/v1/./../admin",
            "/v1//../../admin",
            "/v1/..;/admin",
            "/v1/%252e%252e/admin",
            "/v1/%00/../../admin",
        ]
        .iter()
        .map(|path| format!("\"https://api.example.com{path}-{word}\""))
        .collect();
        let outcomes = statuses(&user, &allowed, &out_of_it);
        for (request, outcome) in out_of_it.iter().zip(&outcomes) {
            // What is not decoded twice by us may go, as long as it goes as it was written.
            let is_plain = request.contains("%252e") || request.contains("..;");
            assert!(is_plain || ["403", "400"].contains(&outcome.as_str()), "{request}: {outcome}");
        }
        let denied = ["deny@api.example.com:http:*:/admin", "allow@api.example.com"];
        let into_it: Vec<String> = [
            "/admin",
            "/admin/x",
            "//admin",
            "/./admin",
            "/x/../admin",
            "/%61dmin",
            "/x/%2e%2e/admin",
            "/%2fadmin",
            "/admin?x",
            "/x/..%2fadmin",
        ]
        .iter()
        .map(|path| format!("\"https://api.example.com{path}-{word}\""))
        .collect();
        let outcomes = statuses(&user, &denied, &into_it);
        for (request, outcome) in into_it.iter().zip(&outcomes) {
            assert!(["403", "400"].contains(&outcome.as_str()), "{request}: {outcome}");
        }
        for request in user.net.requests(&word) {
            let path = request["path"].as_str().unwrap();
            assert!(path.contains("%252e") || path.contains("..;"), "{path}");
        }
    }
}

#[test]
fn a_denied_request_says_why_and_is_recorded() {
    for user in TestNet::users() {
        let flags = [
            "--net-default",
            "deny",
            "--net-rule",
            "deny@api.example.com:http:*:/secret",
            "--net-rule",
            "allow@api.example.com:http:GET",
        ];
        user.lasting("net", &flags);
        let script = "curl -sS -i https://api.example.com/secret/page?token=hidden; \
                      curl -sS -o /dev/null https://api.example.com/page?token=hidden";
        let gave = user.within("net", script).ok();
        assert!(gave.stdout.contains(" 403"), "{gave:#?}");
        for word in ["deny@api.example.com:http:*:/secret", "msb net"] {
            assert!(gave.stdout.contains(word), "{word}: {gave:#?}");
        }
        let events = user.told("net", "GET /page");
        let events = [events, user.told("net", "GET /secret")].concat();
        let find = |decision: &str| {
            let is_it = |event: &&serde_json::Value| {
                event["decided"]["kind"] == "http" && event["decided"]["decision"] == decision
            };
            let found = events.iter().find(is_it);
            found.unwrap_or_else(|| panic!("{events:#?}"))["decided"].clone()
        };
        let denied = find("deny");
        assert_eq!(denied["request"], "GET /secret/page");
        assert_eq!(denied["rule"], "deny@api.example.com:http:*:/secret");
        assert_eq!(denied["name"], "api.example.com");
        let allowed = find("allow");
        assert_eq!(allowed["request"], "GET /page");
        // The query string is not recorded.
        let told = user.run(["events", "--net", "net"]).ok().stdout;
        assert!(!told.contains("hidden"), "{told}");
    }
}

/// Attack 36.
#[test]
fn ambiguous_requests_are_refused() {
    for user in TestNet::users() {
        let word = format!("smuggled-{}", user.msb.uid());
        let flags = [
            "--net-default",
            "deny",
            "--net-rule",
            "deny@api.example.com:http:*:/hidden",
            "--net-rule",
            "allow@api.example.com",
        ];
        user.lasting("net", &flags);
        let script = format!("/usr/bin/python3 /world/smuggle.py api.example.com {word}");
        let gave = user.within("net", &script).ok();
        assert!(gave.stdout.lines().count() >= 19, "{gave:#?}");
        for line in gave.stdout.lines() {
            let (case, statuses) = line.split_once(": ").unwrap();
            assert!(!statuses.contains("200 200"), "{case}: {statuses}");
        }
        let refused = [
            "length and chunks",
            "chunks and length",
            "two lengths",
            "length list",
            "connect",
            "connect to itself",
            "another host",
            "another target",
            "two hosts",
            "no host",
        ];
        for case in refused {
            let line = gave.stdout.lines().find(|line| line.starts_with(&format!("{case}: ")));
            let statuses = line.unwrap().split_once(": ").unwrap().1;
            let is_no = |status: &str| ["400", "403", "421", "closed"].contains(&status);
            assert!(statuses.split(' ').all(is_no), "{case}: {statuses}");
        }
        // However requests were parsed, no server got the hidden one.
        let hidden = user.net.requests(&format!("hidden-{word}"));
        assert!(hidden.is_empty(), "{hidden:#?}");
        assert!(!user.net.log("access").contains(&format!("hidden-{word}")));
    }
}

/// What the server is sent is one clear request, whatever the sandbox wrote.
#[test]
fn forwarded_requests_are_serialized_by_the_gateway() {
    for user in TestNet::users() {
        let word = format!("clear-{}", user.msb.uid());
        let flags = ["--net-rule", "allow@raw.example.com:http"];
        let script = format!(
            "curl -sS https://raw.example.com/{word} -H 'Connection: close, X-Hop' \
             -H 'X-Hop: one' -H 'X-Kept: two' -H 'Proxy-Authorization: Basic x' -H 'TE: trailers'"
        );
        assert_eq!(user.inside(&flags, &script).line(), "raw");
        let log = user.net.log("raw");
        let sent = log.lines().find(|line| line.contains(&word)).unwrap();
        let lower = sent.to_ascii_lowercase();
        assert!(lower.contains("x-kept: two"), "{sent}");
        assert!(lower.contains("host: raw.example.com"), "{sent}");
        for hop in ["x-hop", "proxy-authorization"] {
            assert!(!lower.contains(hop), "{sent}");
        }
    }
}

#[test]
fn answers_are_streamed_as_they_come() {
    for user in TestNet::users() {
        let word = format!("streamed-{}", user.msb.uid());
        let flags = ["--net-rule", "allow@api.example.com:http"];
        let script = format!("/usr/bin/python3 /world/web.py stream api.example.com {word}");
        assert_eq!(user.inside(&flags, &script).line(), "200 opened\nsecond");
    }
}

#[test]
fn websockets_pass_where_their_request_does() {
    for user in TestNet::users() {
        let script = "/usr/bin/python3 /world/web.py websocket api.example.com";
        let flags = ["--net-rule", "allow@api.example.com:http:GET:/ws"];
        assert_eq!(user.inside(&flags, script).line(), "101\nsame\nsame");
        let flags = ["--net-default", "deny", "--net-rule", "allow@api.example.com:http:GET:/v1"];
        let gave = user.inside(&flags, script);
        assert!(gave.stdout.starts_with("403\n"), "{gave:#?}");
    }
}

/// Attack 34 inside what is encrypted: the name of the request is the name of the connection.
#[test]
fn a_request_is_for_the_name_that_was_connected_to() {
    for user in TestNet::users() {
        let word = format!("fronted-{}", user.msb.uid());
        let flags = ["--net-rule", "allow@shared.example.com:http"];
        let script = format!(
            "for version in http1.1 http2; do \
             curl -sS -o /dev/null -w '%{{http_code}}\\n' --$version \
             https://shared.example.com/{word} -H 'Host: hidden.example.com'; done; \
             curl -sS -o /dev/null -w '%{{http_code}}\\n' https://shared.example.com/whom"
        );
        let gave = user.inside(&flags, &script).ok();
        let lines: Vec<&str> = gave.stdout.lines().collect();
        assert!(
            ["403", "421"].contains(&lines[0]) && ["403", "421"].contains(&lines[1]),
            "{gave:#?}"
        );
        assert_eq!(lines[2], "200");
        assert!(!user.net.log("access").contains(&word));
    }
}

#[test]
fn bypassed_names_are_not_intercepted() {
    for user in TestNet::users() {
        let flags =
            ["--net-rule", "allow@*.example.com:http:GET:/v1/", "--net-bypass", "api.example.com"];
        // It shows the certificate of the server, and not one of the gateway.
        let script = "curl -sS --cacert /world/ca.pem -o /dev/null -w '%{http_code}\\n' \
                      https://api.example.com/anything; \
                      curl -sS -o /dev/null -w '%{http_code}\\n' https://other.example.com/v1/x";
        assert_eq!(user.inside(&flags, script).line(), "200\n200");
    }
}
