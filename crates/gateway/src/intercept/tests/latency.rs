//! Measures what interception costs. The figures are printed, not checked.

use super::super::{InterceptSettings, Interceptor};
use super::harness::{Client, EchoServer, Harness, NAME, PLACEHOLDER, TestCa, run, test_secret};
use crate::tls::client::HttpVersion;
use hyper::Request;
use hyper_util::rt::TokioIo;
use msb_spec::{Decision, Policy};
use std::io::Write as _;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

const REQUESTS: usize = 300;
const STARTS: usize = 20;

/// The median time of a request on a warm connection.
async fn median(client: &mut Client, header: &str) -> Duration {
    let mut times = Vec::new();
    for _ in 0..REQUESTS {
        let request = Request::get("/").header("authorization", header);
        let request = request.body(String::new()).unwrap();
        let begin = Instant::now();
        assert_eq!(client.request(request).await.0, 200);
        times.push(begin.elapsed());
    }
    times.sort();
    times[REQUESTS / 2]
}

#[test]
fn latency_of_a_warm_request() {
    run(async {
        let root = TestCa::new();
        let echo = EchoServer::start(Some(root.server(NAME, &[b"h2", b"http/1.1"]))).await;
        let harness = Harness::new(&["allow@any"], vec![test_secret(&[], false)], &[&root], None);
        for protocol in [HttpVersion::Http1, HttpVersion::Http2] {
            let stream = TcpStream::connect(echo.address).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let connector = TlsConnector::from(root.client(protocol));
            let name = ServerName::try_from(NAME).unwrap();
            let stream = connector.connect(name, stream).await.unwrap();
            let mut direct = Client::over(TokioIo::new(stream), protocol).await;
            let direct = median(&mut direct, "Bearer x").await;
            let mut client = harness.client(echo.address, protocol).await;
            let through = median(&mut client, &format!("Bearer {PLACEHOLDER}")).await;
            writeln!(
                std::io::stdout(),
                "{protocol:?}: {through:?} through the gateway, {direct:?} direct"
            )
            .unwrap();
        }
    });
}

#[test]
fn cost_of_a_start() {
    let roots: Vec<Vec<u8>> = (0..150).map(|_| TestCa::new().der).collect();
    let settings = || InterceptSettings {
        policy: Policy { rules: Vec::new(), default: Decision::Deny },
        secrets: Vec::new(),
        proxy: None,
        roots: roots.clone(),
        budget: crate::budget::MemoryBudget::new(msb_spec::GATEWAY_MEMORY.0),
    };
    let median = |start: &dyn Fn(InterceptSettings)| {
        let mut times: Vec<Duration> = (0..STARTS)
            .map(|_| {
                let settings = settings();
                let begin = Instant::now();
                start(settings);
                begin.elapsed()
            })
            .collect();
        times.sort();
        (times[0], times[STARTS / 2])
    };
    let plain = median(&|settings| drop(Interceptor::start_plain(settings).unwrap()));
    let whole = median(&|settings| drop(Interceptor::start(settings).unwrap()));
    writeln!(std::io::stdout(), "start (best, median): {whole:?}, {plain:?} without an authority")
        .unwrap();
}
