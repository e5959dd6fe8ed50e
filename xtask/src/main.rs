//! The project's own chores, run as `cargo xtask COMMAND`.
//!
//! Depends on no crate of the workspace, so that it still runs when they do not compile.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a developer's tool: what it has to say, it prints"
)]

mod areas;
mod bench;
mod check;
mod ci;
mod dependencies;
mod dist;
mod r#gen;
mod kernel;
mod lab;
mod packages;
mod report;
mod scratch;
mod stream;
mod suite;
mod tally;
mod test_user;
mod tidy;
mod workspace;

use std::env;
use std::process::ExitCode;

use anyhow::Result;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  check      format, lints, tidy and unit tests: run it before you push
  tidy [--counts]
             the rules of this repository that the compiler does not hold; the counts of those
             about language
  dependencies
             licences, duplicates and sources of all crates, as deny.toml has them
  ci         install what is missing, build, check, e2e tests and the lab
  test AREA [FILTER]
             one area with what it needs: unit sdk sdk-python vm cli docs escape images mcp network
             clients ssh dist
  lab [--msb MSB] [--cgroups | --nested [FILTER]]
             tests on emulated machines, with MSB or a fresh build: cgroup v2, and with --nested
             the vm tier on a machine with KVM; MSB_KERNEL names the kernel of the microVMs
  lab --nested --script FILE | --shell [--with FILE]...
             a script of your own on that machine, or a shell; FILEs lie in /lab/with
  gen [--check]
             write the code of the SDKs that follows from docs/openapi.json, or compare it
  kernel     find or build the kernel of microVMs and print its directory
  dist [--msb MSB] [--out DIR] [--tag TAG] [--no-kernel] [--quick]
             what a release ships, in target/dist or DIR, with MSB or a build of the profile dist;
             --tag demands the version and the section of CHANGELOG.md that belong to it,
             --quick compresses little
  bench [--msb MSB] [--rounds N] [--pulls N] [--json FILE]
             times and sizes beside bubblewrap, crun, runc, podman, skopeo and umoci, with MSB
             or a build of the profile dist
  bench --lab [--msb MSB] [--rounds N] [--json FILE]
             microVMs beside those of microsandbox, in the nested lab, by counted instructions
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let cargo = dependencies::cargo_with_old_ids(&arguments);
    cargo.unwrap_or_else(|| dispatch(&arguments)).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn dispatch(arguments: &[&str]) -> Result<ExitCode> {
    match arguments {
        ["check"] => Ok(check::command()),
        ["tidy", options @ ..] => tidy::command(options),
        ["dependencies"] => dependencies::command(),
        ["ci"] => Ok(ci::command()),
        ["test", area] => areas::command(area, None),
        ["test", area, filter] => areas::command(area, Some(filter)),
        ["lab", options @ ..] => lab::command(options),
        ["gen", options @ ..] => r#gen::command(options),
        ["kernel"] => kernel::command(),
        ["dist", options @ ..] => dist::command(options),
        ["bench", options @ ..] => bench::command(options),
        // Not for people: `bench` calls itself with this.
        ["bench-inside", rounds] => bench::inside(rounds),
        ["stopwatch", stderr] => bench::stopwatch(stderr),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            eprint!("{USAGE}");
            Ok(ExitCode::from(2))
        }
    }
}
