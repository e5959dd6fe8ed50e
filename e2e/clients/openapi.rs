//! The HTTP API, tried by a program that knows only its OpenAPI document.

use crate::installed;
use crate::servers::MsbServer;
use msb_e2e::{Msb, ends_within};
use std::process::Stdio;
use std::time::Duration;

/// It sends thousands of requests, a minute of processor time on a quiet machine.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// What waits for something that never comes is left out, and that everything which the document
/// allows is accepted: rules, mounts and names of images have grammars of their own.
#[test]
fn schemathesis_finds_nothing() {
    let msb = Msb::new();
    let site = MsbServer::start(&msb);
    let key = format!("Authorization: Bearer {}", site.key("*"));
    let mut command = msb.user_command(installed::python_program("schemathesis"));
    command.args(["run", &format!("{}/openapi.json", site.url), "--url", &site.url, "-H", &key]);
    command.args(["--seed", "1", "--max-examples", "10", "--phases", "examples,coverage,fuzzing"]);
    command.args(["--exclude-checks", "positive_data_acceptance", "--no-color"]);
    command.args(["--exclude-path-regex", "socket|stream|follow|wait|syncs"]);
    command.current_dir(msb.scratch());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    ends_within(child.expect("schemathesis is installed"), LIMIT).ok();
    // One by one: children go with their parents.
    while let Some(name) = msb.words("ls -q").ok().stdout.lines().next() {
        msb.words(&format!("rm -f {name}")).ok();
    }
}
