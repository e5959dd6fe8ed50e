//! Serving: what MCP costs beside the library, how soon a server answers, many calls at once.

mod mcp_clients;
mod node;

use std::cell::RefCell;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::bench_dir::BenchDir;
use super::contender::{self, Contenders};
use super::library;
use super::rounds::{self, Entrant, Series};
use super::runner::View;
use super::table::{Goal, Table, Unit};
use mcp_clients::{Http, Listener, Stdio};
use node::Node;

const NAME: &str = "served";
/// Calls at the same time.
const CONCURRENT_CALLS: usize = 64;
/// Each is 64 calls, so fewer rounds say as much.
const SHARE: usize = 5;
/// What a call over MCP may cost beyond the same from the library.
const MORE: f64 = 0.5;
/// Until the first answer of a server that was just started.
const FIRST: f64 = 30.0;
/// What a command may cost that a shell is told which already runs. The authors of sandbox-mcp
/// write 60 ms of theirs.
const TOLD: f64 = 3.0;
/// Of what the same tools cost in Node.js.
const PART: f64 = 0.1;

pub(super) fn tables(
    bench_dir: &mut BenchDir,
    contenders: &Contenders,
    rounds: usize,
) -> Result<Vec<Table>> {
    let [start, end] = contenders.msb_box(NAME);
    bench_dir.start(View::Plain, &start, end).context("cannot create a sandbox")?;
    let listener = Listener::start(bench_dir, contenders)?;
    let tables = vec![
        one(bench_dir, contenders, &listener, rounds)?,
        shell(bench_dir, contenders, rounds)?,
        concurrent_calls(bench_dir, contenders, &listener, rounds.div_ceil(SHARE))?,
    ];
    drop(listener);
    bench_dir.clear();
    let starts = starts(bench_dir, contenders, rounds.div_ceil(SHARE))?;
    Ok(tables.into_iter().chain(starts).collect())
}

fn call(number: usize) -> String {
    let arguments = serde_json::json!({"name": NAME, "command": "/bin/true"});
    let params = serde_json::json!({"name": "sandbox_exec", "arguments": arguments});
    mcp_clients::request(number, "tools/call", &params)
}

/// Whether a command has ended well.
fn well(answer: &str) -> Result<()> {
    ensure!(answer.contains(r#"\"exitCode\": 0"#), "the call failed: {answer}");
    Ok(())
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let since = Instant::now();
    work()?;
    Ok(rounds::milliseconds(since.elapsed()))
}

/// One call beside the same from the library.
fn one(
    bench_dir: &BenchDir,
    contenders: &Contenders,
    listener: &Listener,
    rounds: usize,
) -> Result<Table> {
    let from_library = library::latency(bench_dir)?;
    let stdio = RefCell::new(Stdio::start(bench_dir, contenders.msb(&["mcp"]))?);
    let http = RefCell::new(Http::connect(listener)?);
    let over_stdio = || timed(|| well(&stdio.borrow_mut().ask(&call(1))?));
    let over_http = || timed(|| well(&http.borrow_mut().ask(&call(1))?));
    let library = "library Exec";
    let entrants = vec![
        Entrant { name: library, ours: false, measure: from_library },
        Entrant { name: "sandbox_exec on stdio", ours: true, measure: Box::new(over_stdio) },
        Entrant { name: "sandbox_exec over HTTP", ours: true, measure: Box::new(over_http) },
    ];
    let series = rounds::play(rounds, entrants)?;
    let goal = middle(&series, library).map(|median| Goal::Value(hundredths(median + MORE)));
    Ok(Table::new("one call that runs true", Unit::Milliseconds, library, goal, &series))
}

/// A command for the shell that sandbox-mcp keeps, beside one that is started for itself.
fn shell(bench_dir: &BenchDir, contenders: &Contenders, rounds: usize) -> Result<Table> {
    let call = |tool: &str, mut arguments: serde_json::Value| {
        arguments["sandbox"] = "shell".into();
        let params = serde_json::json!({"name": tool, "arguments": arguments});
        mcp_clients::request(1, "tools/call", &params)
    };
    let exec = |command: &str| call("exec", serde_json::json!({ "command": command }));
    let (builtin, program) = (exec("true"), exec("/bin/true"));
    let set = ["MSB_NET=none", "MSB_ISOLATION=process"];
    let argv = contenders.msb(&["mcp", "--dialect", "sandbox-mcp"]);
    let argv = contender::words("/usr/bin/env", &set).into_iter().chain(argv).collect();
    let kept = RefCell::new(Stdio::start(bench_dir, argv)?);
    let started = RefCell::new(Stdio::start(bench_dir, contenders.msb(&["mcp"]))?);
    // The first call makes the sandbox.
    silent(&kept.borrow_mut().ask(&program)?)?;
    let told = |line: &str| timed(|| silent(&kept.borrow_mut().ask(line)?));
    let reference = "sandbox_exec on stdio";
    let entrants = vec![
        Entrant {
            name: reference,
            ours: false,
            measure: Box::new(|| timed(|| well(&started.borrow_mut().ask(&self::call(1))?))),
        },
        Entrant { name: "exec of true", ours: true, measure: Box::new(|| told(&builtin)) },
        Entrant { name: "exec of /bin/true", ours: true, measure: Box::new(|| told(&program)) },
    ];
    let series = rounds::play(rounds, entrants);
    kept.borrow_mut().ask(&call("destroy", serde_json::json!({})))?;
    let (work, goal) = ("one call to the shell of sandbox-mcp", Some(Goal::Value(TOLD)));
    Ok(Table::new(work, Unit::Milliseconds, reference, goal, &series?))
}

/// Whether a command of sandbox-mcp has said nothing but how long it took.
fn silent(answer: &str) -> Result<()> {
    ensure!(answer.contains(r#""text":"("#), "the call failed: {answer}");
    Ok(())
}

fn middle(series: &[Series], name: &str) -> Option<f64> {
    let found = series.iter().find(|series| series.name == name)?;
    rounds::median(found.samples.as_deref().ok()?)
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Many calls at once, beside as many programs.
fn concurrent_calls(
    bench_dir: &BenchDir,
    contenders: &Contenders,
    listener: &Listener,
    rounds: usize,
) -> Result<Table> {
    let stdio = RefCell::new(Stdio::start(bench_dir, contenders.msb(&["mcp"]))?);
    let connect = |_| Http::connect(listener);
    let http = RefCell::new((0..CONCURRENT_CALLS).map(connect).collect::<Result<Vec<_>>>()?);
    let over_stdio = || {
        timed(|| {
            let mut stdio = stdio.borrow_mut();
            for number in 0..CONCURRENT_CALLS {
                stdio.tell(&call(number))?;
            }
            (0..CONCURRENT_CALLS).try_for_each(|_| well(&stdio.hear()?))
        })
    };
    let over_http = || {
        let mut http = http.borrow_mut();
        timed(|| {
            thread::scope(|scope| {
                let ask = |http: &'_ mut Http| well(&http.ask(&call(1))?);
                let asked: Vec<_> =
                    http.iter_mut().map(|http| scope.spawn(move || ask(http))).collect();
                asked.into_iter().try_for_each(|call| call.join().expect("it does not panic"))
            })
        })
    };
    let programs = || {
        let exec = contenders.msb(&["exec", "-q", NAME, "--", "/bin/true"]);
        let (time, failed) =
            bench_dir.runner(View::Plain).run_concurrently(vec![exec; CONCURRENT_CALLS])?;
        ensure!(failed == 0, "{failed} of {CONCURRENT_CALLS} failed");
        Ok(rounds::milliseconds(time))
    };
    let reference = "64 times msb exec";
    let entrants = vec![
        Entrant { name: reference, ours: false, measure: Box::new(programs) },
        Entrant { name: "64 calls on stdio", ours: true, measure: Box::new(over_stdio) },
        Entrant { name: "64 calls over HTTP", ours: true, measure: Box::new(over_http) },
    ];
    let series = rounds::play(rounds, entrants)?;
    let work = "64 at once, each runs true";
    Ok(Table::new(work, Unit::Milliseconds, reference, None, &series))
}

/// From nothing to an answer, beside the package that our usual tools are those of.
fn starts(bench_dir: &BenchDir, contenders: &Contenders, rounds: usize) -> Result<Vec<Table>> {
    let node = Node::install(bench_dir)?;
    let (package, alone) = ("microsandbox-mcp", "Node.js with the SDK, no tools");
    let mut tables = Vec::new();
    for tools in [false, true] {
        let ours = || {
            timed(|| {
                let mut server = Stdio::start(bench_dir, contenders.msb(&["mcp"]))?;
                if tools { server.tools() } else { Ok(()) }
            })
        };
        let theirs = || {
            let argv = node.package()?;
            timed(|| {
                let mut server = Stdio::start(bench_dir, argv)?;
                if tools { server.tools() } else { Ok(()) }
            })
        };
        let least = || {
            let argv = node.alone()?;
            timed(|| {
                let mut server = Stdio::start(bench_dir, argv)?;
                if tools { server.tools() } else { Ok(()) }
            })
        };
        let entrants = vec![
            Entrant { name: "msb mcp", ours: true, measure: Box::new(ours) },
            Entrant { name: package, ours: false, measure: Box::new(theirs) },
            Entrant { name: alone, ours: false, measure: Box::new(least) },
        ];
        let series = rounds::play(rounds, entrants)?;
        let (work, goal) = match tools {
            false => ("start to the answer of initialize", Goal::Value(FIRST)),
            true => ("start to the answer of tools/list", Goal::Ratio(PART)),
        };
        let table = Table::new(work, Unit::Milliseconds, package, Some(goal), &series);
        tables.push(table.beside(alone, tools.then_some(PART)));
    }
    Ok(tables)
}
