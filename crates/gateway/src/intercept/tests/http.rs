//! HTTP rules, the host of a request, and both versions of HTTP.

use super::harness::{Client, EchoServer, Harness, NAME, TestCa, policy, run};
use crate::tls::client::HttpVersion;
use hyper::Request;
use hyper_util::rt::TokioIo;
use msb_spec::Decision;
use msb_wire::FlowKind;
use std::sync::atomic::Ordering;

const BOTH: [&[u8]; 2] = [b"h2", b"http/1.1"];

#[test]
fn each_request_is_decided_by_the_first_rule_that_fits() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &BOTH))).await;
        let rules = [
            "deny@api.example:http:*:/v1/admin",
            "allow@api.example:http:GET:/v1/",
            "allow@api.example:http:POST:/v1/files",
        ];
        let harness = Harness::new(&rules, Vec::new(), &[&root], None);
        for protocol in [HttpVersion::Http1, HttpVersion::Http2] {
            let mut client = harness.client(echo.address, protocol).await;
            for (method, path, status, rule) in [
                ("GET", "/v1/models?x=y", 200, rules[1]),
                ("POST", "/v1/files", 200, rules[2]),
                ("POST", "/v1/models", 403, "default"),
                ("GET", "/v1/admin/x", 403, rules[0]),
                ("GET", "/v1/x/..%2fadmin", 403, rules[0]),
                ("GET", "/v2/", 403, "default"),
            ] {
                let request = Request::builder().method(method).uri(path);
                let answer = client.request(request.body(String::new()).unwrap()).await;
                assert_eq!(answer.0, status, "{protocol:?} {method} {path} {answer:?}");
                let verdict = harness.verdicts(1).await.remove(0);
                let path = path.split('?').next().unwrap();
                assert_eq!(verdict.request, Some(format!("{method} {path}")));
                assert_eq!((verdict.rule.as_str(), verdict.kind), (rule, FlowKind::Http));
                assert_eq!(verdict.decision == Decision::Allow, status == 200);
                if status == 403 {
                    assert!(answer.2.contains(&format!("rule: {rule}")), "{}", answer.2);
                }
            }
        }
        assert_eq!(echo.seen().len(), 4, "what is refused is not sent");
        // New rules apply from the next request on, also on an open connection.
        let mut client = harness.client(echo.address, HttpVersion::Http1).await;
        assert_eq!(client.get("/v2/").await.0, 403);
        harness.interceptor.set_policy(policy(&["allow@api.example"], Decision::Deny));
        assert_eq!(client.get("/v2/").await.0, 200);
    });
}

#[test]
fn one_connection_serves_many_requests() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &BOTH))).await;
        let harness = Harness::new(&["allow@api.example:http:*:/"], Vec::new(), &[&root], None);
        for (count, protocol) in [(1, HttpVersion::Http1), (2, HttpVersion::Http2)] {
            let mut client = harness.client(echo.address, protocol).await;
            for index in 0..20 {
                let body = format!("{index}").repeat(1000 * index);
                let request = Request::post("/x").body(body.clone()).unwrap();
                let (status, headers, text) = client.request(request).await;
                assert_eq!(status, 200);
                assert!(text.ends_with(&body));
                assert!(!headers.contains("alt-svc"), "{headers}");
            }
            assert_eq!(echo.connections.load(Ordering::Relaxed), count, "{protocol:?}");
        }
    });
}

#[test]
fn the_client_gets_the_http_version_of_the_server() {
    run(async {
        let root = TestCa::new();
        let old = EchoServer::start(Some(root.server(NAME, &[b"http/1.1"]))).await;
        let none = EchoServer::start(Some(root.server(NAME, &[]))).await;
        let new = EchoServer::start(Some(root.server(NAME, &BOTH))).await;
        let harness = Harness::new(&["allow@api.example:http:*:/"], Vec::new(), &[&root], None);
        for (address, offered, chosen) in [
            (new.address, &BOTH[..], HttpVersion::Http2),
            (new.address, &[b"http/1.1"], HttpVersion::Http1),
            (old.address, &BOTH, HttpVersion::Http1),
            (none.address, &BOTH, HttpVersion::Http1),
            (new.address, &[], HttpVersion::Http1),
        ] {
            let stream = harness.tls(address, offered).await;
            let alpn = stream.get_ref().1.alpn_protocol();
            assert_eq!(alpn, (!offered.is_empty()).then_some(chosen.alpn()));
            let mut client = Client::over(TokioIo::new(stream), chosen).await;
            assert_eq!(client.get("/").await.0, 200);
        }
    });
}

#[test]
fn a_request_for_another_host_is_refused() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &BOTH))).await;
        let harness = Harness::new(&["allow@api.example:http:*:/"], Vec::new(), &[&root], None);
        let port = echo.address.port();
        for (host, status) in [
            (NAME.to_owned(), 200),
            (format!("API.example.:{port}"), 200),
            ("other.example".to_owned(), 421),
            (format!("{NAME}:1"), 421),
            (format!("x@{NAME}"), 421),
            ("127.0.0.1".to_owned(), 421),
        ] {
            let mut client = harness.client(echo.address, HttpVersion::Http1).await;
            let request = Request::get("/").header("host", &host).body(String::new()).unwrap();
            assert_eq!(client.request(request).await.0, status, "{host}");
        }
        for (authority, host, status) in
            [(NAME, None, 200), ("other.example", None, 421), (NAME, Some("other.example"), 421)]
        {
            let mut client = harness.client(echo.address, HttpVersion::Http2).await;
            let mut request = Request::get(format!("https://{authority}/"));
            if let Some(host) = host {
                request = request.header("host", host);
            }
            let answer = client.request(request.body(String::new()).unwrap()).await;
            assert_eq!(answer.0, status, "{authority} {host:?}");
        }
        assert_eq!(echo.seen().len(), 3);
    });
}

#[test]
fn a_hello_for_another_name_is_refused() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &BOTH))).await;
        let harness = Harness::new(&["allow@api.example:http:*:/"], Vec::new(), &[&root], None);
        assert!(harness.tls_to(NAME, "other.example", echo.address, &BOTH).await.is_err());
        assert!(harness.tls_to(NAME, NAME, echo.address, &[b"imap"]).await.is_err());
        let verdicts = harness.verdicts(2).await;
        assert!(verdicts.iter().all(|verdict| verdict.decision == Decision::Deny));
        assert_eq!(echo.connections.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_server_that_cannot_be_verified_gets_nothing() {
    run(async {
        let (root, unknown) = (TestCa::new(), TestCa::new());
        let wrong_root = EchoServer::start(Some(unknown.server(NAME, &BOTH))).await;
        let wrong_name = EchoServer::start(Some(root.server("other.example", &BOTH))).await;
        let harness = Harness::new(&["allow@api.example:http:*:/"], Vec::new(), &[&root], None);
        for echo in [&wrong_root, &wrong_name] {
            let mut client = harness.client(echo.address, HttpVersion::Http1).await;
            let (status, _, text) = client.get("/").await;
            assert_eq!(status, 502);
            assert!(text.contains("its certificate is not trusted"), "{text}");
            let verdict = harness.verdicts(1).await.remove(0);
            assert_eq!(verdict.decision, Decision::Deny);
            assert!(echo.seen().is_empty());
        }
    });
}

#[test]
fn a_failed_connect_is_reported_to_the_client() {
    run(async {
        let closed = {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            listener.local_addr().unwrap()
        };
        let harness = Harness::new(&["allow@api.example:http:*:/"], Vec::new(), &[], None);
        for protocol in [HttpVersion::Http1, HttpVersion::Http2] {
            let mut client = harness.client(closed, protocol).await;
            let (status, _, text) = client.get("/").await;
            assert_eq!(status, 502);
            assert!(text.contains("cannot connect"), "{text}");
        }
        let stream = harness.flow(NAME, closed, false);
        let mut client = Client::over(TokioIo::new(stream), HttpVersion::Http1).await;
        assert_eq!(client.get("/").await.0, 502);
    });
}

#[test]
fn plain_requests_are_ruled_too() {
    run(async {
        let echo = EchoServer::start(None).await;
        let rules = ["allow@api.example:http:GET:/v1/"];
        let harness = Harness::new(&rules, Vec::new(), &[], None);
        let stream = harness.flow(NAME, echo.address, false);
        let mut client = Client::over(TokioIo::new(stream), HttpVersion::Http1).await;
        assert_eq!(client.get("/v1/x").await.0, 200);
        assert_eq!(client.get("/v2/x").await.0, 403);
        assert_eq!(client.get("/v1/y").await.0, 200);
        assert_eq!(echo.connections.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn method_and_path_override_headers_are_checked() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &BOTH))).await;
        let harness =
            Harness::new(&["allow@api.example:http:GET,POST:/v1/"], Vec::new(), &[&root], None);
        let mut client = harness.client(echo.address, HttpVersion::Http1).await;
        for (name, value, status) in [
            ("x-http-method-override", "GET", 200),
            ("x-http-method-override", "DELETE", 403),
            ("x-original-url", "/v1/x", 200),
            ("x-rewrite-url", "/admin", 403),
        ] {
            let request = Request::post("/v1/x").header(name, value).body(String::new()).unwrap();
            assert_eq!(client.request(request).await.0, status, "{name}: {value}");
        }
    });
}
