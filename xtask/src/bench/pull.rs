//! Pull and unpack of a large image, and the first run after that.
//!
//! Every round has a directory of its own, and none is removed before the benchmark ends: ext4
//! steps over inodes that were freed not long ago, one by one, and the next contender that
//! creates files would pay for that. So does a benchmark that is started within minutes of the end of another.

use std::cell::RefCell;
use std::process::Command;

use anyhow::Result;

use super::bench_dir::BenchDir;
use super::contender::{self, Contenders};
use super::large::{self, Large};
use super::layout::Packing;
use super::registry::Registry;
use super::rounds::{self, Entrant, Series};
use super::runner::{Runner, User, View};
use super::stopwatch::Argv;
use super::table::{Goal, Table, Unit};
use crate::workspace;

/// The goals are those of gzip; this only shows what else than decompression takes time.
const ZSTD_ROUNDS: usize = 1;

const EXAMPLE: &str = "gunzip";

const MSB: &str = "msb pull";
const PODMAN: &str = "podman pull";
const UMOCI: &str = "skopeo + umoci";

const FIRST: &str = "msb run";
const AGAIN: &str = "msb run, again";
const PODMAN_FIRST: &str = "podman run";
const PODMAN_AGAIN: &str = "podman run, again";

/// Makes the command line for a directory, which is the puller's own and at first empty.
type InDirectory<'a> = Box<dyn Fn(&str) -> Argv + 'a>;

struct Puller<'a> {
    name: &'static str,
    view: View,
    ours: bool,
    pull: InDirectory<'a>,
    /// Runs `true` out of what was pulled.
    run: Option<InDirectory<'a>>,
    /// Where the last round has pulled to.
    dir: RefCell<String>,
    /// Times of the first and the second run after each pull, or why there are none.
    runs: RefCell<Result<[Vec<f64>; 2], String>>,
}

/// The image that is pulled, and the user that pulls it.
struct Pull<'a> {
    bench_dir: &'a BenchDir,
    contenders: &'a Contenders,
    user: &'a User,
    packing: Packing,
    /// The image in the registry.
    image: &'a str,
    /// What only decompresses the largest layer.
    floors: &'a [(&'static str, Argv)],
}

pub(super) fn tables(
    bench_dir: &mut BenchDir,
    contenders: &Contenders,
    rounds: usize,
) -> Result<Vec<Table>> {
    let gunzip = workspace::build(
        &["--profile", "dist", "--package", "msb-image", "--example", EXAMPLE],
        EXAMPLE,
    )?;
    let gunzip = bench_dir.program(EXAMPLE, &gunzip)?;
    let large = Large::make(&bench_dir.path("large-image"))?;
    let registry = Registry::start(&bench_dir.path("registry"))?;
    start_podman(bench_dir)?;
    let mut tables = Vec::new();

    let (layout, largest) = large.layout(Packing::Gzip)?;
    let image = registry.push(&layout, "large:gzip")?;
    let largest = largest.file.display().to_string();
    let [zcat, option] = Packing::Gzip.unpack();
    let floors = [
        ("zcat", contender::words(zcat, &[option, &largest])),
        ("zlib-rs", contender::words(&gunzip, &[&largest])),
    ];
    for user in [&bench_dir.root, &bench_dir.user] {
        let (packing, image) = (Packing::Gzip, image.as_str());
        let pull = Pull { bench_dir, contenders, user, packing, image, floors: &floors };
        tables.extend(pull.tables(rounds)?);
    }

    let (layout, largest) = large.layout(Packing::Zstd)?;
    let image = registry.push(&layout, "large:zstd")?;
    let [zstd, option] = Packing::Zstd.unpack();
    let largest = largest.file.display().to_string();
    let floors = [("zstd", contender::words(zstd, &[option, &largest]))];
    let (user, packing, image) = (&bench_dir.root, Packing::Zstd, image.as_str());
    let pull = Pull { bench_dir, contenders, user, packing, image, floors: &floors };
    tables.extend(pull.tables(ZSTD_ROUNDS)?.into_iter().take(1));
    bench_dir.clear();
    Ok(tables)
}

/// The first podman of an ordinary user leaves a process that holds the namespaces of all others.
fn start_podman(bench_dir: &mut BenchDir) -> Result<()> {
    let dir = bench_dir.directory(&bench_dir.user)?;
    let (start, end) = (podman(&dir, &["info"]), podman(&dir, &["system", "migrate"]));
    if let Err(error) = bench_dir.start(View::NoHybrid, &start, end) {
        eprintln!("warning: podman: {error:#}");
    }
    Ok(())
}

impl Pull<'_> {
    /// Of pulls, and of the runs after them.
    fn tables(&self, rounds: usize) -> Result<[Table; 2]> {
        let pullers = self.pullers();
        let plain = self.bench_dir.another(self.user, View::Plain)?;
        let floors = self.floors.iter().map(|(name, argv)| {
            let measure = Box::new(|| quiet(&plain, argv));
            Entrant { name, ours: false, measure }
        });
        let entrants = pullers.iter().map(|puller| self.entrant(puller)).chain(floors);
        let series = rounds::play_cold(rounds, entrants.collect())?;
        pullers.iter().filter(|puller| puller.ours).try_for_each(|puller| self.check(puller))?;

        let packing = self.packing.name();
        let user = self.user.name;
        let work =
            format!("pull and unpack of 300 MB, 30,000 files, 3 layers of {packing}, as {user}");
        let goal = Some(Goal::Ratio(1.0));
        let mut pulls = Table::new(work, Unit::Milliseconds, PODMAN, goal, &series);
        if series.iter().any(|series| series.name == UMOCI) {
            pulls = pulls.beside(UMOCI, Some(1.0));
        }
        for (name, _) in self.floors {
            pulls = pulls.beside(name, None);
            pulls.note(name, "decompresses the largest layer, no more".to_owned());
        }

        let runs = pullers.iter().flat_map(Puller::runs).collect::<Vec<_>>();
        let work = format!("first run of true after a pull, as {user}");
        let runs = Table::new(work, Unit::Milliseconds, PODMAN_FIRST, None, &runs);
        Ok([pulls, runs.beside(AGAIN, None)])
    }

    fn pullers(&self) -> Vec<Puller<'_>> {
        let image = self.image;
        let msb =
            Puller::new(MSB, View::Plain, move |_| self.contenders.msb(&["pull", "-q", image]));
        let msb_run = move |_: &str| self.contenders.msb_run_image(image, &["/bin/true"]);
        let podman_pull = Puller::new(PODMAN, View::NoHybrid, move |dir| {
            podman(dir, &["pull", "-q", "--tls-verify=false", image])
        });
        let podman_run = move |dir: &str| {
            let run = ["run", "--rm", "--network", "none", "--pull", "never"];
            // Where root may not raise limits, crun fails with podman's own.
            let limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"];
            let rest = ["--log-driver", "none", image, "/bin/true"];
            podman(dir, &[&run[..], &limits, &rest].concat())
        };
        let mut pullers = vec![
            Puller { ours: true, run: Some(Box::new(msb_run)), ..msb },
            Puller { run: Some(Box::new(podman_run)), ..podman_pull },
        ];
        // Debian's umoci knows no zstd, and unpacks with owners only as root.
        if self.user.name == self.bench_dir.root.name && self.packing == Packing::Gzip {
            pullers.push(Puller::new(UMOCI, View::Plain, move |dir| {
                let skopeo = "/usr/bin/skopeo --insecure-policy copy -q --src-tls-verify=false";
                let umoci = "/usr/bin/umoci unpack";
                let script = format!(
                    "{skopeo} docker://{image} oci:{dir}/layout:1 && \
                     exec {umoci} --image {dir}/layout:1 {dir}/bundle"
                );
                contender::words("/bin/sh", &["-c", &script])
            }));
        }
        pullers
    }

    fn entrant<'b>(&'b self, puller: &'b Puller<'_>) -> Entrant<'b> {
        let measure = move || {
            let dir = self.bench_dir.directory(self.user)?;
            puller.dir.replace(dir.clone());
            let runner = self.bench_dir.another(&self.with_home(&dir), puller.view)?;
            let pulled = quiet(&runner, &(puller.pull)(&dir))?;
            if let Some(run) = &puller.run {
                let runs = quiet(&runner, &run(&dir))
                    .and_then(|first| Ok([first, quiet(&runner, &run(&dir))?]));
                puller.note(runs)?;
            }
            Ok(pulled)
        };
        Entrant { name: puller.name, ours: puller.ours, measure: Box::new(measure) }
    }

    /// The user, with images in this directory.
    fn with_home(&self, dir: &str) -> User {
        self.user.with("MSB_HOME", &format!("{dir}/msb"))
    }

    /// What came out is what went in, or the times say nothing.
    fn check(&self, puller: &Puller<'_>) -> Result<()> {
        let runner = self.bench_dir.another(&self.with_home(&puller.dir.borrow()), View::Plain)?;
        let check = ["/bin/sh", "-c", large::CHECK];
        runner.run(&self.contenders.msb_run_image(self.image, &check)).map(drop)
    }
}

impl<'a> Puller<'a> {
    fn new(name: &'static str, view: View, pull: impl Fn(&str) -> Argv + 'a) -> Self {
        Puller {
            name,
            view,
            ours: false,
            pull: Box::new(pull),
            run: None,
            dir: RefCell::default(),
            runs: RefCell::new(Ok(Default::default())),
        }
    }

    fn runs(&self) -> Vec<Series> {
        let names = match self.name {
            MSB => [FIRST, AGAIN],
            PODMAN => [PODMAN_FIRST, PODMAN_AGAIN],
            _ => return Vec::new(),
        };
        let runs = self.runs.borrow();
        let samples = |which: usize| runs.as_ref().map(|runs| runs[which].clone());
        let series = |(which, name): (usize, &str)| Series {
            name: name.to_owned(),
            ours: self.ours,
            samples: samples(which).map_err(String::clone),
        };
        names.into_iter().enumerate().map(series).collect()
    }

    /// Only ours have to succeed.
    fn note(&self, times: Result<[f64; 2]>) -> Result<()> {
        let mut runs = self.runs.borrow_mut();
        match (times, &mut *runs) {
            (Ok(times), Ok(runs)) => {
                runs.iter_mut().zip(times).for_each(|(run, time)| run.push(time));
            }
            (Err(error), _) if self.ours => return Err(error),
            (Err(error), Ok(_)) => *runs = Err(format!("{error:#}")),
            (_, Err(_)) => {}
        }
        Ok(())
    }
}

/// With storage of its own in a directory, and without the rest of the machine: no systemd, no
/// journal.
fn podman(dir: &str, arguments: &[&str]) -> Argv {
    let [root, run] = ["root", "run"].map(|name| format!("{dir}/{name}"));
    let storage = ["--root", &root, "--runroot", &run];
    let rest = ["--storage-driver", "overlay", "--events-backend", "none"];
    let cgroups = ["--cgroup-manager", "cgroupfs"];
    contender::words("/usr/bin/podman", &[&storage[..], &rest, &cgroups, arguments].concat())
}

/// Milliseconds, after a `sync`: no contender pays for what another one wrote.
fn quiet(runner: &Runner, argv: &Argv) -> Result<f64> {
    workspace::run(&mut Command::new("sync"))?;
    Ok(rounds::milliseconds(runner.run(argv)?))
}
