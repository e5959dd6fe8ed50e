//! A run of an image that is here already, beside a run of a directory with the same tree.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::archive::{Archive, Owner};
use super::bench_dir::{self, BenchDir};
use super::contender::Contenders;
use super::large;
use super::layout::{self, Packing};
use super::rounds::{self, Entrant};
use super::runner::{User, View};
use super::table::{Goal, Table, Unit};
use crate::workspace;

/// A tenth is a fine difference, and a run takes milliseconds: twice as many rounds.
const SHARE: usize = 2;

const LAYERS: usize = 10;

/// Files that a layer brings.
const FILES: usize = 50;

/// A user other than root: the owner of files in some images.
const OTHER: Owner = 1000;
const AS_OTHER: [&str; 2] = ["--user", "1000:1000"];

const DIRECTORY: &str = "directory";

/// Images of one tree, in one layer and in ten.
struct Images {
    one: &'static str,
    ten: &'static str,
    /// The owner of all files but those of the system.
    owner: Owner,
}

const ROOTS: Images = Images { one: "warm-one", ten: "warm-ten", owner: 0 };
const OTHERS: Images = Images { one: "others-one", ten: "others-ten", owner: OTHER };

pub(super) fn tables(
    bench_dir: &BenchDir,
    contenders: &Contenders,
    rounds: usize,
) -> Result<Vec<Table>> {
    let dir = PathBuf::from(bench_dir.path("warm"));
    fs::create_dir(&dir)?;
    for images in [&ROOTS, &OTHERS] {
        images.make(&dir)?;
    }
    let mut tables = Vec::new();
    for user in [&bench_dir.root, &bench_dir.user] {
        let warm = Warm { bench_dir, contenders, user, tree: tree(bench_dir, &dir, user)? };
        warm.load(&ROOTS)?;
        tables.push(warm.table("files of root", &ROOTS, &[], rounds)?);
        if user.name == bench_dir.user.name {
            warm.load(&OTHERS)?;
            // Files of other owners need mapped ids, which two setuid programs
            // write. A directory has that price only with `--user`, so all have it here.
            let work = "files of several owners, --user of another id";
            tables.push(warm.table(work, &OTHERS, &AS_OTHER, rounds)?);
        }
    }
    Ok(tables)
}

struct Warm<'a> {
    bench_dir: &'a BenchDir,
    contenders: &'a Contenders,
    user: &'a User,
    /// The directory that is run.
    tree: String,
}

impl Warm<'_> {
    fn load(&self, images: &Images) -> Result<()> {
        let runner = self.bench_dir.another(self.user, View::Plain)?;
        for name in [images.one, images.ten] {
            let layout = self.bench_dir.path(&format!("warm/{name}"));
            runner.run(&self.contenders.msb(&["load", "-i", &layout, "-t", name]))?;
        }
        Ok(())
    }

    fn table(
        &self,
        files: &str,
        images: &Images,
        options: &[&str],
        rounds: usize,
    ) -> Result<Table> {
        let runner = self.bench_dir.another(self.user, View::Plain)?;
        let run = |image: &str| {
            let command = [options, &[image, "--", "/bin/true"]].concat();
            self.contenders.msb_run_with(&command)
        };
        let mut entrants = vec![
            Entrant::timed("image of 1 layer", &runner, run(images.one)).ours(),
            Entrant::timed("image of 10 layers", &runner, run(images.ten)).ours(),
            Entrant::timed(DIRECTORY, &runner, run(&self.tree)),
        ];
        if !options.is_empty() {
            let argv = self.contenders.msb_run_image(images.one, &["/bin/true"]);
            entrants.push(Entrant::timed("image of 1 layer, without that", &runner, argv));
        }
        let series = rounds::play(rounds * SHARE, entrants)?;
        let work = format!("warm msb run of true, {files}, as {}", self.user.name);
        let goal = Some(Goal::Ratio(1.1));
        Ok(Table::new(work, Unit::Milliseconds, DIRECTORY, goal, &series))
    }
}

impl Images {
    fn make(&self, dir: &Path) -> Result<()> {
        let make = |name: &str, layers: &[&[usize]]| -> Result<()> {
            let archives: io::Result<Vec<PathBuf>> = layers
                .iter()
                .enumerate()
                .map(|(number, parts)| {
                    let path = dir.join(format!("{name}-{number}.tar"));
                    write(&path, parts, self.owner).map(|()| path)
                })
                .collect();
            let layers = layout::pack(&archives.context("cannot write a layer")?, Packing::Gzip)?;
            layout::write(&dir.join(name), &layers)
        };
        let parts: Vec<usize> = (0..LAYERS).collect();
        make(self.one, &[&parts])?;
        make(self.ten, &parts.chunks(1).collect::<Vec<_>>())
    }
}

fn write(path: &Path, parts: &[usize], owner: Owner) -> io::Result<()> {
    let mut archive = Archive::new(BufWriter::new(File::create(path)?));
    for &part in parts {
        if part == 0 {
            large::root(&mut archive, &["true"])?;
            archive.directory("srv", 0)?;
        }
        archive.directory(&format!("srv/{part}"), owner)?;
        for number in 0..FILES {
            archive.file(&format!("srv/{part}/{number}"), owner, b"part of a tree\n")?;
        }
    }
    archive.finish().map(drop)
}

/// The tree as a directory, owned by a user.
fn tree(bench_dir: &BenchDir, images: &Path, user: &User) -> Result<String> {
    let tree = bench_dir.directory(user)?;
    let archive = images.join(format!("{}-0.tar", ROOTS.one));
    workspace::run(Command::new("tar").args(["-C", &tree, "-xf"]).arg(archive))?;
    bench_dir::give(Path::new(&tree), user.name)?;
    Ok(tree)
}
