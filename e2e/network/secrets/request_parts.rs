//! Where in a request a placeholder is replaced, and where in an answer the value is.

use super::{FLAGS, arrived, header, lasting, value, with_value};
use crate::testnet::TestNet;

#[test]
fn the_usual_headers_of_keys_carry_it() {
    for user in TestNet::users() {
        let value = value(&user, "headers");
        let word = format!("headers-{}", user.msb.uid());
        let script = format!(
            "curl -sS https://api.example.com/{word} -H \"x-api-key: $API_KEY\" \
             -H \"API-Key: $API_KEY\" -H \"X-Goog-Api-Key: $API_KEY\""
        );
        let gave = with_value(&user, &value, &FLAGS, &script).ok();
        assert!(!gave.stdout.contains(&value), "{gave:#?}");
        let request = arrived(&user, &word);
        for name in ["x-api-key", "api-key", "x-goog-api-key"] {
            assert_eq!(header(&request, name), [value.as_str()], "{name}");
        }
    }
}

#[test]
fn a_password_is_replaced_inside_basic_authorization() {
    for user in TestNet::users() {
        let value = value(&user, "basic");
        let word = format!("basic-{}", user.msb.uid());
        let script = format!("curl -sS -u \"user:$API_KEY\" https://api.example.com/{word}");
        let gave = with_value(&user, &value, &FLAGS, &script).ok();
        let got = header(&arrived(&user, &word), "authorization");
        let encoded = got[0].strip_prefix("Basic ").unwrap();
        let mut decode = std::process::Command::new("sh");
        decode.args(["-c", &format!("printf %s {encoded} | base64 -d")]);
        assert_eq!(msb_e2e::gives(&mut decode).line(), format!("user:{value}"));
        // Nor is it seen in the clothes that it went out in.
        assert!(!gave.stdout.contains(encoded), "{gave:#?}");
    }
}

#[test]
fn other_places_carry_it_only_when_named() {
    for user in TestNet::users() {
        let uid = user.msb.uid();
        let value = value(&user, "places");
        let tries = [
            ("cookie", "-H \"Cookie: session=$API_KEY\"", ""),
            ("query", "", "?key=$API_KEY"),
            ("body", "-d \"{\\\"key\\\": \\\"$API_KEY\\\"}\"", ""),
        ];
        for (place, arguments, query) in tries {
            let word = format!("{place}-{uid}");
            let script = |word: &str| {
                format!(
                    "curl -sS -o /tmp/out -w '%{{http_code}}\\n' {arguments} \
                     \"https://api.example.com/{word}{query}\"; cat /tmp/out"
                )
            };
            let refused = with_value(&user, &value, &FLAGS, &script(&format!("not-{word}"))).ok();
            assert!(refused.stdout.starts_with("403\n"), "{place}: {refused:#?}");
            assert!(user.net.requests(&format!("not-{word}")).is_empty(), "{place}");
            let flags = [&FLAGS[..], &["--secret-in", place]].concat();
            let gave = with_value(&user, &value, &flags, &script(&word)).ok();
            assert!(gave.stdout.starts_with("200\n"), "{place}: {gave:#?}");
            assert!(!gave.stdout.contains(&value), "{place}: {gave:#?}");
            let request = arrived(&user, &format!("/{word}"));
            match place {
                "cookie" => assert_eq!(header(&request, "cookie"), [format!("session={value}")]),
                "query" => assert_eq!(request["path"], format!("/{word}?key={value}")),
                _ => assert_eq!(request["body"], format!("{{\"key\": \"{value}\"}}")),
            }
        }
    }
}

/// The placeholder in any other part is refused, and no server got the value.
#[test]
fn the_placeholder_in_other_parts_of_a_request_is_refused() {
    for user in TestNet::users() {
        let value = value(&user, "elsewhere");
        let word = format!("elsewhere-{}", user.msb.uid());
        let script = format!(
            "url=https://api.example.com; curl='curl -s -o /dev/null -w %{{http_code}}\\n'; \
             $curl $url/{word} -H \"X-Other: $API_KEY\"; \
             $curl $url/{word}/$API_KEY; \
             $curl $url/{word} -A \"$API_KEY\"; \
             $curl $url/{word} -H \"Referer: https://x/?$API_KEY\"; \
             $curl $url/{word} -H 'Transfer-Encoding: chunked' -d \"$API_KEY\"; \
             $curl -X \"$API_KEY\" $url/{word}"
        );
        let gave = with_value(&user, &value, &FLAGS, &script).ok();
        let good = |line: &str| ["403", "400"].contains(&line);
        assert!(gave.stdout.lines().all(good), "{gave:#?}");
        assert_eq!(gave.stdout.lines().count(), 6, "{gave:#?}");
        assert!(user.net.requests(&word).is_empty());
        assert!(!user.net.log("requests").contains(&value));
    }
}

#[test]
fn a_body_of_any_length_carries_it() {
    for user in TestNet::users() {
        let value = value(&user, "long");
        let word = format!("long-{}", user.msb.uid());
        let flags = [&FLAGS[..], &["--secret-in", "body"]].concat();
        // At the border of whatever is read at once, and in chunks.
        let script = format!(
            "/usr/bin/python3 - <<'PYTHON'
import os
key = os.environ['API_KEY']
for number, before in enumerate([0, 16384 - 10, 65536 - 10, 300000]):
    with open(f'/tmp/{{number}}', 'w') as file:
        file.write('x' * before + key + 'y' * 100)
PYTHON
for number in 0 1 2 3; do
    curl -sS -o /dev/null -w '%{{http_code}}\\n' --data-binary @/tmp/$number \
        https://api.example.com/{word}-$number
    curl -sS -o /dev/null -w '%{{http_code}}\\n' --data-binary @/tmp/$number \
        -H 'Transfer-Encoding: chunked' https://api.example.com/{word}-c$number
done"
        );
        let gave = with_value(&user, &value, &flags, &script).ok();
        assert_eq!(gave.stdout, "200\n".repeat(8), "{gave:#?}");
        for (number, before) in [0, 16384 - 10, 65536 - 10, 300_000].into_iter().enumerate() {
            for chunked in ["", "c"] {
                let request = arrived(&user, &format!("{word}-{chunked}{number}"));
                let body = request["body"].as_str().unwrap();
                let expected = format!("{}{value}{}", "x".repeat(before), "y".repeat(100));
                assert!(body == expected, "{chunked}{number}: {} bytes", body.len());
            }
        }
    }
}

/// A response that says the value back is scrubbed, however it says it.
#[test]
fn answers_are_scrubbed_however_they_say_it() {
    for user in TestNet::users() {
        let value = value(&user, "scrub");
        lasting(&user, &value, "net", &FLAGS);
        let script = "for path in in-header in-parts in-reason in-trailer zipped; do \
                      curl -sS -i --compressed https://api.example.com/$path \
                      -H \"Authorization: Bearer $API_KEY\"; done; \
                      curl -sS -i --compressed https://api.example.com/in-parts \
                      -H \"x-api-key: $API_KEY\"";
        let gave = user.within("net", script).ok();
        assert!(!gave.stdout.contains(&value), "{gave:#?}");
        let stars = "*".repeat(value.len());
        assert!(gave.stdout.contains(&format!("x-echo: Bearer {stars}")), "{gave:#?}");
        assert!(gave.stdout.matches(&stars).count() >= 5, "{gave:#?}");
    }
}

/// A host that echoes does not tell how much of a guess is right.
#[test]
fn a_guess_is_echoed_the_same_however_much_of_it_is_right() {
    for user in TestNet::users() {
        let value = value(&user, "guess");
        let script = format!("/usr/bin/python3 /world/web.py guesses api.example.com '{value}'");
        let gave = with_value(&user, &value, &FLAGS, &script).ok();
        let mut rows: Vec<&str> = gave.stdout.lines().collect();
        assert_eq!(rows.len(), 3 * value.len(), "{gave:#?}");
        rows.sort_unstable();
        rows.dedup();
        // Of each length of a guess one row.
        let mut lengths: Vec<_> = rows.iter().map(|row| row.split(' ').next()).collect();
        lengths.dedup();
        assert_eq!(lengths.len(), rows.len(), "{rows:#?}");
    }
}

/// What goes on as a WebSocket began as a request.
#[test]
fn websockets_carry_it_and_do_not_say_it_back() {
    for user in TestNet::users() {
        let value = value(&user, "ws");
        let script = "/usr/bin/python3 /world/web.py websocket api.example.com \"$API_KEY\" \
                      /ws-secret";
        let gave = with_value(&user, &value, &FLAGS, script).line();
        let stars = "*".repeat(value.len());
        assert_eq!(gave, format!("101\nBearer {stars}\nsame\nsame"));
        let requests = user.net.requests("/ws-secret");
        let bearer = format!("Bearer {value}");
        assert!(requests.iter().any(|one| header(one, "authorization") == [bearer.as_str()]));
    }
}

/// Over HTTP/2, which has its own way of writing all of this.
#[test]
fn http_2_carries_it_as_well() {
    for user in TestNet::users() {
        let value = value(&user, "two");
        let word = format!("two-{}", user.msb.uid());
        let flags = ["--secret", "API_KEY@h2.example.com", "--secret-in", "body,query"];
        let script = format!(
            "curl -sS --http2 -w '%{{http_version}}\\n' https://h2.example.com/{word}?q=$API_KEY \
             -H \"Authorization: Bearer $API_KEY\" -d \"body $API_KEY\"; \
             curl -sS --http1.1 -w '%{{http_version}}\\n' https://h2.example.com/one-{word} \
             -H \"Authorization: Bearer $API_KEY\""
        );
        let gave = with_value(&user, &value, &flags, &script).ok();
        assert!(!gave.stdout.contains(&value), "{gave:#?}");
        let versions: Vec<&str> =
            gave.stdout.lines().filter(|line| !line.starts_with('{')).collect();
        assert_eq!(versions, ["2", "1.1"], "{gave:#?}");
        let request = arrived(&user, &format!("/{word}"));
        assert_eq!(header(&request, "authorization"), [format!("Bearer {value}")]);
        assert_eq!(request["body"], format!("body {value}"));
        assert!(request["path"].as_str().unwrap().ends_with(&format!("?q={value}")));
        arrived(&user, &format!("/one-{word}"));
    }
}
