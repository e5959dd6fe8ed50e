//! Copies in and out: one large file, many small ones.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::bench_dir::BenchDir;
use super::contender::{self, Contenders, Oci};
use super::rounds::{self, Entrant};
use super::runner::View;
use super::stopwatch::Argv;
use super::table::{Table, Unit};
use crate::workspace;

const LARGE: u64 = 500_000_000;
const SMALL_FILES: usize = 5_000;

/// Each takes seconds with the flush before it, and varies little.
const ROUNDS: usize = 5;

const NAME: &str = "copy";

/// What is copied, in its directory.
const DATA: &str = "data";

/// One tree and how often it is copied.
struct Source {
    dir: String,
    size: Size,
    rounds: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Size {
    /// One file, so large that the copies of earlier rounds cannot stay.
    Large,
    /// Many files. Earlier copies stay: ext4 steps over inodes that were freed not long ago, one
    /// by one, and that would be most of what is measured.
    Small,
}

struct Copy<'a> {
    name: &'static str,
    view: View,
    ours: bool,
    /// The command of a round, which has a destination of its own.
    argv: Box<dyn Fn(usize) -> Argv + 'a>,
    /// Removes what a round has made.
    remove: Box<dyn Fn(usize) -> Result<()> + 'a>,
}

pub(super) fn tables(
    bench_dir: &mut BenchDir,
    contenders: &Contenders,
    rounds: usize,
) -> Result<Vec<Table>> {
    contender::start_boxes(bench_dir, contenders, NAME)?;
    let mut tables = Vec::new();
    for (size, name, into, out) in [
        (Size::Large, "large", "copy in of a 500 MB file", "copy out of a 500 MB file"),
        (Size::Small, "small", "copy in of 5,000 small files", "copy out of 5,000 small files"),
    ] {
        let source = Source { dir: bench_dir.path(name), size, rounds: rounds.min(ROUNDS) };
        source.fill().with_context(|| format!("cannot fill `{}`", source.dir))?;
        tables.push(source.play(bench_dir, into, copies_in(bench_dir, contenders, &source))?);
        tables.push(source.play(bench_dir, out, copies_out(bench_dir, contenders, &source))?);
        // What came back from the sandbox is what went in, or the times say nothing.
        let back = bench_dir.path(&format!("host/from-msb-{name}-{}", source.rounds));
        workspace::run(Command::new("diff").arg("-r").arg(source.data()).arg(back))?;
    }
    bench_dir.clear();
    Ok(tables)
}

fn copies_in<'a>(
    bench_dir: &'a BenchDir,
    contenders: &'a Contenders,
    source: &'a Source,
) -> Vec<Copy<'a>> {
    let host = move |round| bench_dir.path(&format!("host/in-{}-{round}", source.name()));
    let shared = move |round| bench_dir.path(&format!("rootfs{}", source.in_container(round)));
    vec![
        Copy {
            name: "msb cp",
            view: View::Plain,
            ours: true,
            argv: Box::new(move |round| {
                let inside = format!("{NAME}:{}", source.in_sandbox(round));
                contenders.msb(&["cp", "-q", &source.data(), &inside])
            }),
            remove: Box::new(move |round| {
                let rm = ["exec", "-q", NAME, "--", "/bin/rm", "-rf", &source.in_sandbox(round)];
                bench_dir.runner(View::Plain).run(&contenders.msb(&rm)).map(drop)
            }),
        },
        Copy {
            name: "cp -r",
            view: View::Plain,
            ours: false,
            argv: Box::new(move |round| words(&["/bin/cp", "-r", &source.data(), &host(round)])),
            remove: Box::new(move |round| remove(&host(round))),
        },
        Copy {
            name: "tar | crun exec tar",
            view: View::NoHybrid,
            ours: false,
            argv: Box::new(move |round| {
                let inside = source.in_container(round);
                let tar = ["exec", NAME, "/bin/tar", "-x", "-o", "-C", &inside];
                let tar = contenders.oci(Oci::Crun, &tar).join(" ");
                let (shared, dir) = (shared(round), &source.dir);
                shell(&format!("mkdir -p {shared} && /bin/tar -C {dir} -c {DATA} | {tar}"))
            }),
            remove: Box::new(move |round| remove(&shared(round))),
        },
    ]
}

/// Of what the last round of `copies_in` has left.
fn copies_out<'a>(
    bench_dir: &'a BenchDir,
    contenders: &'a Contenders,
    source: &'a Source,
) -> Vec<Copy<'a>> {
    let to = move |from: &str, round: usize| {
        bench_dir.path(&format!("host/{from}-{}-{round}", source.name()))
    };
    let inside = format!("{NAME}:{}", source.in_sandbox(source.rounds));
    vec![
        Copy {
            name: "msb cp",
            view: View::Plain,
            ours: true,
            argv: Box::new(move |round| {
                contenders.msb(&["cp", "-q", &inside, &to("from-msb", round)])
            }),
            remove: Box::new(move |round| remove(&to("from-msb", round))),
        },
        Copy {
            name: "cp -r",
            view: View::Plain,
            ours: false,
            argv: Box::new(move |round| {
                words(&["/bin/cp", "-r", &source.data(), &to("out", round)])
            }),
            remove: Box::new(move |round| remove(&to("out", round))),
        },
        Copy {
            name: "crun exec tar | tar",
            view: View::NoHybrid,
            ours: false,
            argv: Box::new(move |round| {
                let inside = source.in_container(source.rounds);
                let tar = ["exec", NAME, "/bin/tar", "-C", &inside, "-c", DATA];
                let tar = contenders.oci(Oci::Crun, &tar).join(" ");
                let to = to("from-crun", round);
                shell(&format!("mkdir {to} && {tar} | /bin/tar -C {to} -x"))
            }),
            remove: Box::new(move |round| remove(&to("from-crun", round))),
        },
    ]
}

impl Source {
    fn name(&self) -> &'static str {
        match self.size {
            Size::Large => "large",
            Size::Small => "small",
        }
    }

    fn data(&self) -> String {
        format!("{}/{DATA}", self.dir)
    }

    fn in_sandbox(&self, round: usize) -> String {
        format!("/{}-{round}", self.name())
    }

    /// A directory of its own, because the container shares the root that is the sandbox's lower
    /// layer.
    fn in_container(&self, round: usize) -> String {
        format!("/crun/{}-{round}", self.name())
    }

    /// Random bytes: nothing between here and the disk can make them fewer.
    fn fill(&self) -> Result<()> {
        fs::create_dir(&self.dir)?;
        let mut random = File::open("/dev/urandom")?;
        let data = Path::new(&self.dir).join(DATA);
        if self.size == Size::Large {
            io::copy(&mut random.take(LARGE), &mut File::create(data)?)?;
            return Ok(());
        }
        for number in 0..SMALL_FILES {
            // A hundred a directory and one to four KiB each, as in a source tree.
            let dir = data.join((number / 100).to_string());
            fs::create_dir_all(&dir)?;
            let mut content = vec![0; 1024 * (1 + number % 4)];
            random.read_exact(&mut content)?;
            fs::write(dir.join(number.to_string()), content)?;
        }
        Ok(())
    }

    fn play(
        &self,
        bench_dir: &BenchDir,
        work: &'static str,
        copies: Vec<Copy<'_>>,
    ) -> Result<Table> {
        let entrants = copies.into_iter().map(|Copy { name, view, ours, argv, remove }| {
            let mut round = 0;
            let measure = Box::new(move || {
                if self.size == Size::Large && round > 0 {
                    remove(round - 1)?;
                }
                // Else one pays for writing back what the one before it wrote.
                workspace::run(&mut Command::new("sync"))?;
                let time = bench_dir.runner(view).run(&argv(round))?;
                round += 1;
                Ok(rounds::milliseconds(time))
            });
            Entrant { name, ours, measure }
        });
        let series = rounds::play(self.rounds, entrants.collect())?;
        Ok(Table::new(work, Unit::Milliseconds, "cp -r", None, &series))
    }
}

fn remove(path: &str) -> Result<()> {
    let path = Path::new(path);
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove `{}`", path.display()))
        }
        _ => Ok(()),
    }
}

fn words(words: &[&str]) -> Argv {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Bash, because a pipe has to fail when its first half fails (`pipefail`).
fn shell(script: &str) -> Argv {
    words(&["/bin/bash", "-o", "pipefail", "-c", script])
}
