//! What the user sees, word for word: help, errors and hints, kept in `snapshots/`.
//!
//! `UPDATE_SNAPSHOTS=1` rewrites the files; read the difference before you commit it.

use msb_e2e::{CmdOutput, Msb};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// One command and everything it gave, with the test's own directory made nameless.
fn transcript(msb: &Msb, line: &str) -> String {
    let CmdOutput { code, stdout, stderr } = msb.words(line);
    let mut text = format!("$ msb {line}\n");
    let _ = write!(text, "{stdout}{stderr}[{code}]\n\n");
    text.replace(&msb.scratch().display().to_string(), "/SCRATCH")
}

/// Compares with the file, or writes it.
#[track_caller]
fn is_as_in(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("cli/snapshots").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        return fs::write(path, text).expect("a snapshot can be written");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "{} differs; now it is:\n{text}", path.display());
}

#[test]
fn the_help_is_short_and_grouped() {
    let msb = Msb::new();
    is_as_in("help.txt", &transcript(&msb, "--help"));
    let gave = msb.words("--help");
    assert!(gave.stdout.lines().count() <= 84, "{}", gave.stdout);
    assert!(gave.stdout.lines().all(|line| line.chars().count() <= 80), "{}", gave.stdout);
    assert_eq!(msb.run([""; 0]).stdout, gave.stdout);
    assert_eq!(msb.words("help").stdout, gave.stdout);
}

#[test]
fn the_tree_lists_every_command_and_flag() {
    is_as_in("tree.txt", &transcript(&Msb::new(), "--tree"));
}

#[test]
fn each_command_has_its_own_help() {
    let msb = Msb::new();
    let tree = msb.words("--tree").ok().stdout;
    let verbs = tree.lines().filter(|line| line.starts_with("  ") && !line.starts_with("    "));
    let verbs: Vec<&str> = verbs.filter_map(|line| line.trim().split("  ").next()).collect();
    let all: String =
        verbs.iter().map(|verb| transcript(&msb, &format!("{verb} --help"))).collect();
    is_as_in("verbs.txt", &all);
}

#[test]
fn errors_say_what_failed_why_and_what_to_do() {
    let msb = Msb::new();
    msb.words("create -n web").ok();
    msb.words("create -n stopped").ok();
    msb.words("stop stopped").ok();
    msb.file("file", "");
    msb.file("bad.toml", "imagee = 'host'\n");
    let lines = [
        "rnu",
        "exec wbe -- true",
        "exec zebra -- true",
        "stop",
        "stop nobody",
        "create -n ../x",
        "create -n web",
        "rm web",
        "exec stopped -- true",
        "exec web -- no-such-program",
        "exec web -- /etc/passwd",
        "exec -w /no/such web -- true",
        "exec -u nobody-here web -- true",
        "exec web",
        "run --isolation jail -- true",
        "run --timeout 100ms -- sleep 9",
        "run --max-duration 100ms -- sleep 9",
        "run ./no-such-rootfs -- true",
        "run ./file -- true",
        "run --memory 1x -- true",
        "run --cpus 0 -- true",
        "run --pids 0 -- true",
        "run --rlimit files=1 -- true",
        "run --no-such-flag -- true",
        "run --nmae x -- true",
        "run -v /no/such:/x -- true",
        "run -v .:/proc -- true",
        "run -v nonsense -- true",
        "run --copy ./no-such:/x -- true",
        "run --text nonsense -- true",
        "run --conf bad.toml -- true",
        "run --conf no-such.toml -- true",
        "run --env-file no-such -- true",
        "run -w relative -- true",
        "run --hostname no/good -- true",
        "run -u nobody-here -- true",
        "cp web:/no/such .",
        "cp no-such web:/x",
        "cp file other",
        "cp file nobody:/x",
        "attach web",
        "attach web 7",
        "kill web 7",
        "kill -s NONSENSE web 7",
        "logs nobody",
        "logs --source nonsense web",
        "logs --since nonsense web",
        "ls --label nonsense",
        "completion tcsh",
    ];
    let all: String = lines.iter().map(|line| transcript(&msb, line)).collect();
    is_as_in("errors.txt", &all);
    let told = all.lines().filter_map(|line| {
        line.strip_prefix("error: ").or_else(|| line.trim_start().strip_prefix("cause: "))
    });
    let loud: Vec<&str> = told
        .filter(|text| text.starts_with(|c: char| c.is_uppercase()) || text.ends_with('.'))
        .collect();
    assert!(loud.is_empty(), "lower case and no full stop: {loud:#?}");
}

#[test]
fn what_an_ordinary_user_cannot_have_is_refused_with_a_hint() {
    let Some(msb) = Msb::as_user() else {
        return msb_e2e::skip("no ordinary user: MSB_TEST_USER is not set");
    };
    for line in ["create -n box --disk 16M", "run --isolation vm -- true"] {
        let gave = msb.words(line);
        assert_eq!(gave.code, 125, "{line}");
        let told: Vec<&str> = gave.stderr.lines().collect();
        assert!(told[0].starts_with("error: "), "{gave:?}");
        assert!(told.iter().any(|line| line.starts_with("hint: ")), "{gave:?}");
    }
}

#[test]
fn a_typing_mistake_gets_a_suggestion() {
    let msb = Msb::new();
    for name in ["web", "database"] {
        msb.run(["create", "-n", name]).ok();
    }
    for (typed, meant) in [
        ("exec wbe -- true", "web"),
        ("exec wb -- true", "web"),
        ("stop databse", "database"),
        ("logs Database", "database"),
        ("rm webb", "web"),
        ("cp wbe:/x .", "web"),
        ("rnu", "run"),
        ("lst", "ls"),
        ("inspct web", "inspect"),
        ("run --memroy 1G -- true", "--memory"),
    ] {
        let gave = msb.words(typed);
        assert_eq!(gave.code, 125, "{typed}");
        let advice: Vec<&str> = gave
            .stderr
            .lines()
            .filter(|line| line.contains("hint:") || line.contains("tip:"))
            .collect();
        assert!(advice.iter().any(|line| line.contains(meant)), "{typed}: {gave:?}");
    }
}

#[test]
fn the_version_is_printed() {
    let gave = Msb::new().words("--version");
    assert_eq!(gave.line(), format!("msb {}", env!("CARGO_PKG_VERSION")));
}
