//! Secrets: where values are put in, where placeholders are refused, and what comes back.

use super::super::upstream::Protocol;
use super::lab::{Client, Echo, Lab, NAME, PLACEHOLDER, Root, VALUE, run, secret};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Request;
use hyper_util::rt::TokioIo;
use msb_spec::{Decision, SecretPlace};

const BOTH: [&[u8]; 2] = [b"h2", b"http/1.1"];
const RULES: [&str; 1] = ["allow@any"];

fn get(path: &str, headers: &[(&str, &str)]) -> Request<String> {
    let mut request = Request::get(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(String::new()).unwrap()
}

#[test]
fn values_are_put_in_and_come_back_as_stars() {
    run(async {
        let root = Root::new();
        let echo = Echo::start(Some(root.server(NAME, &BOTH))).await;
        let lab = Lab::new(&RULES, vec![secret(&[], false)], &[&root], None);
        let basic =
            |user: &str, word: &str| format!("Basic {}", STANDARD.encode(format!("{user}:{word}")));
        for protocol in [Protocol::One, Protocol::Two] {
            let mut client = lab.client(echo.address, protocol).await;
            for (name, sent, arrives) in [
                ("authorization", format!("Bearer {PLACEHOLDER}"), format!("Bearer {VALUE}")),
                ("authorization", basic("me", PLACEHOLDER), basic("me", VALUE)),
                ("authorization", basic("m", PLACEHOLDER), basic("m", VALUE)),
                ("authorization", basic(PLACEHOLDER, ""), basic(VALUE, "")),
                ("x-api-key", PLACEHOLDER.to_owned(), VALUE.to_owned()),
                ("api-key", PLACEHOLDER.to_owned(), VALUE.to_owned()),
                ("x-goog-api-key", PLACEHOLDER.to_owned(), VALUE.to_owned()),
            ] {
                let (status, headers, body) = client.ask(get("/", &[(name, &sent)])).await;
                assert_eq!(status, 200, "{body}");
                let seen = echo.seen().pop().unwrap();
                assert!(seen.contains(&format!("{name}: {arrives}\n")), "{seen}");
                assert!(seen.contains("accept-encoding: identity\n"), "{seen}");
                for text in [&headers, &body] {
                    assert!(!text.contains(VALUE), "{text}");
                    assert!(!text.contains(&arrives), "{text}");
                }
                assert!(body.contains("*****"), "{body}");
                assert_eq!(body.len(), seen.len(), "the length stays");
                let verdict = lab.verdicts(1).await.remove(0);
                assert_eq!(verdict.secrets, ["KEY"]);
                assert!(!format!("{verdict:?}").contains(VALUE));
            }
        }
    });
}

#[test]
fn a_placeholder_elsewhere_is_refused() {
    run(async {
        let root = Root::new();
        let echo = Echo::start(Some(root.server(NAME, &BOTH))).await;
        let lab = Lab::new(&RULES, vec![secret(&[], false)], &[&root], None);
        let encoded: String = PLACEHOLDER.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let twice = encoded.replace('%', "%25");
        let base64 = STANDARD.encode(format!("x{PLACEHOLDER}y"));
        for protocol in [Protocol::One, Protocol::Two] {
            let mut client = lab.client(echo.address, protocol).await;
            for (request, place) in [
                (
                    Request::builder().method(PLACEHOLDER).uri("/").body(String::new()).unwrap(),
                    "the method",
                ),
                (get(&format!("/{PLACEHOLDER}"), &[]), "the path"),
                (get(&format!("/{encoded}"), &[]), "the path"),
                (get(&format!("/?key={PLACEHOLDER}"), &[]), "the query"),
                (get(&format!("/?key={encoded}"), &[]), "the query"),
                (get(&format!("/?key={twice}"), &[]), "the query"),
                (get(&format!("/?key={base64}"), &[]), "the query"),
                (get("/", &[("cookie", &format!("a={PLACEHOLDER}"))]), "the header `cookie`"),
                (get("/", &[("x-other", PLACEHOLDER)]), "the header `x-other`"),
                (get("/", &[("x-other", &base64)]), "the header `x-other`"),
                (get("/", &[("x-api-key", &base64)]), "the header `x-api-key`"),
                (get("/", &[(PLACEHOLDER, "x")]), "the name of a header"),
                (Request::post("/").body(format!("a{PLACEHOLDER}b")).unwrap(), "the body"),
                (Request::post("/").body(format!("a{base64}b")).unwrap(), "the body"),
            ] {
                let (status, _, text) = client.ask(request).await;
                assert_eq!(status, 403, "{protocol:?} {place}: {text}");
                assert!(text.contains(&format!("a secret in {place}: `KEY`")), "{text}");
            }
        }
        for verdict in lab.verdicts(28).await {
            assert_eq!((verdict.decision, verdict.secrets), (Decision::Deny, vec!["KEY".into()]));
        }
        for seen in echo.seen() {
            assert!(!seen.contains(PLACEHOLDER) && !seen.contains(VALUE), "{seen}");
        }
    });
}

#[test]
fn named_places_are_replaced_in() {
    run(async {
        let root = Root::new();
        let echo = Echo::start(Some(root.server(NAME, &BOTH))).await;
        let places = [SecretPlace::Cookie, SecretPlace::Query, SecretPlace::Body];
        let lab = Lab::new(&RULES, vec![secret(&places, false)], &[&root], None);
        let encoded = VALUE.replace('/', "%2F").replace('+', "%2B");
        for protocol in [Protocol::One, Protocol::Two] {
            let mut client = lab.client(echo.address, protocol).await;
            let post = |kind: &str, body: String| {
                Request::post("/").header("content-type", kind).body(body).unwrap()
            };
            for (request, arrives) in [
                (get("/", &[("cookie", &format!("a={PLACEHOLDER}; b"))]), format!("a={VALUE}; b")),
                (get(&format!("/?a={PLACEHOLDER}&b"), &[]), format!("/?a={encoded}&b")),
                (post("text/plain", format!("a{PLACEHOLDER}b")), format!("\n\na{VALUE}b")),
                (
                    post("application/x-www-form-urlencoded", format!("a={PLACEHOLDER}&b")),
                    format!("\n\na={encoded}&b"),
                ),
                (
                    post("application/json", format!("{{\"a\": \"{PLACEHOLDER}\"}}")),
                    format!("{{\"a\": \"{VALUE}\"}}"),
                ),
            ] {
                let (status, _, body) = client.ask(request).await;
                assert_eq!(status, 200, "{body}");
                let seen = echo.seen().pop().unwrap();
                assert!(seen.contains(&arrives), "{arrives}: {seen}");
                assert!(!body.contains(VALUE) && !body.contains(&encoded), "{body}");
            }
            // Without a placeholder a body goes through as it is.
            let (status, ..) = client.ask(post("text/plain", "plain".to_owned())).await;
            assert_eq!(status, 200);
            assert!(echo.seen().pop().unwrap().ends_with("\n\nplain"));
            let long = post("text/plain", "x".repeat((16 << 20) + 1));
            let mut fresh = lab.client(echo.address, protocol).await;
            assert_eq!(fresh.ask(long).await.0, 413);
        }
    });
}

#[test]
fn another_host_gets_no_value() {
    run(async {
        let root = Root::new();
        let echo = Echo::start(Some(root.server("other.example", &BOTH))).await;
        let lab = Lab::new(&RULES, vec![secret(&[], false)], &[&root], None);
        let stream = lab.tls_to("other.example", "other.example", echo.address, &[b"http/1.1"]);
        let mut client = Client::over(TokioIo::new(stream.await.unwrap()), Protocol::One).await;
        let bearer = format!("Bearer {PLACEHOLDER}");
        let headers = [("host", "other.example"), ("authorization", bearer.as_str())];
        let (status, _, text) = client.ask(get("/", &headers)).await;
        assert_eq!(status, 403);
        assert!(text.contains("a secret that is for other hosts: `KEY`"), "{text}");
        assert!(echo.seen().is_empty());
        assert_eq!(lab.verdicts(1).await.remove(0).secrets, ["KEY"]);
    });
}

#[test]
fn a_value_is_never_sent_without_verified_tls() {
    run(async {
        let (root, unknown) = (Root::new(), Root::new());
        let plain = Echo::start(None).await;
        let lab = Lab::new(&RULES, vec![secret(&[], false)], &[&root], None);
        let bearer = format!("Bearer {PLACEHOLDER}");
        let stream = lab.flow(NAME, plain.address, false);
        let mut client = Client::over(TokioIo::new(stream), Protocol::One).await;
        let (status, _, text) = client.ask(get("/", &[("authorization", &bearer)])).await;
        assert_eq!(status, 403);
        assert!(text.contains("a secret without TLS: `KEY`"), "{text}");
        let unverified = Echo::start(Some(unknown.server(NAME, &BOTH))).await;
        let mut client = lab.client(unverified.address, Protocol::One).await;
        let (status, ..) = client.ask(get("/", &[("authorization", &bearer)])).await;
        assert_eq!(status, 502);
        assert!(plain.seen().is_empty() && unverified.seen().is_empty());
    });
}

#[test]
fn a_host_that_requires_the_secret_gets_no_request_without() {
    run(async {
        let root = Root::new();
        let echo = Echo::start(Some(root.server(NAME, &BOTH))).await;
        let lab = Lab::new(&RULES, vec![secret(&[SecretPlace::Body], true)], &[&root], None);
        let mut client = lab.client(echo.address, Protocol::One).await;
        let (status, _, text) = client.get("/").await;
        assert_eq!(status, 403);
        assert!(text.contains("a request without its secret: `KEY`"), "{text}");
        let bearer = format!("Bearer {PLACEHOLDER}");
        assert_eq!(client.ask(get("/", &[("authorization", &bearer)])).await.0, 200);
        let body = Request::post("/").body(PLACEHOLDER.to_owned()).unwrap();
        assert_eq!(client.ask(body).await.0, 200);
        assert_eq!(echo.seen().len(), 2);
    });
}

#[test]
fn a_required_secret_stands_alone() {
    run(async {
        let root = Root::new();
        let echo = Echo::start(Some(root.server(NAME, &BOTH))).await;
        let lab = Lab::new(&RULES, vec![secret(&[], true)], &[&root], None);
        let bearer = format!("Bearer {PLACEHOLDER}");
        let quoted = format!("Token token=\"{PLACEHOLDER}\"");
        let basic = format!("Basic {}", STANDARD.encode(format!("me:{PLACEHOLDER}")));
        let both = format!("Bearer mine, {bearer}");
        for protocol in [Protocol::One, Protocol::Two] {
            let mut client = lab.client(echo.address, protocol).await;
            for (headers, status) in [
                (&[("authorization", bearer.as_str())][..], 200),
                (&[("authorization", &quoted)], 200),
                (&[("authorization", &basic)], 200),
                (&[("x-api-key", PLACEHOLDER), ("cookie", "a=b")], 200),
                (&[("authorization", &bearer), ("authorization", "Bearer mine")], 403),
                (&[("authorization", "Bearer mine"), ("authorization", &bearer)], 403),
                (&[("authorization", &bearer), ("authorization", &bearer)], 403),
                (&[("authorization", &bearer), ("x-api-key", "mine")], 403),
                (&[("authorization", &both)], 403),
            ] {
                let (got, _, text) = client.ask(get("/", headers)).await;
                assert_eq!(got, status, "{headers:?}: {text}");
            }
        }
        let mut client = lab.client(echo.address, Protocol::One).await;
        let listed = [("connection", "x-api-key"), ("x-api-key", PLACEHOLDER)];
        assert_eq!(client.ask(get("/", &listed)).await.0, 403);
        let mut trace = get("/", &[("authorization", &bearer)]);
        *trace.method_mut() = hyper::Method::TRACE;
        assert_eq!(client.ask(trace).await.0, 405);
        assert_eq!(echo.seen().len(), 8);
    });
}

#[test]
fn an_answer_that_cannot_be_read_does_not_come_in() {
    run(async {
        let root = Root::new();
        let echo = Echo::start(Some(root.server(NAME, &BOTH))).await;
        let lab = Lab::new(&RULES, vec![secret(&[], false)], &[&root], None);
        let mut client = lab.client(echo.address, Protocol::One).await;
        let bearer = format!("Bearer {PLACEHOLDER}");
        let (status, _, text) = client.ask(get("/gzip", &[("authorization", &bearer)])).await;
        assert_eq!(status, 502);
        assert!(!text.contains(VALUE));
        assert_eq!(client.get("/gzip").await.0, 200);
    });
}
