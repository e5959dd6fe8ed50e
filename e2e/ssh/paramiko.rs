//! paramiko from PyPI, which shares no line with OpenSSH.

use crate::fixture::SshFixture;
use msb_e2e::{Msb, ends, gives};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PACKAGE: &str = "paramiko==5.1.0";
const JOURNEY: &str = include_str!("journey.py");

/// A Python that has it; made once below the directory of what is built.
fn python() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients-paramiko");
    let (done, python) = (directory.join("installed"), directory.join("bin/python"));
    if fs::read_to_string(&done).is_ok_and(|text| text == PACKAGE) {
        return python;
    }
    let _ = fs::remove_dir_all(&directory);
    gives(Command::new("python3").args(["-m", "venv"]).arg(&directory)).ok();
    let mut pip = Command::new(directory.join("bin/pip"));
    gives(pip.args(["install", "--quiet", "--disable-pip-version-check", PACKAGE])).ok();
    fs::write(done, PACKAGE).expect("what is built can be written");
    python
}

/// Commands, SFTP, a terminal and a forwarded connection.
#[test]
fn paramiko_makes_its_journey() {
    let fixture = SshFixture::new(Msb::new());
    let key = fixture.key("ann");
    fixture.msb.run(["ssh", "authorize", &format!("{}.pub", key.display())]).ok();
    let served = fixture.serve();
    let mut command = fixture.msb.user_command(python());
    command.args(["-c", JOURNEY, &served.port.to_string()]).arg(&key);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let gave = ends(command.spawn().unwrap());
    assert_eq!(gave.clone().line(), "all well", "{gave:#?}");
}
