//! `diff`, `apply` and `discard` in the directory of a workspace, without a name.

use super::{inside, keep, project};
use msb_e2e::{CmdOutput, Msb, gives};
use std::fs;

fn at(msb: &Msb, directory: &str, line: &str) -> CmdOutput {
    let mut command = msb.command(line.split_whitespace());
    command.current_dir(msb.scratch().join(directory));
    gives(&mut command)
}

#[test]
fn the_workspace_of_the_current_directory_is_meant() {
    for msb in Msb::each() {
        let root = project(&msb, &[("a", "1\n"), ("src/b", "1\n"), ("src/c", "1\n")]);
        keep(&msb);
        inside(&msb, "cd /workspace; echo 2 > a; echo 2 > src/b; echo 2 > src/c").ok();
        let gave = at(&msb, "project", "diff").ok();
        assert_eq!(gave.stdout, "M  a\nM  src/b\nM  src/c\n");
        assert_eq!(gave.stderr, "note: this is the workspace of `box`\n");
        assert_eq!(at(&msb, "project/src", "diff --name-only").line(), "a\nsrc/b\nsrc/c");
        assert_eq!(at(&msb, "project/src", "diff ./b --name-only").line(), "src/b");
        assert_eq!(at(&msb, "project", "diff src/c --name-only").line(), "src/c");
        let json = at(&msb, "project", "diff --json").ok();
        assert_eq!(json.stderr, "");
        at(&msb, "project/src", "apply --include src/b").ok();
        assert_eq!(fs::read_to_string(root.join("src/b")).unwrap(), "2\n");
        msb.words("stop box").ok();
        let gave = at(&msb, "project/src", "discard ./c").ok();
        assert!(gave.stderr.contains("forgot 1 change"), "{gave:?}");
        assert_eq!(at(&msb, "project", "diff --name-only").line(), "a");
    }
}

#[test]
fn none_and_several_give_different_errors() {
    let msb = Msb::new();
    project(&msb, &[("a", "1\n")]);
    for verb in ["diff", "apply", "discard"] {
        let gave = at(&msb, "project", verb);
        assert_eq!(gave.code, 125, "{verb}");
        let expected = format!(
            "error: no sandbox has this workspace: `{}`\n",
            msb.scratch().join("project").display()
        );
        assert!(gave.stderr.starts_with(&expected), "{gave:?}");
    }
    keep(&msb);
    msb.words("create -n second --workspace project").ok();
    for verb in ["diff", "apply", "discard"] {
        let gave = at(&msb, "project", verb);
        assert_eq!(gave.code, 125, "{verb}");
        let expected = "error: several sandboxes have this workspace: `box`, `second`\n";
        assert!(gave.stderr.starts_with(expected), "{gave:?}");
    }
    assert_eq!(at(&msb, "project", "diff box").line(), "");
    let gave = at(&msb, "project", "apply ./a");
    assert!(gave.stderr.contains("`--include GLOB` chooses what is applied"), "{gave:?}");
}
