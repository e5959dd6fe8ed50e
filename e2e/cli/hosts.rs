//! Hosts that people have: mounts below /usr, root of a user namespace and PID 1 as in a container.

use msb_e2e::{CmdOutput, Msb, Process, ends, eventually, free_port, skip};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A process with a mount namespace of its own, after this script.
struct MountHolder(Child);

impl MountHolder {
    fn new(script: &str) -> Self {
        let mut holder = Command::new("/usr/bin/unshare");
        holder.args(["--mount", "sh", "-ec", &format!("{script}\necho ready\ncat")]);
        holder.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = holder.spawn().expect("unshare can be executed");
        let mut line = String::new();
        let stdout = holder.stdout.take().expect("it is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("text");
        assert_eq!(line, "ready\n");
        Self(holder)
    }
}

impl Drop for MountHolder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A disk at /usr/local, a mount with another below it, and a program that is a mount.
const MOUNTS: &str = "mount -t tmpfs none /usr/local
mkdir /usr/local/lib
echo disk > /usr/local/found
mount -t tmpfs none /usr/share/doc
mkdir /usr/share/doc/deep
mount -t tmpfs none /usr/share/doc/deep
echo deep > /usr/share/doc/deep/found
mount -t tmpfs none /mnt
printf '#!/bin/sh\\necho driver\\n' > /mnt/program
chmod 755 /mnt/program /usr/local /usr/share/doc /usr/share/doc/deep
mount --bind /mnt/program /usr/bin/yes";

fn each_with_mounts() -> Option<(MountHolder, Vec<Msb>)> {
    if !Msb::new().is_root() {
        skip("only root can mount");
        return None;
    }
    let holder = MountHolder::new(MOUNTS);
    let pid = holder.0.id();
    let users = Msb::each().into_iter().chain(Msb::with_one_id());
    let users = users.map(|msb| msb.in_namespaces_of(pid)).collect();
    Some((holder, users))
}

#[test]
fn mounts_below_usr_are_taken_over_read_only() {
    let Some((_holder, users)) = each_with_mounts() else { return };
    let script = "cat /usr/local/found /usr/share/doc/deep/found; yes
        echo own > /usr/local/own && cat /usr/local/own
        echo own > /usr/include/own && cat /usr/include/own
        for at in /usr/share/doc /usr/share/doc/deep; do
            touch $at/x 2>/dev/null && echo \"$at was written\"
        done; true";
    for msb in &users {
        let gave = msb.run(["run", "--", "sh", "-c", script]).ok();
        assert_eq!(gave.stdout, "disk\ndeep\ndriver\nown\nown\n", "{gave:?}");
    }
}

#[test]
fn what_a_sandbox_wrote_beside_such_mounts_is_kept() {
    let Some((_holder, users)) = each_with_mounts() else { return };
    for msb in &users {
        msb.run(["create", "--name", "box"]).ok();
        let write = "echo kept > /usr/include/kept; echo kept > /usr/local/kept";
        msb.run(["exec", "box", "--", "sh", "-c", write]).ok();
        msb.run(["stop", "box"]).ok();
        msb.run(["start", "box"]).ok();
        let read = "cat /usr/include/kept /usr/local/kept /usr/share/doc/deep/found";
        let gave = msb.run(["exec", "box", "--", "sh", "-c", read]).ok();
        assert_eq!(gave.stdout, "kept\nkept\ndeep\n");
        msb.run(["rm", "-f", "box"]).ok();
    }
}

/// Runs a script with `$0` as msb, as root of a new user namespace.
fn as_namespace_root(msb: &Msb, maps: &[&str], script: &str) -> CmdOutput {
    let mut command = msb.user_command("/usr/bin/unshare");
    command.args(["--user", "--map-root-user"]).args(maps).args(["sh", "-c", script]);
    CmdOutput::from(command.arg(msb.binary()).output().expect("unshare can be executed"))
}

#[test]
fn root_of_a_user_namespace_with_one_id_has_sandboxes() {
    for msb in Msb::each() {
        let gave =
            as_namespace_root(&msb, &[], "\"$0\" run -- sh -c 'id -u; ls /usr/bin/env'").ok();
        assert_eq!(gave.stdout, "0\n/usr/bin/env\n", "{gave:?}");
        let refused = as_namespace_root(&msb, &[], "\"$0\" run --user 7 -- id -u");
        assert_eq!(refused.code, 125, "{refused:?}");
        assert!(refused.stderr.contains("only root can exist"), "{refused:?}");
        let doctor = as_namespace_root(&msb, &[], "\"$0\" doctor");
        assert!(doctor.stdout.contains("root of a user namespace with one id"), "{doctor:?}");
    }
}

#[test]
fn root_of_a_user_namespace_with_many_ids_has_users_in_sandboxes() {
    for msb in Msb::each() {
        // Root has no subordinate ids of its own; its namespace is mapped by hand.
        if msb.is_root() {
            continue;
        }
        let maps = ["--map-auto"];
        let gave = as_namespace_root(&msb, &maps, "\"$0\" run --user 7 -- id -u").ok();
        assert_eq!(gave.stdout, "7\n", "{gave:?}");
        let script = "\"$0\" create --name box && \"$0\" exec --user 33 box -- id -u \
                      && \"$0\" exec box -- sh -c 'touch /root/x && chown 7:8 /root/x \
                      && stat -c %u:%g /root/x'; \"$0\" rm -qf box";
        let gave = as_namespace_root(&msb, &maps, script).ok();
        assert_eq!(gave.stdout.lines().skip(1).collect::<Vec<_>>(), ["33", "7:8"], "{gave:?}");
        let doctor = as_namespace_root(&msb, &maps, "\"$0\" doctor");
        assert!(doctor.stdout.contains("root of a user namespace with 6553"), "{doctor:?}");
    }
}

/// As root of an ordinary container, which may make user namespaces but not mount.
#[test]
fn root_without_the_capability_to_mount_is_told_so() {
    let msb = Msb::new();
    if !msb.is_root() {
        return skip("only root can drop capabilities of root");
    }
    let mut command = msb.user_command("/usr/bin/setpriv");
    command.args(["--bounding-set=-sys_admin", "--inh-caps=-all", "--"]).arg(msb.binary());
    let gave = CmdOutput::from(command.args(["run", "--", "true"]).output().unwrap());
    assert_eq!(gave.code, 125, "{gave:?}");
    assert!(gave.stderr.contains("root without CAP_SYS_ADMIN cannot make sandboxes"), "{gave:?}");
    assert!(gave.stderr.contains("hint: "), "{gave:?}");
}

/// Runs msb as PID 1 of a pid namespace, as a container does.
fn as_pid_1(msb: &Msb, args: &[&str]) -> Command {
    let mut command = msb.user_command("/usr/bin/unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
    command.arg(msb.binary()).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The only child of `unshare`.
fn pid_1(unshare: &Child) -> Process {
    Process::tree(unshare.id()).into_iter().nth(1).expect("msb runs")
}

/// How many processes have ended and wait for this parent.
fn zombies_of(parent: u32) -> usize {
    let entries = fs::read_dir("/proc").expect("proc").flatten();
    let stats = entries.filter_map(|it| fs::read_to_string(it.path().join("stat")).ok());
    let of_parent = |stat: &String| {
        let fields = stat.rsplit_once(") ").map(|(_, rest)| rest);
        fields.is_some_and(|fields| fields.starts_with(&format!("Z {parent} ")))
    };
    stats.filter(of_parent).count()
}

#[test]
fn a_run_as_pid_1_passes_on_exit_codes_and_signals() {
    let msb = Msb::new();
    if !msb.is_root() {
        return skip("only root makes a pid namespace without a user namespace");
    }
    let ran = as_pid_1(&msb, &["run", "--", "sh", "-c", "echo ran; exit 7"]).output().unwrap();
    let ran = CmdOutput::from(ran);
    assert_eq!((ran.code, ran.stdout.as_str()), (7, "ran\n"), "{ran:?}");
    let script = "trap 'echo stopped; exit 3' TERM; echo ready; while :; do sleep 0.1; done";
    let mut command = as_pid_1(&msb, &["run", "--", "sh", "-c", script]);
    let mut child = command.spawn().expect("unshare can be executed");
    let mut output = BufReader::new(child.stdout.take().expect("it is a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    pid_1(&child).signal("TERM");
    line.clear();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "stopped\n");
    assert_eq!(ends(child).code, 3);
}

#[test]
fn a_server_as_pid_1_leaves_no_zombies() {
    let msb = Msb::new();
    if !msb.is_root() {
        return skip("only root makes a pid namespace without a user namespace");
    }
    let port = free_port().to_string();
    let args = ["server", "start", "--dev", "--port", &port];
    let mut server = as_pid_1(&msb, &args).spawn().expect("unshare can be executed");
    let remote = format!("http://127.0.0.1:{port}");
    let at = |args: &[&str]| msb.run([&["--remote", &remote], args].concat());
    eventually("the server answers", || at(&["ls"]).code == 0);
    for number in 0..3 {
        let name = format!("box{number}");
        at(&["create", "--name", &name]).ok();
        at(&["rm", "-qf", &name]).ok();
    }
    let first = pid_1(&server);
    eventually("every worker is reaped", || zombies_of(first.pid) == 0);
    first.signal("TERM");
    let ended = server.wait().expect("it ends");
    assert_eq!(ended.code(), Some(0), "{ended:?}");
}

#[test]
fn certificates_that_the_host_trusts_are_trusted_inside_if_asked() {
    for msb in Msb::each() {
        let own = msb.file("company.pem", "-----BEGIN CERTIFICATE-----\ncompany\n");
        let script = "cat ${SSL_CERT_FILE:-/dev/null} /etc/ssl/certs/ca-certificates.crt \
                      2>/dev/null | grep -c ^company";
        let inside = |flags: &[&str]| {
            let mut command = msb.command(["run", "-q", "--net", "public"]);
            command.args(flags).args(["--", "sh", "-c", script]).env("SSL_CERT_FILE", &own);
            CmdOutput::from(command.output().expect("msb can be executed")).stdout
        };
        assert_eq!(inside(&[]), "0\n");
        let places = if fs::exists("/etc/ssl/certs/ca-certificates.crt").unwrap() { 2 } else { 1 };
        assert_eq!(inside(&["--trust-host-cas"]), format!("{places}\n"));
    }
}

#[test]
fn the_first_run_says_at_a_terminal_what_it_prepares() {
    const NOTE: &str = "preparing the programs of this host";
    for msb in Msb::each_with_own_layers() {
        let first = msb.on_terminal("run -- true");
        assert!(first.stdout.contains(NOTE), "{first:?}");
        let second = msb.on_terminal("run -- true");
        assert!(!second.stdout.contains(NOTE), "{second:?}");
    }
}

#[test]
fn doctor_tells_of_a_small_or_read_only_state_disk() {
    let msb = Msb::new();
    if !msb.is_root() {
        return skip("only root can mount");
    }
    let home = msb.home().display().to_string();
    let holder = MountHolder::new(&format!("mount -t tmpfs -o size=1m,mode=700 none {home}"));
    let msb = msb.in_namespaces_of(holder.0.id());
    let small = msb.words("doctor");
    assert!(small.stdout.contains("are free for"), "{small:?}");
    assert!(small.stdout.lines().any(|line| line.contains("weak  state disk")), "{small:?}");
    let status = Command::new("/usr/bin/nsenter")
        .args(["--mount", &format!("--target={}", holder.0.id()), "mount"])
        .args(["-o", "remount,ro", &home])
        .status();
    assert!(status.is_ok_and(|status| status.success()));
    let read_only = msb.words("doctor");
    assert!(
        read_only.stdout.lines().any(|line| line.contains("no    state disk")),
        "{read_only:?}"
    );
}
