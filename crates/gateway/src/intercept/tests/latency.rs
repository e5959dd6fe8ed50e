//! What looking into requests costs: figures to be read, not promises.

use super::super::upstream::Protocol;
use super::super::{Interceptor, Settings};
use super::lab::{Client, Echo, Lab, NAME, PLACEHOLDER, Root, run, secret};
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

/// The middle of so many requests on a connection that is warm.
async fn median(client: &mut Client, header: &str) -> Duration {
    let mut times = Vec::new();
    for _ in 0..REQUESTS {
        let request = Request::get("/").header("authorization", header);
        let request = request.body(String::new()).unwrap();
        let begin = Instant::now();
        assert_eq!(client.ask(request).await.0, 200);
        times.push(begin.elapsed());
    }
    times.sort();
    times[REQUESTS / 2]
}

#[test]
fn latency_of_a_warm_request() {
    run(async {
        let root = Root::new();
        let echo = Echo::start(Some(root.server(NAME, &[b"h2", b"http/1.1"]))).await;
        let lab = Lab::new(&["allow@any"], vec![secret(&[], false)], &[&root], None);
        for protocol in [Protocol::One, Protocol::Two] {
            let stream = TcpStream::connect(echo.address).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let connector = TlsConnector::from(root.client(protocol));
            let name = ServerName::try_from(NAME).unwrap();
            let stream = connector.connect(name, stream).await.unwrap();
            let mut direct = Client::over(TokioIo::new(stream), protocol).await;
            let direct = median(&mut direct, "Bearer x").await;
            let mut client = lab.client(echo.address, protocol).await;
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
    let roots: Vec<Vec<u8>> = (0..150).map(|_| Root::new().der).collect();
    let settings = || Settings {
        policy: Policy { rules: Vec::new(), default: Decision::Deny },
        secrets: Vec::new(),
        proxy: None,
        roots: roots.clone(),
        budget: crate::budget::Budget::new(msb_spec::GATEWAY_MEMORY.0),
    };
    let median = |start: &dyn Fn(Settings)| {
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
