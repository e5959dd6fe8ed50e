//! What a sandbox changed in a large workspace, beside what git says of the same changes.

use anyhow::Result;

use super::bench_dir::BenchDir;
use super::contender::{self, Contenders};
use super::rounds::{self, Entrant};
use super::runner::View;
use super::table::{Goal, Table, Unit};

const NAME: &str = "review";

/// 30,000 files in 300 directories, known to git.
const MAKE: &str = "\
mkdir -p $1 && cd $1 && for d in $(seq 300); do mkdir d$d; for f in $(seq 100); do \
echo \"$d $f\" > d$d/f$f; done; done && git init -q && git config gc.auto 0 && git add . && \
git -c user.name=x -c user.email=x@example.com commit -qm all && cp -a $1 $2";

/// Makes 100 changes, inside and in the copy that git looks at.
const CHANGE: &str = "for f in $(seq 100); do echo more >> d7/f$f; done";

pub(super) fn table(
    bench_dir: &mut BenchDir,
    contenders: &Contenders,
    rounds: usize,
) -> Result<Table> {
    let directory = bench_dir.directory(&bench_dir.user)?;
    let (project, copy) = (format!("{directory}/project"), format!("{directory}/copy"));
    let shell = |script: &str| contender::words("/bin/sh", &["-c", script, "sh", &project, &copy]);
    bench_dir.runner(View::Plain).run(&shell(MAKE))?;
    let make =
        ["create", "--no-net", "-q", "--isolation", "process", "--name", NAME, "--workspace"];
    let create = contenders.msb(&[&make[..], &[&project, "host"]].concat());
    bench_dir.start(View::Plain, &create, contenders.msb(&["rm", "-q", "-f", NAME]))?;
    let plain = bench_dir.runner(View::Plain);
    plain.run(&contenders.msb(&["exec", "-q", NAME, "--", "/bin/sh", "-c", CHANGE]))?;
    plain.run(&shell(&format!("cd $2 && {CHANGE}")))?;
    let entrants = vec![
        Entrant::timed("msb diff", plain, contenders.msb(&["diff", NAME])).ours(),
        Entrant::timed("msb diff --patch", plain, contenders.msb(&["diff", "--patch", NAME])),
        Entrant::timed(
            "git status",
            plain,
            contender::words("/usr/bin/git", &["-C", &copy, "status", "--short"]),
        ),
    ];
    let series = rounds::play(rounds, entrants)?;
    bench_dir.clear();
    let work = "100 changes among 30,000 files";
    Ok(Table::new(work, Unit::Milliseconds, "git status", Some(Goal::Ratio(1.0)), &series))
}
