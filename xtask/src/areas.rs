//! The tests by area: `cargo xtask test AREA [FILTER]` runs one, `ci` all of them.

use std::path::Path;
use std::process::{ExitCode, Stdio};

use anyhow::{Result, bail, ensure};

use crate::report::Report;
use crate::suite::{FEATURES, Run, Suite, TestProgram};
use crate::tally::{self, Tally};
use crate::{ci, dist, lab, packages, test_user, workspace};

/// The areas of `e2e`, each a test program, but for `vm`, which runs in the nested lab.
pub(crate) const E2E: &[&str] =
    &["cli", "docs", "escape", "images", "mcp", "network", "clients", "ssh", "dist"];

/// Tests of `e2e` that run at once. They wait for sandboxes, timeouts and clients half of their time.
const E2E_THREADS: usize = 4;

/// Runs one area, with what it needs: packages, a build, the ordinary user of the tests.
pub(crate) fn command(area: &str, filter: Option<&str>) -> Result<ExitCode> {
    let targets: &[&str] = match area {
        "unit" => &["--lib", "--bins", "--tests"],
        "sdk" => &["--bin", "msb", "--test", "sdk", "--example", "hello"],
        "sdk-python" => &["--bin", "msb"],
        "vm" => VM_TARGETS,
        "clients" => &["--bin", "msb", "--test", "clients", "--example", "conformance"],
        area if E2E.contains(&area) => &["--bin", "msb", "--test", area],
        _ => bail!("no area `{area}`; there are unit sdk sdk-python vm {}", E2E.join(" ")),
    };
    let mut report = Report::default();
    let needs = if area == "vm" { &[] } else { ci::NEEDS };
    packages::install(needs)?;
    let suite = Suite::build(targets)?;
    report.stage("tests", || match area {
        "unit" => unit(&suite, filter),
        "sdk" => sdk(&suite, filter),
        "sdk-python" => sdk_python(&suite, filter),
        "vm" => lab::nested(&suite, filter),
        area => e2e(&suite, area, filter),
    });
    Ok(report.finish())
}

/// What the nested lab needs.
pub(crate) const VM_TARGETS: &[&str] = &["--bin", "msb", "--bin", "inside", "--test", "vm"];

/// The tests beside the code: those that start no sandbox.
pub(crate) fn unit(suite: &Suite, filter: Option<&str>) -> Result<Tally> {
    let chosen = |test: &TestProgram| test.package != "e2e" && test.target != "sdk";
    suite.run(chosen, Run { filter, threads: None }, &[])
}

/// The examples in the documentation of the crates, with the features of the other tests: nothing is
/// compiled again. Crates without an example have `doctest = false`.
pub(crate) fn documentation() -> Result<Tally> {
    let arguments = ["test", "--workspace", "--doc", "--profile", "ci"];
    tally::cargo_test(workspace::background_cargo(&arguments).args(FEATURES))
}

/// The tests of the Rust SDK, and without a filter the example that README shows.
pub(crate) fn sdk(suite: &Suite, filter: Option<&str>) -> Result<Tally> {
    let msb = suite.program("msb")?;
    let run = Run { filter, threads: Some(E2E_THREADS) };
    let tally = suite.run(|test| test.target == "sdk", run, &[("MSB_BIN", msb)])?;
    if filter.is_some() {
        return Ok(tally);
    }
    let home = workspace::target().join("sdk-home");
    let mut hello = std::process::Command::new(suite.program("hello")?);
    hello.env("MSB_PATH", msb).env("MSB_HOME", &home);
    let output = hello.stderr(Stdio::inherit()).output()?;
    let _ = std::fs::remove_dir_all(home);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success() && said.contains("Hello!"), "hello said `{said}`");
    Ok(tally)
}

/// The tests of the Python SDK. A filter is a pattern of `unittest -k`.
pub(crate) fn sdk_python(suite: &Suite, filter: Option<&str>) -> Result<Tally> {
    // unittest prints its verdicts to stderr.
    let mut tests = std::process::Command::new("sh");
    tests.args(["-c", "exec python3 -m unittest discover \"$@\" 2>&1", "sh"]);
    tests.args(["-v", "-t", ".", "-s", "tests"]);
    tests.args(filter.into_iter().flat_map(|filter| ["-k", filter]));
    tests.current_dir(workspace::root().join("sdk/python"));
    tests.env("MSB_PATH", suite.program("msb")?);
    tally::python_unittest(&mut tests)
}

/// One area of `e2e`.
pub(crate) fn e2e(suite: &Suite, area: &str, filter: Option<&str>) -> Result<Tally> {
    let msb = suite.program("msb")?;
    let packaged;
    let mut variables = vec![("MSB_BIN", msb)];
    if area == "clients" {
        variables.push(("MSB_CONFORMANCE_BIN", suite.program("conformance")?));
    }
    if area == "dist" {
        packaged = dist::for_tests(msb)?;
        variables.push(("MSB_DIST", &packaged));
    }
    if let Some(user) = test_user::ensure()? {
        variables.push(("MSB_TEST_USER", Path::new(user)));
    }
    let run = Run { filter, threads: Some(E2E_THREADS) };
    suite.run(|test| test.package == "e2e" && test.target == area, run, &variables)
}
