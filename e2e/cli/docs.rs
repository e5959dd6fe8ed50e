//! `msb docs`: the documentation in the terminal, and manual pages.

use msb_e2e::{Msb, gives, shared};
use std::fs;
use std::process::Command;

#[test]
fn pages_are_listed_and_shown() {
    let msb = Msb::new();
    let listed = msb.words("docs").ok().stdout;
    for line in listed.lines() {
        let topic = line.split_whitespace().next().expect("a topic");
        let page = msb.run(["docs", topic]).ok().stdout;
        assert!(page.starts_with("# "), "{topic}: {page}");
        assert!(!page.contains("<!--"), "{topic}");
    }
    assert!(listed.lines().any(|line| line.starts_with("network ")), "{listed}");
    let typo = msb.words("docs netwrok");
    assert_eq!(typo.code, 125);
    assert!(typo.stderr.contains("did you mean `msb docs network`?"), "{typo:?}");
}

#[test]
fn a_terminal_gets_the_pager_of_the_user() {
    let msb = Msb::new();
    let line = format!("{} docs init", shared().join("msb").display());
    let paged = |pager: &str| {
        let mut command = msb.user_command("script");
        command.args(["-qec", &line, "/dev/null"]).env("PAGER", pager);
        gives(&mut command).ok().stdout
    };
    assert!(paged("sed s/^/PAGED:/").starts_with("PAGED:# "));
    assert!(paged("no-such-pager 2>/dev/null").contains("# "));
}

#[test]
fn every_command_has_a_manual_page() {
    let msb = Msb::new();
    let directory = msb.scratch().join("man");
    msb.words("docs --man man").ok();
    let tree = msb.words("--tree").ok().stdout;
    let verbs = tree.lines().filter(|line| line.starts_with("  ") && !line.starts_with("    "));
    for verb in verbs.filter_map(|line| line.trim().split("  ").next()) {
        let file = directory.join(format!("msb-{}.1", verb.replace(' ', "-")));
        let page = fs::read_to_string(&file).unwrap_or_else(|_| panic!("no page of {verb}"));
        assert!(page.contains(".SH NAME") && page.contains(".SH OPTIONS"), "{verb}");
    }
    // man itself reads them.
    if fs::exists("/usr/bin/man").expect("a directory") {
        let page = directory.join("msb-run.1");
        let mut man = Command::new("man");
        man.args(["--warnings", "-l"]).arg(page).env("MANPAGER", "cat").env("LC_ALL", "C");
        let shown = gives(&mut man).ok();
        assert!(shown.stdout.contains("--isolation"), "{}", shown.stdout);
    }
}
