//! Excluded files: ignore files and rules.

use super::{SyncFixture, says};
use msb_e2e::{Msb, eventually};
use std::fs;

#[test]
fn what_git_ignores_and_the_usual_is_left_out() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        for usual in [".git", "node_modules", "__pycache__", ".venv"] {
            msb.file(&format!("src/{usual}/x"), "");
            msb.file(&format!("src/a/{usual}/x"), "");
        }
        msb.file("src/.gitignore", "*.log\n/build/\n!keep.log\n");
        msb.file("src/a/.gitignore", "only-here\n");
        for path in ["x.log", "keep.log", "build/x", "a/build/x", "only-here", "a/only-here"] {
            msb.file(&format!("src/{path}"), path);
        }
        msb.words("sync start src box:/app").ok();
        let found = msb.run(["exec", "box", "--", "sh", "-c", "cd /app; find . -type f | sort"]);
        let expected =
            ["./.gitignore", "./a/.gitignore", "./a/build/x", "./keep.log", "./only-here"];
        assert_eq!(found.line().lines().collect::<Vec<_>>(), expected);
        // What is made later is left out as well.
        msb.file("src/a/new.log", "");
        msb.file("src/node_modules/more/x", "");
        msb.file("src/last", "last");
        says(&msb, "/app/last", "last");
        let found = msb.run(["exec", "box", "--", "sh", "-c", "cd /app; find . -type f | wc -l"]);
        assert_eq!(found.line(), "6");
        msb.words("sync stop --all").ok();

        msb.words("sync start --no-default-excludes src box:/all --exclude a --exclude !x.log")
            .ok();
        let found = msb.run(["exec", "box", "--", "sh", "-c", "cd /all; find . -type f | sort"]);
        let expected = [
            "./.git/x",
            "./.gitignore",
            "./.venv/x",
            "./__pycache__/x",
            "./keep.log",
            "./last",
            "./node_modules/more/x",
            "./node_modules/x",
            "./only-here",
            "./x.log",
        ];
        assert_eq!(found.line().lines().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn rules_that_change_take_effect() {
    for synced in SyncFixture::each(&[]) {
        synced.write("a/deep/x.log", "log");
        synced.write("out/x", "x");
        says(&synced.msb, "/app/a/deep/x.log", "log");
        says(&synced.msb, "/app/out/x", "x");
        synced.write(".gitignore", "*.log\nout/\n");
        says(&synced.msb, "/app/.gitignore", "*.log\nout/\n");
        // What is ignored now stays as it is, and is not followed.
        synced.write("a/deep/x.log", "changed");
        synced.write("out/x", "changed");
        synced.write("out/new", "new");
        fs::remove_file(synced.at("top")).unwrap();
        eventually("what is not ignored follows", || !synced.names().contains(&"top".to_owned()));
        assert_eq!(synced.inside("cat /app/a/deep/x.log /app/out/x; ls /app/out"), "logxx");
        // And what is no longer ignored is sent.
        synced.write("a/.gitignore", "!x.log\n");
        says(&synced.msb, "/app/a/deep/x.log", "changed");
        fs::remove_file(synced.at(".gitignore")).unwrap();
        says(&synced.msb, "/app/out/new", "new");
        synced.meet();
    }
}

#[test]
fn the_rules_of_the_repository_around_the_source_hold() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        msb.file("repository/.git/HEAD", "");
        msb.file("repository/.gitignore", "*.o\n/src/generated\n/generated\n");
        msb.file("elsewhere/.gitignore", "*\n");
        for path in ["a.o", "generated/x", "a.c"] {
            msb.file(&format!("repository/src/{path}"), path);
        }
        msb.words("sync start repository/src box:/app").ok();
        assert_eq!(msb.words("exec box -- find /app -type f").line(), "/app/a.c");
    }
}

#[test]
fn a_pattern_that_makes_no_sense_is_refused() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        msb.file("src/x", "");
        let gave = msb.words("sync start src box:/app --exclude a{b");
        assert_eq!((gave.code, gave.stdout.as_str()), (125, ""));
        assert!(gave.stderr.starts_with("error: not a pattern for files: `a{b`\n"), "{gave:?}");
        assert_eq!(msb.words("sync ls -q").ok().stdout, "");
    }
}

#[test]
fn a_source_that_holds_the_state_directory_comes_to_rest() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        msb.file("own", "own");
        msb.words("sync start . box:/app").ok();
        assert_eq!(msb.words("exec box -- ls /app").line(), "own");
        let source = msb.scratch().to_owned();
        fs::write(source.join("more"), "more").unwrap();
        says(&msb, "/app/more", "more");
        let sent = || msb.json(["sync", "ls", "--json"])[0]["bytes"].clone();
        assert_eq!((sent(), sent()), (7.into(), 7.into()));
        msb.words("sync stop --all").ok();
    }
}
