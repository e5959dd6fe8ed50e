//! Secrets: where values are substituted, where placeholders are refused, and how responses are
//! scrubbed.

use super::harness::{
    Client, EchoServer, Harness, NAME, PLACEHOLDER, TestCa, VALUE, run, test_secret,
};
use crate::tls::client::HttpVersion;
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
fn values_are_substituted_and_masked_in_responses() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &BOTH))).await;
        let harness = Harness::new(&RULES, vec![test_secret(&[], false)], &[&root], None);
        let basic =
            |user: &str, word: &str| format!("Basic {}", STANDARD.encode(format!("{user}:{word}")));
        for protocol in [HttpVersion::Http1, HttpVersion::Http2] {
            let mut client = harness.client(echo.address, protocol).await;
            for (name, sent, arrives) in [
                ("authorization", format!("Bearer {PLACEHOLDER}"), format!("Bearer {VALUE}")),
                ("authorization", basic("me", PLACEHOLDER), basic("me", VALUE)),
                ("authorization", basic("m", PLACEHOLDER), basic("m", VALUE)),
                ("authorization", basic(PLACEHOLDER, ""), basic(VALUE, "")),
                ("x-api-key", PLACEHOLDER.to_owned(), VALUE.to_owned()),
                ("api-key", PLACEHOLDER.to_owned(), VALUE.to_owned()),
                ("x-goog-api-key", PLACEHOLDER.to_owned(), VALUE.to_owned()),
            ] {
                let (status, headers, body) = client.request(get("/", &[(name, &sent)])).await;
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
                let verdict = harness.verdicts(1).await.remove(0);
                assert_eq!(verdict.secrets, ["KEY"]);
                assert!(!format!("{verdict:?}").contains(VALUE));
            }
        }
    });
}

#[test]
fn a_placeholder_in_another_place_is_refused() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &BOTH))).await;
        let harness = Harness::new(&RULES, vec![test_secret(&[], false)], &[&root], None);
        let encoded: String = PLACEHOLDER.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let twice = encoded.replace('%', "%25");
        let base64 = STANDARD.encode(format!("x{PLACEHOLDER}y"));
        for protocol in [HttpVersion::Http1, HttpVersion::Http2] {
            let mut client = harness.client(echo.address, protocol).await;
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
                let (status, _, text) = client.request(request).await;
                assert_eq!(status, 403, "{protocol:?} {place}: {text}");
                assert!(text.contains(&format!("a secret in {place}: `KEY`")), "{text}");
            }
        }
        for verdict in harness.verdicts(28).await {
            assert_eq!((verdict.decision, verdict.secrets), (Decision::Deny, vec!["KEY".into()]));
        }
        for seen in echo.seen() {
            assert!(!seen.contains(PLACEHOLDER) && !seen.contains(VALUE), "{seen}");
        }
    });
}

#[test]
fn values_are_substituted_in_named_places() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &BOTH))).await;
        let places = [SecretPlace::Cookie, SecretPlace::Query, SecretPlace::Body];
        let harness = Harness::new(&RULES, vec![test_secret(&places, false)], &[&root], None);
        let encoded = VALUE.replace('/', "%2F").replace('+', "%2B");
        for protocol in [HttpVersion::Http1, HttpVersion::Http2] {
            let mut client = harness.client(echo.address, protocol).await;
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
                let (status, _, body) = client.request(request).await;
                assert_eq!(status, 200, "{body}");
                let seen = echo.seen().pop().unwrap();
                assert!(seen.contains(&arrives), "{arrives}: {seen}");
                assert!(!body.contains(VALUE) && !body.contains(&encoded), "{body}");
            }
            // Without a placeholder a body is unchanged.
            let (status, ..) = client.request(post("text/plain", "plain".to_owned())).await;
            assert_eq!(status, 200);
            assert!(echo.seen().pop().unwrap().ends_with("\n\nplain"));
            let long = post("text/plain", "x".repeat((16 << 20) + 1));
            let mut fresh = harness.client(echo.address, protocol).await;
            assert_eq!(fresh.request(long).await.0, 413);
        }
    });
}

#[test]
fn another_host_gets_no_value() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server("other.example", &BOTH))).await;
        let harness = Harness::new(&RULES, vec![test_secret(&[], false)], &[&root], None);
        let stream = harness.tls_to("other.example", "other.example", echo.address, &[b"http/1.1"]);
        let mut client =
            Client::over(TokioIo::new(stream.await.unwrap()), HttpVersion::Http1).await;
        let bearer = format!("Bearer {PLACEHOLDER}");
        let headers = [("host", "other.example"), ("authorization", bearer.as_str())];
        let (status, _, text) = client.request(get("/", &headers)).await;
        assert_eq!(status, 403);
        assert!(text.contains("a secret that is for other hosts: `KEY`"), "{text}");
        assert!(echo.seen().is_empty());
        assert_eq!(harness.verdicts(1).await.remove(0).secrets, ["KEY"]);
    });
}

#[test]
fn a_value_is_never_sent_without_verified_tls() {
    run(async {
        let (root, unknown) = (TestCa::new(), TestCa::new());
        let plain = EchoServer::start(None).await;
        let harness = Harness::new(&RULES, vec![test_secret(&[], false)], &[&root], None);
        let bearer = format!("Bearer {PLACEHOLDER}");
        let stream = harness.flow(NAME, plain.address, false);
        let mut client = Client::over(TokioIo::new(stream), HttpVersion::Http1).await;
        let (status, _, text) = client.request(get("/", &[("authorization", &bearer)])).await;
        assert_eq!(status, 403);
        assert!(text.contains("a secret without TLS: `KEY`"), "{text}");
        let unverified = EchoServer::start(Some(unknown.server(NAME, &BOTH))).await;
        let mut client = harness.client(unverified.address, HttpVersion::Http1).await;
        let (status, ..) = client.request(get("/", &[("authorization", &bearer)])).await;
        assert_eq!(status, 502);
        assert!(plain.seen().is_empty() && unverified.seen().is_empty());
    });
}

#[test]
fn a_host_that_requires_the_secret_gets_no_request_without() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &BOTH))).await;
        let harness =
            Harness::new(&RULES, vec![test_secret(&[SecretPlace::Body], true)], &[&root], None);
        let mut client = harness.client(echo.address, HttpVersion::Http1).await;
        let (status, _, text) = client.get("/").await;
        assert_eq!(status, 403);
        assert!(text.contains("a request without its secret: `KEY`"), "{text}");
        let bearer = format!("Bearer {PLACEHOLDER}");
        assert_eq!(client.request(get("/", &[("authorization", &bearer)])).await.0, 200);
        let body = Request::post("/").body(PLACEHOLDER.to_owned()).unwrap();
        assert_eq!(client.request(body).await.0, 200);
        assert_eq!(echo.seen().len(), 2);
    });
}

#[test]
fn a_required_secret_is_the_only_credential() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &BOTH))).await;
        let harness = Harness::new(&RULES, vec![test_secret(&[], true)], &[&root], None);
        let bearer = format!("Bearer {PLACEHOLDER}");
        let quoted = format!("Token token=\"{PLACEHOLDER}\"");
        let basic = format!("Basic {}", STANDARD.encode(format!("me:{PLACEHOLDER}")));
        let both = format!("Bearer mine, {bearer}");
        for protocol in [HttpVersion::Http1, HttpVersion::Http2] {
            let mut client = harness.client(echo.address, protocol).await;
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
                let (got, _, text) = client.request(get("/", headers)).await;
                assert_eq!(got, status, "{headers:?}: {text}");
            }
        }
        let mut client = harness.client(echo.address, HttpVersion::Http1).await;
        let listed = [("connection", "x-api-key"), ("x-api-key", PLACEHOLDER)];
        assert_eq!(client.request(get("/", &listed)).await.0, 403);
        let mut trace = get("/", &[("authorization", &bearer)]);
        *trace.method_mut() = hyper::Method::TRACE;
        assert_eq!(client.request(trace).await.0, 405);
        assert_eq!(echo.seen().len(), 8);
    });
}

#[test]
fn a_compressed_response_to_a_secret_is_refused() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &BOTH))).await;
        let harness = Harness::new(&RULES, vec![test_secret(&[], false)], &[&root], None);
        let mut client = harness.client(echo.address, HttpVersion::Http1).await;
        let bearer = format!("Bearer {PLACEHOLDER}");
        let (status, _, text) = client.request(get("/gzip", &[("authorization", &bearer)])).await;
        assert_eq!(status, 502);
        assert!(!text.contains(VALUE));
        assert_eq!(client.get("/gzip").await.0, 200);
    });
}
