//! Authorized keys of a server on a port.

use crate::fixture::SshFixture;
use msb_e2e::ends;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Stdio;

/// A key opens the door from when it is authorized until it is revoked, and nothing else does.
#[test]
fn only_authorized_keys_come_in() {
    for fixture in SshFixture::each() {
        let (ann, bob) = (fixture.key("ann"), fixture.key("bob"));
        let public = format!("{}.pub", ann.display());
        let served = fixture.serve();
        let login =
            |key: &std::path::Path| ends(served.ssh(&fixture, key).arg("echo in").spawn().unwrap());
        assert_eq!(login(&ann).code, 255);
        let fingerprint = fixture.msb.run(["ssh", "authorize", &public]).line();
        assert!(fingerprint.starts_with("SHA256:"), "{fingerprint}");
        assert_eq!(login(&ann).line(), "in");
        assert_eq!(login(&bob).code, 255);
        let listed = fixture.msb.json(["ssh", "keys", "--json"]);
        assert_eq!(listed[0]["fingerprint"], *fingerprint);
        assert_eq!(listed[0]["comment"], "ann");
        for methods in ["none", "password", "keyboard-interactive"] {
            let only = format!("PreferredAuthentications={methods}");
            let mut command = served.ssh(&fixture, &ann);
            let gave = ends(command.args(["-o", &only, "true"]).spawn().unwrap());
            assert_eq!(gave.code, 255, "{methods}");
        }
        fixture.msb.run(["ssh", "revoke", &fingerprint]).ok();
        assert_eq!(login(&ann).code, 255);
        // For another sandbox it is none here.
        fixture.msb.words("create -q --name other --no-net host").ok();
        fixture.msb.run(["ssh", "authorize", "--for", "other", &public]).ok();
        assert_eq!(login(&ann).code, 255);
        fixture.msb.run(["ssh", "authorize", "--for", "box", &public]).ok();
        assert_eq!(login(&ann).line(), "in");
        fixture.msb.run(["ssh", "revoke", "ann"]).ok();
        assert_eq!(login(&ann).code, 255);
        let said = served.end();
        assert!(said.contains(&format!("as `root` with {fingerprint}")), "{said}");
    }
}

/// What is no plain public key is refused in words.
#[test]
fn odd_keys_are_refused() {
    let fixture = SshFixture::new(msb_e2e::Msb::new());
    let key = fixture.key("ann");
    let private = fixture.msb.run(["ssh", "authorize", &key.display().to_string()]);
    assert!(private.code == 125 && private.stderr.contains("that is a private key"), "{private:?}");
    let line = std::fs::read_to_string(key.with_extension("pub")).unwrap();
    let options = fixture.msb.run(["ssh", "authorize", &format!("command=\"x\" {line}")]);
    assert!(options.stderr.contains("options before a key are not supported"), "{options:?}");
    fixture.msb.run_with(["ssh", "authorize", "-"], line.as_bytes()).ok();
    let unknown = fixture.msb.words("ssh revoke nobody");
    assert!(unknown.stderr.contains("no such key may log in"), "{unknown:?}");
}

/// A line that is no key opens nothing, takes nothing from the others, and is told.
#[test]
fn a_bad_line_in_authorized_keys_affects_no_other_key() {
    let fixture = SshFixture::new(msb_e2e::Msb::new());
    let (ann, bob) = (fixture.key("ann"), fixture.key("bob"));
    let public = format!("{}.pub", ann.display());
    fixture.msb.run(["ssh", "authorize", &public]).ok();
    let list = fixture.msb.home().join("ssh/authorized_keys");
    let line = std::fs::read_to_string(bob.with_extension("pub")).unwrap();
    let line = format!("command=\"/bin/true\" {line}");
    std::fs::write(&list, std::fs::read_to_string(&list).unwrap() + &line).unwrap();
    let served = fixture.serve();
    let login =
        |key: &std::path::Path| ends(served.ssh(&fixture, key).arg("echo in").spawn().unwrap());
    assert_eq!(login(&ann).line(), "in");
    assert_eq!(login(&bob).code, 255);
    fixture.msb.run(["ssh", "revoke", "ann"]).ok();
    assert_eq!(std::fs::read_to_string(&list).unwrap(), line);
    assert_eq!(login(&ann).code, 255);
    fixture.msb.run(["ssh", "authorize", &public]).ok();
    assert_eq!(login(&ann).line(), "in");
    let listed = fixture.msb.words("ssh keys");
    assert!(listed.code == 0 && listed.stdout.contains(" ann "), "{listed:?}");
    assert!(listed.stderr.contains("options before a key are not supported"), "{listed:?}");
    let said = served.end();
    assert!(said.contains("options before a key are not supported"), "{said}");
}

/// One's own keys are those of one's home, never those of wherever one is.
#[test]
fn keys_of_the_user_need_a_home_directory() {
    let fixture = SshFixture::new(msb_e2e::Msb::new());
    let key = fixture.key("mallory");
    let here = fixture.msb.scratch().join("here");
    std::fs::create_dir_all(here.join(".ssh")).unwrap();
    std::fs::copy(key.with_extension("pub"), here.join(".ssh/id.pub")).unwrap();
    for words in ["ssh authorize --my-keys", "ssh serve box --port 0 --my-keys"] {
        for home in [None, Some(""), Some(".")] {
            let mut command = fixture.msb.command(words.split(' '));
            command.current_dir(&here).env_remove("HOME").envs(home.map(|home| ("HOME", home)));
            let gave = ends(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
            assert_eq!(gave.code, 125, "{words} {home:?} {gave:?}");
            assert!(gave.stderr.contains("`HOME` is no path"), "{gave:?}");
        }
    }
}

/// An agent with many keys is asked until the right one comes.
#[test]
fn a_client_may_offer_many_keys() {
    let fixture = SshFixture::new(msb_e2e::Msb::new());
    let keys: Vec<_> = (0..12).map(|n| fixture.key(&format!("key{n}"))).collect();
    fixture.msb.run(["ssh", "authorize", &format!("{}.pub", keys[11].display())]).ok();
    let served = fixture.serve();
    let mut command = served.ssh(&fixture, &keys[0]);
    for key in &keys[1..] {
        command.arg("-i").arg(key);
    }
    assert_eq!(ends(command.arg("echo in").spawn().unwrap()).line(), "in");
}

/// 400 connections that send nothing do not keep an authorized client out.
#[test]
fn silent_connections_keep_no_client_out() {
    let fixture = SshFixture::new(msb_e2e::Msb::new());
    let key = fixture.key("ann");
    fixture.msb.run(["ssh", "authorize", &format!("{}.pub", key.display())]).ok();
    let served = fixture.serve();
    let silent: Vec<TcpStream> =
        (0..400).map(|_| TcpStream::connect(("127.0.0.1", served.port)).unwrap()).collect();
    let gave = ends(served.ssh(&fixture, &key).arg("echo in").spawn().unwrap());
    assert_eq!(gave.line(), "in");
    drop(silent);
    let said = served.end();
    assert_eq!(said.matches("have not shown a key").count(), 1, "{said}");
}

/// What is told to ssh is right for any path that ssh can be told of.
#[test]
fn odd_paths_are_told_to_ssh() {
    let msb = msb_e2e::Msb::new();
    let program = msb.command([""]).get_program().to_owned();
    let whole = |home: &str, line: &str| {
        let mut command = msb.user_command("bash");
        command.args(["-o", "pipefail", "-euc", line]).env("MSB_HOME", msb.scratch().join(home));
        command.env("MSB", &program).env("SCRATCH", msb.scratch());
        ends(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    let line = "trap '$MSB rm -f box >&2; kill %1 || true' EXIT; rm -f $SCRATCH/key*; \
                mkdir -m 700 \"$MSB_HOME\"; $MSB create -q --name box --no-net host >&2; \
                $MSB ssh config box > $SCRATCH/cfg; ssh -F $SCRATCH/cfg box echo config; \
                ssh-keygen -q -t ed25519 -N '' -f $SCRATCH/key; $MSB ssh authorize $SCRATCH/key.pub >&2; \
                mkfifo $SCRATCH/said$$; $MSB ssh serve box --port 0 > $SCRATCH/said$$ & \
                said=$(head -3 $SCRATCH/said$$ | tail -1); \
                eval \"$said -F none -o BatchMode=yes -i $SCRATCH/key echo port\"";
    for home in ["it's a b 100%h#$x;&*ä", "back\\\\slash\\"] {
        let gave = whole(home, line);
        assert_eq!(gave.stdout, "config\nport\n", "{home} {gave:?}");
    }
    let refused = whole("x${HOME}y", line);
    assert!(refused.code != 0 && refused.stderr.contains("for a variable"), "{refused:?}");
}

/// Nonsense at the port ends that connection and no other.
#[test]
fn garbage_ends_its_own_connection_only() {
    let fixture = SshFixture::new(msb_e2e::Msb::new());
    let key = fixture.key("ann");
    fixture.msb.run(["ssh", "authorize", &format!("{}.pub", key.display())]).ok();
    let served = fixture.serve();
    let connect = || TcpStream::connect(("127.0.0.1", served.port)).unwrap();
    let silent: Vec<TcpStream> = (0..50).map(|_| connect()).collect();
    for garbage in
        [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0xff; 100_000], b"SSH-2.0-x\r\n\xff\xff\xff\xff"]
    {
        let mut stream = connect();
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
    }
    let gave = ends(served.ssh(&fixture, &key).arg("echo in").spawn().unwrap());
    assert_eq!(gave.line(), "in");
    drop(silent);
}

/// The host key is made once, goes with the sandbox, and is no clone's.
#[test]
fn a_host_key_is_one_sandboxs_own() {
    let fixture = SshFixture::new(msb_e2e::Msb::new());
    let key = |name: &str| {
        let path = fixture.msb.home().join("sandboxes").join(name).join("ssh/host_key");
        std::fs::read_to_string(path)
    };
    let before = key("box").unwrap();
    fixture.msb.words("ssh config box").ok();
    assert_eq!(key("box").unwrap(), before);
    fixture.msb.words("stop box").ok();
    let stopped = fixture.msb.words("ssh serve box --stdio");
    assert!(stopped.code == 125 && stopped.stderr.contains("is not running"), "{stopped:?}");
    fixture.msb.words("clone --stopped box copy").ok();
    assert!(key("copy").is_err());
    fixture.msb.words("ssh config copy").ok();
    assert_ne!(key("copy").unwrap(), before);
    fixture.msb.words("rm -f box copy").ok();
    assert!(key("box").is_err());
}
