//! Children of machines, which are machines, and how they are asked for from inside.

use crate::lab;
use msb_e2e::eventually;

/// Room for two small machines.
const POLICY: &str = "max=2,total=4,cpus=2,memory=256M,child-cpus=1,child-memory=128M,ttl=10m";

#[test]
fn a_machine_has_children_within_its_budget() {
    let Some(msb) = lab::user() else { return };
    msb.lasting("lead", ["-m", "128M", "--spawn", POLICY]);
    let inside = |script: &str| msb.shell_in("lead", script);
    assert_eq!(inside("sandbox-ctl ping").line(), "ok (parent: lead)");
    assert_eq!(inside("sandbox-ctl spawn --name k").line(), "k");
    let child = &msb.json(["children", "--json", "lead"])["children"][0];
    assert_eq!((&child["name"], &child["isolation"]), (&"lead-child-0001".into(), &"vm".into()));
    let gave = inside("sandbox-ctl exec k -- sh -c 'echo out; echo err >&2; exit 7'");
    assert_eq!(
        (gave.code, gave.stdout.as_str(), gave.stderr.as_str()),
        (7, "out\n", "[stderr] err\n")
    );
    let streamed = inside("sandbox-ctl exec k --stream -- head -c 300000 /dev/zero | wc -c");
    assert_eq!(streamed.line(), "300000");
    assert_eq!(inside("sandbox-ctl spawn").line(), "lead-child-0002");
    let gave = inside("sandbox-ctl spawn");
    assert!(gave.stderr.contains("LIMIT_REACHED: Concurrent child limit reached"), "{gave:#?}");
    assert_eq!(inside("sandbox-ctl destroy k").line(), "k");
    assert_eq!(msb.words("children -q lead").line(), "lead-child-0002");
    // A child has no way to more.
    let look = msb.shell_in("lead-child-0002", "ls /run/sandbox-ctl.sock");
    assert_ne!(look.code, 0, "{look:#?}");
    msb.words("rm -f lead").ok();
    eventually("no sandbox is left", || msb.words("ls -q").line().is_empty());
}
