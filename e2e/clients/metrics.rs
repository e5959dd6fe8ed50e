//! Metrics, read by the programs that they are for.

use crate::installed;
use msb_e2e::{Msb, ends, gives};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

const PROMETHEUS: &str = "
import sys
from prometheus_client.parser import text_string_to_metric_families as parse
families = {f.name: f for f in parse(sys.stdin.read())}
cpu = families['msb_sandbox_cpu_seconds']
assert cpu.type == 'counter' and cpu.documentation, cpu
assert [s.labels['name'] for s in cpu.samples] == ['box'], cpu
assert cpu.samples[0].value > 0, cpu
up = {s.labels['name']: (s.value, s.labels['state']) for s in families['msb_sandbox_up'].samples}
assert up == {'box': (1, 'running'), 'off': (0, 'stopped')}, up
print(len(families))
";

#[test]
fn prometheus_reads_the_exposition() {
    let msb = Msb::new();
    for name in ["box", "off"] {
        msb.run(["create", "-n", name]).ok();
    }
    msb.words("stop off").ok();
    let text = msb.words("metrics --prometheus").ok().stdout;
    let mut reader = Command::new(installed::reader())
        .args(["-c", PROMETHEUS])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it is installed");
    reader.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    let families: usize = ends(reader).line().parse().expect("a number");
    assert!(families >= 10, "{text}");
}

/// Takes one delivery and prints where it was listening before, and what was in it after.
const COLLECTOR: &str = "
import http.server, json, sys
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        got = Parse(body, ExportMetricsServiceRequest())
        metrics = {m.name: m for m in got.resource_metrics[0].scope_metrics[0].metrics}
        cpu = metrics['msb_sandbox_cpu_seconds_total']
        point = cpu.sum.data_points[0]
        assert cpu.unit == 's' and cpu.sum.is_monotonic and cpu.sum.aggregation_temporality == 2
        assert point.as_double > 0 and 0 < point.start_time_unix_nano < point.time_unix_nano
        assert metrics['msb_sandbox_memory_bytes'].gauge.data_points[0].as_double > 0
        names = [a.value.string_value for a in point.attributes if a.key == 'name']
        print(json.dumps([self.path, names, self.headers.get('x-team')]), flush=True)
        self.send_response(200); self.send_header('Content-Length', '2'); self.end_headers()
        self.wfile.write(b'{}')
    def log_message(self, *_): pass
server = http.server.HTTPServer(('127.0.0.1', 0), Handler)
print(server.server_address[1], flush=True)
server.handle_request(); server.handle_request()
";

#[test]
fn an_opentelemetry_collector_gets_the_metrics() {
    let msb = Msb::new();
    msb.words("create -n box").ok();
    let mut collector = Command::new(installed::reader())
        .args(["-c", COLLECTOR])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it is installed");
    let mut said = BufReader::new(collector.stdout.take().expect("a pipe")).lines();
    let port = said.next().expect("a line").expect("a line");
    let mut start = msb.command(["server", "start", "-dp", "0", "--otlp-interval", "1s"]);
    start.args(["--otlp", &format!("http://127.0.0.1:{port}")]);
    gives(start.env("OTEL_EXPORTER_OTLP_HEADERS", "x-team=a%20b")).ok();
    for _ in 0..2 {
        let told = said.next().map(|line| line.expect("a line"));
        if told.is_none() {
            panic!("{:#?}", ends(collector));
        }
        assert_eq!(told.as_deref(), Some(r#"["/v1/metrics", ["box"], "a b"]"#));
    }
    ends(collector).ok();
    // The server goes on without its collector.
    assert!(msb.words("server status").ok().stdout.starts_with("running"));
    msb.words("server stop").ok();
    let gave = msb.words("server start --otlp nonsense");
    assert!(gave.code != 0 && gave.stderr.contains("not the address of a collector"), "{gave:?}");
}
