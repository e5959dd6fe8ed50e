//! A directory shown copy-on-write to a microVM, and its review.

use crate::lab;
use std::fs;
use std::os::unix::fs::MetadataExt;

#[test]
fn a_machine_changes_a_workspace_and_not_the_host() {
    for msb in lab::each() {
        msb.file("project/a", "one\n");
        msb.file("project/old/x", "x");
        msb.file("project/same", "same");
        let project = msb.scratch().join("project");
        msb.chown(&project.join("old"));
        let shown = project.display().to_string();
        let script = "cat a; echo two >> a; rm -r old; mkdir new; echo n > new/n; chmod 640 new/n; \
                      ln -s a link; mv same moved; stat -c %u:%g a new/n; ls";
        let gave = msb.shell_with(["--name", "box", "--workspace", &shown], script);
        assert_eq!(gave.line(), "one\n0:0\n0:0\na\nlink\nmoved\nnew");
        assert_eq!(fs::read_to_string(project.join("a")).unwrap(), "one\n");
        assert_eq!(fs::read_dir(&project).unwrap().count(), 3);
        let diff = msb.words("diff box").line();
        assert_eq!(diff, "M  a\nA  link  (-> a)\nR  same -> moved\nA  new/n\nD  old/x");
        msb.words("apply box").ok();
        assert_eq!(fs::read_to_string(project.join("a")).unwrap(), "one\ntwo\n");
        assert_eq!(fs::read_to_string(project.join("moved")).unwrap(), "same");
        assert!(!project.join("old").exists());
        let made = fs::metadata(project.join("new/n")).unwrap();
        assert_eq!((made.mode() & 0o7777, made.uid()), (0o640, msb.uid()));
        assert_eq!(msb.words("diff box").line(), "");
    }
}

#[test]
fn a_clone_of_a_machine_has_its_changes() {
    let Some(msb) = lab::user() else { return };
    msb.file("project/a", "one\n");
    let project = msb.scratch().join("project");
    let shown = project.display().to_string();
    msb.lasting("box", ["-m", "128M", "--workspace", &shown]);
    assert_eq!(msb.shell_in("box", "cd /workspace; echo two >> a; echo b > b; sync").code, 0);
    msb.words("stop -t 5s box").ok();
    msb.words("clone --stopped box copy").ok();
    let changed = "M  a\nA  b";
    assert_eq!(msb.words("diff box").line(), changed);
    assert_eq!(msb.words("diff copy").line(), changed);
    msb.words("start -q copy").ok();
    assert_eq!(
        msb.shell_in("copy", "cd /workspace; cat a b; rm b; echo c > c").line(),
        "one\ntwo\nb"
    );
    msb.words("stop -t 5s copy").ok();
    assert_eq!(msb.words("diff copy").line(), "M  a\nA  c");
    assert_eq!(msb.words("diff box").line(), changed);
    assert_eq!(fs::read_to_string(project.join("a")).unwrap(), "one\n");
}
