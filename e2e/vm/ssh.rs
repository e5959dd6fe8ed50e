//! SSH into a microVM: what it does for a jail, over vsock.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;

use msb_e2e::{CmdOutput, Msb, ends, eventually, signal_pid};

use crate::lab;

/// A machine that ssh knows as `box`.
struct SshFixture {
    msb: Msb,
    config: String,
}

impl SshFixture {
    /// With this reach of its network; none outside the lab.
    fn new(net: &str) -> Option<Self> {
        let msb = lab::user()?;
        msb.lasting("box", ["--net", net, "-m", "256M"]);
        let block = msb.words("ssh config box").ok().stdout;
        let config = msb.file("ssh_config", block).display().to_string();
        Some(Self { msb, config })
    }

    fn program(&self, name: &str) -> Command {
        let mut command = self.msb.user_command(name);
        command.args(["-F", &self.config]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    #[track_caller]
    fn ssh(&self, args: &[&str]) -> CmdOutput {
        ends(self.program("ssh").args(args).spawn().expect("ssh is in the lab"))
    }
}

struct TermOnDrop(Child);

impl Drop for TermOnDrop {
    fn drop(&mut self) {
        signal_pid(self.0.id(), "TERM");
        let _ = self.0.wait();
    }
}

#[test]
fn commands_and_files_go_into_a_machine_over_ssh() {
    let Some(fixture) = SshFixture::new("public") else { return };
    let gave = fixture.ssh(&["box", "echo out; echo err >&2; exit 7"]);
    assert_eq!((gave.code, gave.stdout.as_str(), gave.stderr.as_str()), (7, "out\n", "err\n"));
    let bytes: Vec<u8> = (0..=250).cycle().take(4_000_001).collect();
    let sent = fixture.msb.file("sent.bin", &bytes);
    let back = fixture.msb.scratch().join("back.bin");
    let batch = format!(
        "put {sent} there.bin\nmkdir sub\nsymlink there.bin sub/link\nrename there.bin sub/there.bin\n\
         get sub/link {back}\nls -l sub\n",
        sent = sent.display(),
        back = back.display()
    );
    let batch = fixture.msb.file("batch", batch);
    let mut sftp = fixture.program("sftp");
    let gave = ends(sftp.arg("-b").arg(batch).arg("box").spawn().expect("sftp is in the lab")).ok();
    assert!(gave.stdout.contains("there.bin"), "{gave:#?}");
    assert!(fs::read(back).unwrap() == bytes);
    assert_eq!(fixture.ssh(&["box", "wc -c < sub/there.bin"]).line(), bytes.len().to_string());
}

#[test]
fn connections_go_into_a_machine_and_out_of_it_as_its_rules_allow() {
    let Some(fixture) = SshFixture::new("host") else { return };
    let free = msb_e2e::free_port();
    let answers = TcpListener::bind("127.0.0.1:0").unwrap();
    let outside = answers.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in answers.incoming().flatten() {
            let _ = (&stream).write_all(b"outside\n");
        }
    });
    let serve = "echo inside > /tmp/index.html; exec httpd -f -p 127.0.0.1:8000 -h /tmp";
    fixture.msb.run(["exec", "-d", "box", "--", "sh", "-c", serve]).ok();
    let (inward, tunnel) = (format!("{free}:localhost:8000"), format!("9000:127.0.0.1:{outside}"));
    let mut command = fixture.program("ssh");
    command.args(["-N", "-o", "ExitOnForwardFailure=yes", "-L", &inward, "-R", &tunnel, "box"]);
    let forward = TermOnDrop(command.stderr(Stdio::null()).spawn().unwrap());
    let fetched = || -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", free)).ok()?;
        stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.ends_with("inside\n").then_some(text)
    };
    eventually("an answer from inside", || fetched().is_some());
    let inside = |line: &str| fixture.msb.shell_in("box", line);
    // It ends its side when it has said everything, so nc does not wait for ours.
    eventually("an answer from outside", || {
        inside("nc 127.0.0.1 9000 < /dev/null").stdout == "outside\n"
    });
    drop(forward);
}
