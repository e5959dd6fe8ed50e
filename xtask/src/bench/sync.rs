//! Ten thousand files brought into a sandbox by a sync, at its start and while it follows, beside
//! copies of the same on the host.

use anyhow::Result;

use super::bench_dir::BenchDir;
use super::contender::{self, Contenders};
use super::rounds::{self, Entrant};
use super::runner::View;
use super::table::{Table, Unit};

const NAME: &str = "sync";

/// 10,000 files in 100 directories, 40 MB together.
const MAKE: &str = "\
mkdir -p $1 && cd $1 && head -c 4000 /dev/urandom > block && for d in $(seq 100); do mkdir d$d; \
for f in $(seq 100); do cp block d$d/f$f; done; done && rm block";

/// Copies them into a directory that is followed, and waits until all are inside.
const BURST: &str = "\
cp -a $1 $2/burst && until $3 sync ls --json | tr -d ' \\n' | \
grep -q '\"state\":\"watching\".*\"files\":10000,'; do :; done";

pub(super) fn table(
    bench_dir: &mut BenchDir,
    contenders: &Contenders,
    rounds: usize,
) -> Result<Table> {
    let directory = bench_dir.directory(&bench_dir.user)?;
    let at = |name: &str| format!("{directory}/{name}");
    let (tree, empty, copy) = (at("tree"), at("empty"), at("copy"));
    let create = ["create", "--no-net", "-q", "--isolation", "process", "--name", NAME, "host"];
    bench_dir.start(
        View::Plain,
        &contenders.msb(&create),
        contenders.msb(&["rm", "-q", "-f", NAME]),
    )?;
    let plain = bench_dir.runner(View::Plain);
    let program = contenders.msb(&[]).concat();
    let shell = |script: &str| {
        plain.run(&contender::words("/bin/sh", &["-c", script, "sh", &tree, &empty, &program]))
    };
    shell(MAKE)?;
    let msb = |words: &[&str]| plain.run(&contenders.msb(words));
    let clean = || -> Result<()> {
        msb(&["sync", "stop", "--all"])?;
        msb(&["exec", "-q", NAME, "--", "/bin/rm", "-rf", "/root/app"])?;
        shell("rm -rf $2").map(|_| ())
    };
    let first = || -> Result<f64> {
        let took = msb(&["sync", "start", "-q", &tree, "sync:/root/app"])?;
        clean()?;
        Ok(rounds::milliseconds(took))
    };
    let burst = || -> Result<f64> {
        shell("mkdir $2")?;
        msb(&["sync", "start", "-q", &empty, "sync:/root/app"])?;
        let took = shell(BURST)?;
        clean()?;
        Ok(rounds::milliseconds(took))
    };
    let copied = |program: &str| -> Result<f64> {
        let (from, into) = (format!("{tree}/"), format!("{copy}/"));
        let took = plain.run(&contender::words(program, &["-a", &from, &into]))?;
        plain.run(&contender::words("/bin/rm", &["-rf", &copy]))?;
        Ok(rounds::milliseconds(took))
    };
    let entrants = vec![
        Entrant { name: "msb sync start", ours: true, measure: Box::new(first) },
        Entrant { name: "msb, cp -a into what is followed", ours: true, measure: Box::new(burst) },
        Entrant { name: "cp -a", ours: false, measure: Box::new(|| copied("/bin/cp")) },
        Entrant { name: "rsync -a", ours: false, measure: Box::new(|| copied("/usr/bin/rsync")) },
    ];
    let series = rounds::play(rounds.min(10), entrants)?;
    bench_dir.clear();
    let work = "10,000 files of 4 kB brought inside by a sync";
    Ok(Table::new(work, Unit::Milliseconds, "cp -a", None, &series))
}
