//! Forwarded connections, in both directions, as far as the rules allow.

use crate::fixture::SshFixture;
use msb_e2e::{Msb, ends, eventually, free_port, signal_pid};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Something that answers inside, on its loopback.
const ANSWER: &str = "mkdir -p /tmp/www; printf inside > /tmp/www/index.html; \
    exec python3 -m http.server 8000 --bind 127.0.0.1 -d /tmp/www";

struct TermOnDrop(Child);

impl Drop for TermOnDrop {
    fn drop(&mut self) {
        signal_pid(self.0.id(), "TERM");
        let _ = self.0.wait();
    }
}

fn fetched(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.rsplit("\r\n\r\n").next().map(str::to_owned).filter(|text| !text.is_empty())
}

/// `-L` and `-D` lead to what listens inside, and to nothing that the sandbox may not reach.
#[test]
fn local_forwards_connect_inside() {
    for fixture in SshFixture::each() {
        let mut server = fixture.program("ssh");
        let _server =
            TermOnDrop(server.args(["box", ANSWER]).stderr(Stdio::null()).spawn().unwrap());
        let (inside, outside, socks) = (free_port(), free_port(), free_port());
        let target = TcpListener::bind("127.0.0.1:0").unwrap();
        let denied = target.local_addr().unwrap().port();
        let mut command = fixture.program("ssh");
        command.args(["-N", "-L", &format!("{inside}:localhost:8000")]);
        command.args(["-L", &format!("{outside}:127.0.0.1:{denied}"), "-D", &socks.to_string()]);
        let forward = command.args(["-o", "ExitOnForwardFailure=yes", "box"]);
        // It tells of each attempt that comes too early.
        let forward = TermOnDrop(forward.stderr(Stdio::null()).spawn().unwrap());
        eventually("an answer from inside", || fetched(inside).as_deref() == Some("inside"));
        // The host's own loopback is not the sandbox's.
        assert_eq!(fetched(outside), None);
        let proxy = format!("curl -sf --socks5-hostname 127.0.0.1:{socks} http://localhost:8000/");
        assert_eq!(fixture.shell(&proxy).line(), "inside");
        let refused = format!("curl -sf --socks5-hostname 127.0.0.1:{socks} http://localhost:1/");
        assert_ne!(fixture.shell(&refused).code, 0);
        drop(forward);
    }
}

/// `-R` leads out only where the sandbox may reach the host.
#[test]
fn remote_forwards_need_the_rules() {
    let answer = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = answer.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in answer.incoming().flatten() {
            let _ = (&stream).write_all(b"outside\n");
        }
    });
    let lead = format!("9000:127.0.0.1:{port}");
    let line = "exec 3<>/dev/tcp/127.0.0.1/9000; cat <&3";
    let args =
        ["-o", "ExitOnForwardFailure=yes", "-R", &lead, "box", "bash", "-c", &format!("'{line}'")];
    let denied = SshFixture::new(Msb::new());
    let gave = denied.ssh(args);
    assert_eq!(gave.code, 255, "{gave:?}");
    assert!(gave.stderr.contains("may not reach the host"), "{gave:?}");
    let public = SshFixture::with(Msb::new(), &["--net", "public"]);
    assert_eq!(public.ssh(args).code, 255);
    let allowed = SshFixture::with(Msb::new(), &["--net", "host"]);
    assert_eq!(allowed.ssh(args).line(), "outside");
    // One that is chosen inside, beside one that was named and leads elsewhere.
    let (named, chosen) = ("9000:127.0.0.1:1", format!("0:127.0.0.1:{port}"));
    let listens = "grep -o \"0100007F:[0-9A-F]* 00000000:0000 0A\" /proc/net/tcp | cut -c 10-13";
    let line = format!(
        "for p in $({listens}); do exec 3<>/dev/tcp/127.0.0.1/$((16#$p)); cat <&3; done; exit 0"
    );
    let args = ["-o", "ExitOnForwardFailure=yes", "-R", named, "-R", &chosen, "box", "bash", "-c"];
    let gave = allowed.ssh(args.into_iter().chain([format!("'{line}'").as_str()]));
    assert_eq!(gave.stdout, "outside\n", "{gave:?}");
    assert!(gave.stderr.contains("Allocated port"), "{gave:?}");
}

/// However many connect inside, the client can still do something over its connection.
#[test]
fn a_sandbox_cannot_use_up_all_channels() {
    let answer = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = answer.local_addr().unwrap().port();
    let count = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&count);
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in answer.incoming().flatten() {
            counts.fetch_add(1, Ordering::Relaxed);
            held.push(stream);
        }
    });
    let fixture = SshFixture::with(Msb::new(), &["--net", "host"]);
    let control = fixture.msb.scratch().join("control");
    let path = format!("ControlPath={}", control.display());
    let mut master = fixture.program("ssh");
    master.args(["-MN", "-o", &path, "box"]);
    for from in 9000..9005 {
        master.args(["-R", &format!("{from}:127.0.0.1:{port}")]);
    }
    let _master = TermOnDrop(master.stderr(Stdio::null()).spawn().unwrap());
    eventually("the master", || control.exists());
    // It tries more than there are channels, and holds what it gets; the guest allows 128 for each listener.
    // The master may still be asking for the listeners.
    let script = "import socket, time\n\
                  def connect(port):\n  \
                  while True:\n    \
                  try:\n      return socket.create_connection(('127.0.0.1', port))\n    \
                  except ConnectionRefusedError:\n      time.sleep(0.05)\n\
                  held = [connect(9000 + n % 5) for n in range(300)]\n\
                  print('done', flush=True)\ntime.sleep(600)\n";
    let mut crowd = fixture.msb.command(["exec", "box", "--", "python3", "-c", script]);
    let mut crowd = crowd.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = [0; 4];
    crowd.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    let _crowd = TermOnDrop(crowd);
    eventually("many are led out", || count.load(Ordering::Relaxed) >= 100);
    // The rest of them would have come by then.
    std::thread::sleep(std::time::Duration::from_secs(3));
    let mut command = fixture.program("ssh");
    command.args(["-o", &path, "-o", "ProxyCommand=false", "box", "echo in"]);
    assert_eq!(ends(command.spawn().unwrap()).line(), "in");
    let led = count.load(Ordering::Relaxed);
    // Each of the five listeners may have looked before another had its channel.
    assert!((64..=132).contains(&led), "{led}");
}

/// Agents and screens are not led inside.
#[test]
fn agents_and_screens_stay_outside() {
    let fixture = SshFixture::new(Msb::new());
    let mut command = fixture.program("ssh");
    command.args(["-o", "ForwardAgent=yes", "-X", "box", "echo \"[$SSH_AUTH_SOCK$DISPLAY]\""]);
    let gave = ends(command.env("DISPLAY", ":9").spawn().unwrap());
    assert_eq!(gave.line(), "[]");
}
