//! The machine with KVM: QEMU emulates AMD's virtualisation, so the microVMs of `msb` boot in it
//! on any host, slowly. It covers AMD's paths on x86_64 only.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Lab;
use super::kernel::Kernel;
use super::machine::{self, Kind};
use super::root::{Root, USER};
use super::systemd;
use crate::stream::{self, End};
use crate::suite::Suite;
use crate::tally::{Log, Show, Tally, Verdict};

/// Of the whole suite with its repetitions, on two cores that have other work too.
const LIMIT: Duration = Duration::from_secs(50 * 60);

/// Less is not enough to try anything again.
const AGAIN: Duration = Duration::from_secs(3 * 60);

/// No test takes as long without a word; a machine that has hung says nothing.
const SILENCE: Duration = Duration::from_secs(4 * 60);

/// For a script of a developer, which may look for something that hangs.
const SCRIPT_LIMIT: Duration = Duration::from_secs(60 * 60);

const INIT: &str = include_str!("../../lab/nested/init.sh");

const TESTS: &str = include_str!("../../lab/nested/tests.sh");

/// Room for the disks of several sandboxes; the file is sparse.
const SIZE: u64 = 8 << 30;

/// The last line of a machine that reached its end, followed by the exit code of its job.
const END: &str = "LAB END ";

/// What the tests call and busybox does not have, or not all of it.
const PROGRAMS: &[&str] = &[
    "/usr/bin/newuidmap",
    "/usr/bin/newgidmap",
    "/usr/bin/setpriv",
    "/usr/bin/setsid",
    "/usr/bin/script",
    "/usr/bin/ssh",
    "/usr/bin/sftp",
    "/usr/sbin/mkfs.ext4",
    "/usr/sbin/e2fsck",
    "/usr/bin/s6-svscan",
    "/usr/bin/s6-supervise",
    "/usr/bin/s6-svc",
    "/usr/bin/s6-svstat",
    "/usr/bin/s6-svscanctl",
    "/usr/lib/execline/bin/execlineb",
    "/usr/lib/execline/bin/foreground",
];

/// What one machine said of the tests.
struct Round {
    tally: Tally,
    /// Names of the tests that passed.
    passed: Vec<String>,
}

/// What a disk of this machine is made of.
pub(crate) struct Nested<'a> {
    dir: &'a Path,
    kernel: &'a Kernel,
    msb: &'a Path,
    /// Files and directories for `/lab/with`.
    with: &'a [PathBuf],
}

impl<'a> Nested<'a> {
    pub(crate) fn new(lab: &'a Lab, msb: &'a Path, with: &'a [PathBuf]) -> Self {
        Self { dir: &lab.dir, kernel: &lab.kernel, msb, with }
    }

    /// Runs the tests of the vm tier with names that contain the filter.
    ///
    /// QEMU's emulation of a machine in a machine hangs now and then, which shows by its silence. What
    /// has not passed is then tried again on a new machine, and said to have been.
    pub(super) fn tests(&self, suite: &Suite, filter: Option<&str>) -> Result<Tally> {
        let (tests, inside) = (suite.tests_named("vm")?, suite.program("inside")?);
        let begun = Instant::now();
        let mut passed: Vec<String> = Vec::new();
        let mut words = filter.unwrap_or_default().to_owned();
        loop {
            let left = LIMIT.saturating_sub(begun.elapsed());
            let mut round = self.round(tests, inside, &words, left)?;
            let again =
                round.tally.failed > 0 && filter.is_none() && begun.elapsed() + AGAIN < LIMIT;
            if !again {
                round.tally.passed += passed.len();
                return Ok(round.tally);
            }
            println!("nested lab: {}; what has not passed is tried again", round.tally);
            for failure in &round.tally.failures {
                println!("nested lab: once failed: {failure}");
            }
            passed.append(&mut round.passed);
            words = "--exact".to_owned();
            for name in &passed {
                words += &format!(" --skip {name}");
            }
        }
    }

    /// One machine, which runs what these words of the test runner choose.
    fn round(&self, tests: &Path, inside: &Path, words: &str, limit: Duration) -> Result<Round> {
        let root = self.root(TESTS, &[("LAB_FILTER", words)])?;
        root.file("lab/vm", tests)?;
        root.file("lab/inside", inside)?;
        let disk = root.disk(&self.dir.join("nested.img"), SIZE)?;

        let mut log = Log::default();
        let mut code = None;
        let mut passed = Vec::new();
        let mut machine = machine::command(Kind::Nested, self.kernel, &disk);
        let each = |line: &str| match line.strip_prefix(END) {
            Some(said) => code = Some(said.to_owned()),
            None => {
                let verdict = Verdict::read(line).filter(|verdict| verdict.passed);
                passed.extend(verdict.map(|verdict| verdict.test.to_owned()));
                if log.read(line) == Show::Yes {
                    println!("{line}");
                }
            }
        };
        let end = stream::lines_unless_silent(&mut machine, limit, SILENCE, each)?;
        let mut tally = log.tally();
        match code.as_deref() {
            None => tally.fail(format!("nested lab: {}", why(&end, limit))),
            Some("0") if tally == Tally::default() => tally.fail("nested lab: no test ran"),
            Some("0") => {}
            Some(code) if tally.failed == 0 => {
                tally.fail(format!("nested lab: the tests ended with {code}"));
            }
            Some(_) => {}
        }
        Ok(Round { tally, passed })
    }

    /// Runs a script, prints what it writes and ends with its exit code.
    pub(super) fn script(&self, script: &Path) -> Result<ExitCode> {
        let script = fs::read_to_string(script)
            .with_context(|| format!("cannot read `{}`", script.display()))?;
        let code = self.run(Kind::Nested, &script, |line| println!("{line}"))?;
        Ok(ExitCode::from(code))
    }

    /// Runs a job on a machine of this kind and hands over what it writes, line by line.
    pub(crate) fn run(&self, kind: Kind, job: &str, mut each: impl FnMut(&str)) -> Result<u8> {
        let disk = self.root(job, &[])?.disk(&self.dir.join("nested.img"), SIZE)?;
        let mut code = None;
        let mut machine = machine::command(kind, self.kernel, &disk);
        let end = stream::lines(&mut machine, SCRIPT_LIMIT, |line| {
            match line.strip_prefix(END).and_then(|code| code.parse().ok()) {
                Some(said) => code = Some(said),
                None => each(line),
            }
        })?;
        code.with_context(|| why(&end, SCRIPT_LIMIT))
    }

    /// A shell for a person; leaving it ends the machine.
    pub(super) fn shell(&self) -> Result<ExitCode> {
        let job = "exec setsid cttyhack sh -i\n";
        let disk = self.root(job, &[])?.disk(&self.dir.join("nested.img"), SIZE)?;
        let status = machine::command(Kind::Nested, self.kernel, &disk).status()?;
        ensure!(status.success(), "the machine ended: {status}");
        Ok(ExitCode::SUCCESS)
    }

    fn root(&self, job: &str, variables: &[(&str, &str)]) -> Result<Root> {
        self.fill(job, variables).context("cannot lay out the nested lab's disk")
    }

    fn fill(&self, job: &str, variables: &[(&str, &str)]) -> Result<Root> {
        let root = Root::make(&self.dir.join("nested"), INIT)?;
        root.modules(self.kernel)?;
        root.rootfs("lab/rootfs")?;
        root.file("usr/bin/msb", self.msb)?;
        for program in PROGRAMS {
            root.programs(&program[1..], Path::new(program))?;
        }
        if let Some(tree) = systemd::tree(self.dir)? {
            root.tree("lab/systemd", &tree)?;
        }
        for path in self.with {
            let name = path.file_name().with_context(|| format!("`{}`", path.display()))?;
            root.programs(&format!("lab/with/{}", name.to_string_lossy()), path)?;
        }

        let mut environment = format!(
            "export MSB_LAB=/lab MSB_TEST_ISOLATION=vm MSB_BIN=/usr/bin/msb MSB_TEST_USER={USER} LAB_ROOTFS=/lab/rootfs\n"
        );
        root.file("lab/kernel", &crate::kernel::made_by(self.msb)?)?;
        environment += "export MSB_KERNEL=/lab/kernel\n";
        for (name, value) in variables {
            environment += &format!("export {name}='{value}'\n");
        }
        root.program("lab/environment.sh", &environment)?;
        root.program("lab/job.sh", job)?;
        Ok(root)
    }
}

fn why(end: &End, limit: Duration) -> String {
    match end {
        End::Exited(status) | End::LeftBehind(status) => {
            format!("the machine ended before its job did: {status}")
        }
        End::Silent => format!("the machine said nothing for {} min", SILENCE.as_secs() / 60),
        End::TimedOut => format!("the machine still ran after {} min", limit.as_secs() / 60),
    }
}
