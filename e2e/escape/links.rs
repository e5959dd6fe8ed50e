//! Attacks through the streams that an SSH server has into a sandbox, spoken by hand on its worker's
//! socket: paths of SFTP, and targets of forwarded streams.

use crate::hostile_worker::{frame, number, text};
use msb_e2e::{Msb, eventually};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const HELLO: u8 = 1;
const LINK: u8 = 64;
/// `msb_wire::VERSION`, and the places of requests in their list.
const VERSION: u64 = 11;
const SFTP: u64 = 20;
const DIAL: u64 = 21;
const LISTEN: u64 = 22;
const ACCEPT: u64 = 23;

/// What the guest says of a stream: none is that it is open, else why it is not, by its number.
type StreamStatus = Option<u8>;
const UNKNOWN_USER: StreamStatus = Some(0);
const ONLY_ROOT: StreamStatus = Some(1);
const REFUSED: StreamStatus = Some(4);
const NO_NAME: StreamStatus = Some(3);

fn link(msb: &Msb, name: &str, request: &[u8]) -> (UnixStream, StreamStatus) {
    let socket = msb.home().join("sandboxes").join(name).join("worker.sock");
    let mut stream = UnixStream::connect(socket).expect("a worker that listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
    let hello = frame(HELLO, &[&number(VERSION), request].concat());
    stream.write_all(&hello).expect("a worker that hears");
    let mut header = [0; 5];
    stream.read_exact(&mut header).expect("an answer");
    assert_eq!(header[4], LINK);
    let mut payload =
        vec![0; u32::from_le_bytes(header[..4].try_into().expect("four bytes")) as usize];
    stream.read_exact(&mut payload).expect("an answer");
    match payload[0] {
        0 => (stream, None),
        3 => (stream, Some(payload[1])),
        other => panic!("the guest said {other}"),
    }
}

fn user(name: Option<&str>) -> Vec<u8> {
    match name {
        None => number(0),
        Some(name) => [number(1), text(name.as_bytes())].concat(),
    }
}

fn dial(msb: &Msb, name: &str, host: &str, port: u16) -> (UnixStream, StreamStatus) {
    let to = [number(0), text(host.as_bytes()), number(u64::from(port))].concat();
    link(msb, name, &[number(DIAL), user(None), to].concat())
}

const OPEN: u8 = 3;
const REMOVE: u8 = 13;
const MKDIR: u8 = 14;
const REALPATH: u8 = 16;
const STAT: u8 = 17;
const RENAME: u8 = 18;
const SYMLINK: u8 = 20;
const READ: u32 = 1;
const WRITE: u32 = 2 | 8 | 16;
const OK: u32 = 0;
const NO_SUCH_FILE: u32 = 2;
const PERMISSION_DENIED: u32 = 3;
const FAILURE: u32 = 4;

/// A client of SFTP.
struct Sftp(UnixStream);

impl Sftp {
    fn open(msb: &Msb, name: &str, account: Option<&str>) -> Self {
        let (stream, said) = link(msb, name, &[number(SFTP), user(account)].concat());
        assert_eq!(said, None);
        let mut sftp = Self(stream);
        sftp.say(&[1, 0, 0, 0, 3]);
        assert_eq!(sftp.hear()[..5], [2, 0, 0, 0, 3]);
        sftp
    }

    fn say(&mut self, packet: &[u8]) {
        let length = (packet.len() as u32).to_be_bytes();
        self.0.write_all(&[&length, packet].concat()).expect("a server that hears");
    }

    fn hear(&mut self) -> Vec<u8> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).expect("an answer");
        let mut packet = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut packet).expect("an answer");
        packet
    }

    fn ask(&mut self, kind: u8, strings: &[&str], rest: &[u32]) -> Vec<u8> {
        let mut packet = vec![kind, 0, 0, 0, 9];
        for string in strings {
            packet.extend((string.len() as u32).to_be_bytes());
            packet.extend(string.as_bytes());
        }
        packet.extend(rest.iter().flat_map(|number| number.to_be_bytes()));
        self.say(&packet);
        self.hear()
    }

    /// How it ended: zero also for what is answered with something better.
    fn status(&mut self, kind: u8, strings: &[&str], rest: &[u32]) -> u32 {
        let answer = self.ask(kind, strings, rest);
        match answer[0] {
            101 => u32::from_be_bytes(answer[5..9].try_into().expect("four bytes")),
            _ => OK,
        }
    }

    fn opened(&mut self, path: &str, flags: u32) -> u32 {
        self.status(OPEN, &[path], &[flags, 0])
    }

    /// What a file holds.
    fn read(&mut self, path: &str) -> String {
        let opened = self.ask(OPEN, &[path], &[READ, 0]);
        assert_eq!(opened[0], 102, "{path} cannot be opened");
        let mut packet = vec![5, 0, 0, 0, 9];
        packet.extend(&opened[5..]);
        packet.extend([0; 8]);
        packet.extend(4096u32.to_be_bytes());
        self.say(&packet);
        String::from_utf8_lossy(&self.hear()[9..]).into_owned()
    }

    fn real(&mut self, path: &str) -> String {
        let answer = self.ask(REALPATH, &[path], &[]);
        let length = u32::from_be_bytes(answer[9..13].try_into().expect("four bytes")) as usize;
        String::from_utf8_lossy(&answer[13..13 + length]).into_owned()
    }
}

/// What is started while a sandbox stands still is frozen with it the next time, and what would connect is
/// not started.
#[test]
fn what_begins_in_a_pause_is_no_way_around_the_next_one() {
    for msb in Msb::each() {
        msb.lasting::<&str>("web", []);
        msb.words("pause web").ok();
        let mut sftp = Sftp::open(&msb, "web", None);
        assert_eq!(sftp.real("/etc/.."), "/", "files can be reached");
        let to = [number(0), text(b"127.0.0.1"), number(80)].concat();
        for request in [
            [number(DIAL), user(None), to.clone()].concat(),
            [number(LISTEN), user(None), to, number(7)].concat(),
            [number(ACCEPT), number(7), number(1)].concat(),
        ] {
            let said = refused(&msb, "web", &request);
            assert!(said.contains("is paused"), "{said}");
        }
        msb.words("resume web").ok();
        assert_eq!(sftp.real("/etc/.."), "/");
        msb.words("pause web").ok();
        sftp.0.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
        sftp.say(&[REALPATH, 0, 0, 0, 9, 0, 0, 0, 1, b'/']);
        assert!(sftp.0.read_exact(&mut [0]).is_err(), "it goes on in a pause");
        msb.words("resume web").ok();
        sftp.0.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(sftp.hear()[0], 104);
    }
}

/// What a worker says that does not even ask its guest.
fn refused(msb: &Msb, name: &str, request: &[u8]) -> String {
    let socket = msb.home().join("sandboxes").join(name).join("worker.sock");
    let mut stream = UnixStream::connect(socket).expect("a worker that listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
    let hello = frame(HELLO, &[&number(VERSION), request].concat());
    stream.write_all(&hello).expect("a worker that hears");
    let mut said = Vec::new();
    stream.read_to_end(&mut said).expect("an answer, and the end");
    assert_ne!(said[4], LINK);
    String::from_utf8_lossy(&said[5..]).into_owned()
}

/// Attacks 1 and 2, through SFTP.
#[test]
fn paths_of_sftp_do_not_lead_to_the_host() {
    for msb in Msb::each() {
        let canary = msb.file("canary", "sftp-secret");
        let path = canary.to_str().unwrap();
        msb.lasting::<&str>("web", []);
        let script = format!(
            "mkdir /links && cd /links && ln -s {path} absolute && ln -s / root && \
             ln -s ../../../../../../../../.. up && ln -s /proc/1/root proc && echo inside > /etc/mark"
        );
        msb.shell_in("web", &script).ok();
        let mut sftp = Sftp::open(&msb, "web", None);
        for from in [
            path.to_owned(),
            "/links/absolute".to_owned(),
            format!("/links/root{path}"),
            format!("/links/up{path}"),
            format!("/../../../../..{path}"),
            format!("/links/root/../../..{path}"),
            format!("../../../../../..{path}"),
            format!("/proc/self/root{path}"),
            format!("/proc/self/cwd/../..{path}"),
        ] {
            assert_eq!(sftp.opened(&from, READ), NO_SUCH_FILE, "{from}");
            assert_eq!(sftp.status(STAT, &[&from], &[]), NO_SUCH_FILE, "{from}");
            assert_ne!(sftp.opened(&from, WRITE), OK, "{from}");
            assert_ne!(sftp.status(REMOVE, &[&from, ""], &[]) == OK, from != "/links/absolute");
            assert_eq!(fs::read_to_string(&canary).unwrap(), "sftp-secret", "{from}");
        }
        assert_eq!(sftp.real("/../../.."), "/");
        for to in ["/links/up/etc/mark", "/links/root/etc/mark", "/../../etc/mark"] {
            assert_eq!(sftp.read(to), "inside\n");
            assert_eq!(sftp.real(to), "/etc/mark");
        }
        // PID 1 is the guest, and its root may not be read.
        assert_ne!(sftp.opened("/links/proc/etc/passwd", READ), NO_SUCH_FILE);
        // What is made is made inside.
        let inside = msb.scratch().join("made").display().to_string();
        for (kind, strings) in [
            (MKDIR, vec![inside.as_str()]),
            (SYMLINK, vec!["/", &inside]),
            (RENAME, vec!["/etc/mark", &inside]),
        ] {
            assert_ne!(sftp.status(kind, &strings, &[0]), OK);
        }
        assert!(!msb.scratch().join("made").exists());
    }
}

#[test]
fn sftp_has_the_rights_of_its_user_and_no_others() {
    for msb in Msb::each() {
        msb.lasting::<&str>("web", []);
        let script = "grep -q ^ann: /etc/passwd || echo 'ann:x:1234:1234::/home/ann:/bin/sh' >> /etc/passwd; \
            mkdir -p /home/ann; chown 1234:1234 /home/ann; echo root > /secret; chmod 600 /secret";
        msb.shell_in("web", script).ok();
        let eve = link(&msb, "web", &[number(SFTP), user(Some("eve"))].concat()).1;
        assert_eq!(eve, UNKNOWN_USER);
        if msb.has_one_id() {
            let ann = link(&msb, "web", &[number(SFTP), user(Some("ann"))].concat()).1;
            assert_eq!(ann, ONLY_ROOT);
            continue;
        }
        let mut sftp = Sftp::open(&msb, "web", Some("ann"));
        assert_eq!(sftp.real("."), "/home/ann");
        assert_eq!(sftp.opened("own", WRITE), OK);
        assert_eq!(sftp.opened("/secret", READ), PERMISSION_DENIED);
        assert_eq!(sftp.opened("/etc/new", WRITE), PERMISSION_DENIED);
        assert_eq!(sftp.status(RENAME, &["/secret", "/home/ann/secret"], &[]), PERMISSION_DENIED);
        let owner = msb.shell_in("web", "stat -c %u:%a /home/ann/own").line();
        assert_eq!(owner, "1234:644");
    }
}

/// Attack 18, through SFTP: root in a restricted sandbox has no more power there than in a command.
#[test]
fn sftp_has_no_capability_where_commands_have_none() {
    for msb in Msb::each() {
        msb.lasting::<&str>("plain", []);
        msb.lasting("web", ["--security", "restricted"]);
        let held = |sandbox: &str, account: Option<&str>| -> Vec<String> {
            let status = Sftp::open(&msb, sandbox, account).read("/proc/self/status");
            assert!(status.contains("sftp-server"), "{status}");
            let sets = status.lines().filter_map(|line| line.strip_prefix("Cap"));
            sets.map(|set| set[4..].trim().to_owned()).collect()
        };
        let nothing = vec!["0000000000000000"; 5];
        assert_ne!(held("plain", None), nothing);
        assert_eq!(held("web", None), nothing);
        if !msb.has_one_id() {
            assert_eq!(held("web", Some("web")), nothing);
        }
        // It still serves.
        let mut sftp = Sftp::open(&msb, "web", None);
        assert_eq!(sftp.opened("/root/new", WRITE), OK);
    }
}

#[test]
fn what_is_mounted_read_only_is_not_written_by_sftp() {
    for msb in Msb::each() {
        let shown = msb.file("shown/file", "as it was");
        let directory = shown.parent().unwrap().display().to_string();
        msb.lasting("web", ["-v", &format!("{directory}:/shown:ro")]);
        let mut sftp = Sftp::open(&msb, "web", None);
        assert_eq!(sftp.read("/shown/file"), "as it was");
        assert_eq!(sftp.opened("/shown/file", WRITE), FAILURE);
        assert_eq!(sftp.opened("/shown/new", WRITE), FAILURE);
        assert_eq!(sftp.status(REMOVE, &["/shown/file"], &[]), FAILURE);
        assert_eq!(fs::read_to_string(&shown).unwrap(), "as it was");
    }
}

/// Thousands of handles, packets of every length, and sessions that are cut off: nothing stays.
#[test]
fn a_flood_of_sftp_ends_with_its_connection() {
    let msb = Msb::new();
    msb.lasting::<&str>("web", []);
    let mut sftp = Sftp::open(&msb, "web", None);
    let refused = (0..3000).filter(|_| sftp.opened("/etc/passwd", READ) != OK).count();
    assert!(refused > 2000, "{refused}");
    let cut: Vec<Sftp> = (0..20)
        .map(|length| {
            let mut sftp = Sftp::open(&msb, "web", None);
            let _ = sftp.0.write_all(&vec![0xff; length]);
            sftp
        })
        .collect();
    drop((sftp, cut));
    eventually("the servers are gone", || {
        let inside = msb.shell_in("web", "cat /proc/[0-9]*/comm").stdout;
        !inside.contains("sftp-server")
    });
}

#[test]
fn streams_lead_to_the_sandboxs_own_loopback_and_not_to_the_hosts() {
    for msb in Msb::each() {
        let outside = TcpListener::bind("127.0.0.1:0").unwrap();
        outside.set_nonblocking(true).unwrap();
        let port = outside.local_addr().unwrap().port();
        for (name, flags) in [("alone", vec!["--no-net"]), ("wide", vec!["--net", "public"])] {
            msb.lasting(name, flags);
            for host in ["127.0.0.1", "localhost", "::1"] {
                let (_, said) = dial(&msb, name, host, port);
                assert_ne!(said, None, "{name} {host}");
            }
            assert_eq!(dial(&msb, name, "127.0.0.1", port).1, REFUSED);
            // What listens inside answers, and each direction ends on its own.
            let serve = "nc -l -p 7777 -e sh -c 'read line; cat >/dev/null; echo heard $line' >/dev/null 2>&1 &";
            msb.run(["exec", "-d", name, "--", "sh", "-c", &format!("{serve} wait")]).ok();
            let mut found = None;
            eventually("something listens", || {
                let (stream, said) = dial(&msb, name, "localhost", 7777);
                found = Some(stream);
                said.is_none()
            });
            let mut stream = found.unwrap();
            stream.write_all(b"you\n").unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut heard = String::new();
            stream.read_to_string(&mut heard).unwrap();
            assert_eq!(heard, "heard you\n");
        }
        assert!(outside.accept().is_err(), "the host was reached");
    }
}

#[test]
fn streams_go_only_where_the_rules_allow() {
    for msb in Msb::each() {
        let outside = TcpListener::bind("127.0.0.1:0").unwrap();
        outside.set_nonblocking(true).unwrap();
        let port = outside.local_addr().unwrap().port();
        let rule = format!("allow@host:tcp:{port}");
        msb.lasting("open", ["--net-default", "deny", "--net-rule", &rule]);
        msb.lasting("shut", ["--net-default", "deny", "--net-rule", "allow@good.example"]);
        let (mut stream, said) = dial(&msb, "open", "host.msb.internal", port);
        assert_eq!(said, None);
        let mut accepted = None;
        eventually("the host is reached", || {
            accepted = outside.accept().ok();
            accepted.is_some()
        });
        let (mut accepted, _) = accepted.unwrap();
        accepted.write_all(b"from the host").unwrap();
        drop(accepted);
        let mut heard = String::new();
        stream.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "from the host");
        // Another port, an address and a name that no rule allows.
        assert_ne!(dial(&msb, "open", "host.msb.internal", port ^ 1).1, None);
        assert_ne!(dial(&msb, "shut", "host.msb.internal", port).1, None);
        assert_ne!(dial(&msb, "shut", "198.18.0.1", port).1, None);
        assert_ne!(dial(&msb, "shut", "203.0.113.7", 80).1, None);
        assert_eq!(dial(&msb, "shut", "evil.example", 80).1, NO_NAME);
        assert!(outside.accept().is_err(), "the host was reached");
    }
}
