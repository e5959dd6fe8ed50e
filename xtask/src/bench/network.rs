//! What the gateway costs beside pasta and slirp4netns: bulk streams both ways, opening connections,
//! and the start of a sandbox.
//!
//! All of them reach a server on this machine's loopback, so that no wire is measured.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use super::bench_dir::BenchDir;
use super::contender::Contenders;
use super::rounds::{self, Entrant};
use super::runner::View;
use super::stopwatch::Argv;
use super::table::{Goal, Table, Unit};
use crate::workspace;

const BOX: &str = "network";
const BULK: &str = "5261";

/// A server that accepts and closes connections.
const SERVER: &str = "\
import socket
s = socket.create_server(('127.0.0.1', 5262), backlog=128)
while True: s.accept()[0].close()
";

/// Opens connections one after the other and prints how many milliseconds one takes.
const CLIENT: &str = "\
import socket, sys, time
def one():
    s = socket.create_connection((sys.argv[1], 5262)); s.recv(1); s.close()
for _ in range(20): one()
begun = time.perf_counter()
for _ in range(200): one()
print((time.perf_counter() - begun) / 200 * 1000)
";

/// Where each of them has this machine's loopback.
const OURS: &str = "198.18.0.1";
const SLIRP: &str = "10.0.2.2";

pub(super) fn tables(
    bench_dir: &mut BenchDir,
    contenders: &Contenders,
    rounds: usize,
) -> Result<Vec<Table>> {
    let _device = Device::open_to_all()?;
    let _bulk = Server::start(Command::new("iperf3").args(["-s", "-B", "127.0.0.1", "-p", BULK]))?;
    let _short = Server::start(Command::new("python3").args(["-c", SERVER]))?;
    let create = ["create", "--net", "host", "-q", "--isolation", "process", "--name", BOX, "host"];
    let remove = contenders.msb(&["rm", "-q", "-f", BOX]);
    bench_dir.start(View::Plain, &contenders.msb(&create), remove)?;
    // The work is bulky: a few rounds are enough.
    let few = rounds.min(5);
    let bulk = |reverse: &'static [&'static str]| {
        move |host: &str| {
            [&["iperf3", "-c", host, "-p", BULK, "-t", "2", "-J"], reverse].concat().join(" ")
        }
    };
    let out = work(bench_dir, contenders, few, "1 GiB out, one stream", 1.0, &bulk(&[]), iperf)?;
    let inwards =
        work(bench_dir, contenders, few, "1 GiB in, one stream", 1.0, &bulk(&["-R"]), iperf)?;
    let client = bench_dir.path("host") + "/connect.py";
    fs::write(&client, CLIENT)?;
    let connect = |host: &str| format!("python3 - {host} < {client}");
    let opened =
        work(bench_dir, contenders, few, "one connection opened and closed", 1.5, &connect, plain)?;
    let started = start(bench_dir, contenders, rounds)?;
    bench_dir.clear();
    Ok(vec![out, inwards, opened, started])
}

/// Runs one command in each network; `read` gets milliseconds from its output.
fn work(
    bench_dir: &BenchDir,
    contenders: &Contenders,
    rounds: usize,
    name: &str,
    limit: f64,
    command: &dyn Fn(&str) -> String,
    read: fn(&str) -> Result<f64>,
) -> Result<Table> {
    let runner = bench_dir.runner(View::Plain);
    let said = bench_dir.path("log") + "/said";
    let shell = |script: String| -> Argv {
        ["/bin/sh", "-c", &format!("({script}) > {said}")].map(str::to_owned).to_vec()
    };
    let measure = |argv: Argv| {
        let said = said.clone();
        Box::new(move || {
            runner.run(&argv)?;
            read(&fs::read_to_string(&said)?)
        })
    };
    // What comes by stdin goes through `exec` as well.
    let exec = contenders.msb(&["exec", "-q", "--no-tty", BOX, "--"]).join(" ");
    let ours = format!("{exec} {}", command(OURS));
    let gateway = default_gateway().unwrap_or_default();
    let pasta = format!("pasta --config-net -q -- sh -c '{}'", command(&gateway));
    let slirp = format!(
        "unshare -rn sleep 60 & box=$!; sleep 0.3; \
         slirp4netns --configure --mtu=65520 $box tap0 >/dev/null 2>&1 & net=$!; sleep 1; \
         nsenter -t $box -U -n --preserve-credentials sh -c '{}'; code=$?; \
         kill $net $box; exit $code",
        command(SLIRP)
    );
    let entrants = vec![
        Entrant { name: "msb", ours: true, measure: measure(shell(ours)) },
        Entrant { name: "pasta", ours: false, measure: measure(shell(pasta)) },
        Entrant { name: "slirp4netns", ours: false, measure: measure(shell(slirp)) },
    ];
    let series = rounds::play(rounds, entrants)?;
    Ok(Table::new(name, Unit::Milliseconds, "pasta", Some(Goal::Ratio(limit)), &series))
}

/// How much longer a start with a network takes than one without, each pair in one round.
fn start(bench_dir: &BenchDir, contenders: &Contenders, rounds: usize) -> Result<Table> {
    let runner = bench_dir.runner(View::Plain);
    let run = |net: &str| {
        let rootfs = bench_dir.path("rootfs");
        contenders.msb(&["run", net, "-q", "--isolation", "process", &rootfs, "--", "/bin/true"])
    };
    let (with, without) = (run("--net=public"), run("--no-net"));
    let measure = || {
        let without = rounds::milliseconds(runner.run(&without)?);
        Ok(rounds::milliseconds(runner.run(&with)?) - without)
    };
    let entrant = Entrant { name: "msb", ours: true, measure: Box::new(measure) };
    let series = rounds::play(rounds, vec![entrant])?;
    let work = "start with a network, less one without";
    Ok(Table::new(work, Unit::Milliseconds, "msb", Some(Goal::Value(2.0)), &series))
}

/// Milliseconds for 1 GiB, as iperf3 counts what arrived.
fn iperf(said: &str) -> Result<f64> {
    let said: Value = serde_json::from_str(said).context("iperf3 said nothing readable")?;
    let rate = said["end"]["sum_received"]["bits_per_second"].as_f64();
    let rate = rate.with_context(|| format!("iperf3 failed: {}", said["error"]))?;
    Ok(8.0 * f64::from(1 << 30) / rate * 1e3)
}

fn plain(said: &str) -> Result<f64> {
    said.trim().parse().with_context(|| format!("not a number: `{said}`"))
}

/// Where pasta has this machine.
fn default_gateway() -> Result<String> {
    let routes = workspace::output(Command::new("ip").args(["route", "show", "default"]))?;
    let mut words = routes.split_whitespace().skip_while(|word| *word != "via");
    Ok(words.nth(1).context("this machine has no default route")?.to_owned())
}

/// The device that networks are made with, as most distributions have it; afterwards as it was.
struct Device(fs::Permissions);

const TUN: &str = "/dev/net/tun";

impl Device {
    fn open_to_all() -> Result<Self> {
        let about = || format!("cannot open `{TUN}` to all users");
        let before = fs::metadata(TUN).with_context(about)?.permissions();
        fs::set_permissions(TUN, fs::Permissions::from_mode(0o666)).with_context(about)?;
        Ok(Device(before))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = fs::set_permissions(TUN, self.0.clone());
    }
}

/// Ended with what it measures.
struct Server(Child);

impl Server {
    fn start(command: &mut Command) -> Result<Self> {
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Server(child.with_context(|| format!("cannot run {:?}", command.get_program()))?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
