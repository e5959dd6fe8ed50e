//! Runs the code blocks of README.md, CONTRIBUTING.md and docs/*.md as a reader would.
//!
//! The commands of a page run in one shell, in order, as root, with a home directory, a network and
//! processes of their own. Nothing of the internet is there. The info string of a block says what
//! becomes of it: see [`markdown::Kind`].

mod fixtures;
mod flags;
mod formats;
mod markdown;
mod shell;

use flags::CommandTree;
use markdown::{Kind, Part, Reason};
use msb_e2e::{CmdOutput, Msb, gives, shared, skip};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Ten times what the slowest page takes beside other tests: a page that is not done by then hangs.
const PAGE_LIMIT: Duration = Duration::from_secs(180);

/// One test for each page, so that a failure names it.
macro_rules! pages {
    ($($test:ident $path:literal)*) => {
        const PAGES: &[&str] = &[$($path),*];
        $(#[test] fn $test() { check_page($path); })*
    };
}

pages! {
    readme "README.md"
    contributing "CONTRIBUTING.md"
    docs_index "docs/README.md"
    docs_summary "docs/SUMMARY.md"
    audit "docs/audit.md"
    benchmarks "docs/benchmarks.md"
    build "docs/build.md"
    children "docs/children.md"
    config "docs/config.md"
    dependencies "docs/dependencies.md"
    host_setup "docs/host-setup.md"
    http "docs/http.md"
    images "docs/images.md"
    init "docs/init.md"
    life "docs/life.md"
    mcp "docs/mcp.md"
    metrics "docs/metrics.md"
    microvms "docs/microvms.md"
    migrating "docs/migrating.md"
    network "docs/network.md"
    protocol "docs/protocol.md"
    publishing "docs/publishing.md"
    quickstart "docs/quickstart.md"
    releasing "docs/releasing.md"
    remote "docs/remote.md"
    sdk_python "docs/sdk-python.md"
    sdk_rust "docs/sdk-rust.md"
    session_protocol "docs/session-protocol.md"
    ssh "docs/ssh.md"
    storage "docs/storage.md"
    style "docs/style.md"
    threat_model "docs/threat-model.md"
    troubleshooting "docs/troubleshooting.md"
}

#[test]
fn every_page_has_a_test() {
    let mut found = BTreeSet::from(["README.md".to_owned(), "CONTRIBUTING.md".to_owned()]);
    for entry in fs::read_dir(repository().join("docs")).expect("the pages") {
        let name = entry.expect("a page").file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") {
            found.insert(format!("docs/{name}"));
        }
    }
    let listed: BTreeSet<String> = PAGES.iter().map(|&page| page.to_owned()).collect();
    assert_eq!(found, listed);
}

/// `mdbook build` copies what lies below docs: a relative link to anything else would be dead there.
#[test]
fn relative_links_lead_to_pages_of_the_book() {
    let docs = repository().join("docs");
    let book = fs::read_to_string(docs.join("SUMMARY.md")).expect("the summary");
    for page in PAGES.iter().filter_map(|page| page.strip_prefix("docs/")) {
        let listed = page == "SUMMARY.md" || book.contains(&format!("({page})"));
        assert!(listed, "docs/SUMMARY.md does not list {page}");
        let text = fs::read_to_string(docs.join(page)).expect("a page");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            let inside = link.is_empty() || link.contains("://") || docs.join(link).is_file();
            assert!(inside && !link.starts_with(".."), "docs/{page}: {link}");
        }
    }
}

#[test]
fn blocks_that_need_the_internet() {
    skip_blocks(Reason::Internet, "they need the internet");
}

#[test]
fn blocks_that_need_kvm() {
    skip_blocks(Reason::Kvm, "they need KVM or a guest kernel");
}

#[test]
fn blocks_that_build_this_repository() {
    skip_blocks(Reason::Build, "the other stages of CI build and test the repository");
}

#[test]
fn a_command_that_fails_is_found_wherever_it_stands() {
    if !is_root() {
        return skip("scripts of pages run as root, in a network namespace");
    }
    let code = |info: &str, command: &str| {
        let parts = markdown::parts(&format!("```{info}\n{command}\ntrue\n```\n"));
        run_script(&shell::script("page.md", &parts.expect("a block")).expect("commands")).code
    };
    for command in ["false", "false && true", "false | true", "echo $unset"] {
        assert_ne!(code("sh", command), 0, "{command}");
    }
    for info in ["sh", "sh follow", "sh terminal"] {
        assert_ne!(code(info, "false"), 0, "{info}");
        assert_eq!(code(info, "true"), 0, "{info}");
    }
    assert_eq!(code("sh follow", "sleep 1000"), 0);
}

/// Tells where blocks are that are not run, once for each reason: the tally counts tests.
fn skip_blocks(reason: Reason, why: &str) {
    let mut places = Vec::new();
    for page in PAGES {
        for part in parts_of(page) {
            if let Part::Block(Kind::Skipped(which), code) = part
                && which == reason
            {
                places.push(format!("{page}:{}", code.line));
            }
        }
    }
    if !places.is_empty() {
        skip(&format!("{} blocks, {why}: {}", places.len(), places.join(" ")));
    }
}

#[track_caller]
fn check_page(page: &str) {
    let parts = parts_of(page);
    let wrong: Vec<String> = parts
        .iter()
        .filter_map(|part| match part {
            Part::Block(kind, code) => {
                let checked = check_block(*kind, &code.text);
                checked.err().map(|error| format!("{page}:{}: {error}", code.line))
            }
            Part::Setup(_) => None,
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    if let Some(script) = shell::script(page, &parts) {
        run_page(page, &script);
    }
}

fn parts_of(page: &str) -> Vec<Part> {
    let text = fs::read_to_string(repository().join(page)).expect("a page");
    markdown::parts(&text).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// What can be said of a block without running it.
fn check_block(kind: Kind, text: &str) -> Result<(), String> {
    match kind {
        Kind::Run | Kind::Follow | Kind::Terminal => Ok(()),
        Kind::Skipped(_) | Kind::Text => check_flags(text),
        Kind::Config => formats::config(text),
        Kind::Manifest => formats::toml(text),
        Kind::Json => formats::json(text),
        Kind::Yaml => formats::yaml(text),
        Kind::Rust => formats::rust(text),
    }
}

fn check_flags(text: &str) -> Result<(), String> {
    let mut lines = text.lines().filter(|line| line.starts_with("msb ")).peekable();
    if lines.peek().is_none() {
        return Ok(());
    }
    let tree =
        CommandTree::parse(&gives(Command::new(shared().join("msb")).arg("--tree")).ok().stdout);
    lines.try_for_each(|line| tree.check(line))
}

#[track_caller]
#[expect(clippy::print_stdout, reason = "the test harness keeps it for failures and --show-output")]
fn run_page(page: &str, script: &str) {
    if !is_root() {
        skip(&format!("{page}: its commands run as root, in a network namespace"));
        return;
    }
    let gave = run_script(script);
    println!("{}", gave.stdout);
    assert!(gave.code == 0, "{page} does not work as written, see above");
}

/// Runs a script in namespaces of its own; what it leaves behind ends with it. What it gives as
/// stdout is both of its streams.
fn run_script(script: &str) -> CmdOutput {
    // With layers of its own: names of unfinished layers hold pids, which two pages may share.
    let msb = Msb::with_own_layers();
    msb.file("terminal.py", include_str!("terminal.py"));
    // A file, because a server that goes on would keep a pipe open.
    let log = msb.scratch().join("page.log");
    let output = File::create(&log).expect("a file");
    let programs = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let mut command = Command::new("/usr/bin/timeout");
    command
        .args(["--kill-after=5", &PAGE_LIMIT.as_secs().to_string(), "unshare"])
        .args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash"])
        .arg(msb.file("page.sh", script))
        .env_clear()
        .env("PATH", format!("{}:{programs}", shared().display()))
        .env("HOME", home_of_root())
        .env("MSB_HOME", msb.home())
        .env("MSB_ISOLATION", "process")
        .env("PAGE_FILES", msb.scratch())
        .env("FIXTURES", fixtures::directory())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(output.try_clone().expect("a descriptor"))
        .stderr(output);
    let status = command.status().expect("timeout is part of coreutils");
    let stdout = String::from_utf8_lossy(&fs::read(&log).expect("a log")).into_owned();
    CmdOutput { code: status.code().unwrap_or(-1), stdout, stderr: String::new() }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").expect("proc").uid() == 0
}

fn home_of_root() -> PathBuf {
    let passwd = fs::read_to_string("/etc/passwd").expect("passwd");
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some("0"));
    PathBuf::from(line.and_then(|line| line.split(':').nth(5)).expect("root has a home directory"))
}

/// The directory of the repository.
pub(crate) fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
