//! SSH into a sandbox beside a plain sshd on the same machine, with the same clients and what they negotiate by
//! themselves: a large file each way, many small ones, and how long a command takes to begin and end.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::bench_dir::{self, BenchDir};
use super::contender::{self, Contenders};
use super::rounds::{self, Entrant};
use super::runner::View;
use super::table::{Goal, Table, Unit};
use crate::workspace;

const NAME: &str = "ssh";

/// Transfers take seconds each.
const ROUNDS: usize = 5;

/// At least 0.8 of sshd's speed is at most this much of its time.
const GOAL: f64 = 1.25;

/// A file of 1 GB, and 5,000 files of a few kilobytes in 50 directories.
const MAKE: &str = "\
cd $1 && head -c 1000000000 /dev/urandom > large && mkdir small && head -c 5000 /dev/urandom > block && \
for d in $(seq 50); do mkdir small/d$d; for f in $(seq 100); do cp block small/d$d/f$f; done; done && rm block && \
ssh-keygen -q -t ed25519 -N '' -f key && ssh-keygen -q -t ed25519 -N '' -f host && cp key.pub authorized";

/// Waits until both answer; for ours the key is let in first.
const READY: &str = "\
$2 ssh authorize $1/key.pub > /dev/null && for host in sshd msb; do n=0; \
until ssh -F $1/config $host true; do n=$((n+1)); test $n -lt 100; sleep 0.1; done; done";

pub(super) fn tables(
    bench_dir: &mut BenchDir,
    contenders: &Contenders,
    rounds: usize,
) -> Result<Vec<Table>> {
    let directory = bench_dir.directory(&bench_dir.user)?;
    let create = ["create", "--no-net", "-q", "--isolation", "process", "--name", NAME, "host"];
    let end = contenders.msb(&["rm", "-q", "-f", NAME]);
    bench_dir.start(View::Plain, &contenders.msb(&create), end)?;
    let servers = bench_dir.another(&bench_dir.user, View::Plain)?;
    let plain = bench_dir.runner(View::Plain);
    let program = contenders.msb(&[]).concat();
    let shell = |script: &str, host: &str| {
        let words = ["-euc", script, "sh", &directory, &program, host];
        plain.run(&contender::words("/bin/sh", &words))
    };
    shell(MAKE, "")?;
    let (ours, theirs) = (free_port()?, free_port()?);
    settings(bench_dir, &directory, ours, theirs)?;
    // Privileges are apart only where sshd has any; the directory must be there all the same.
    fs::create_dir_all("/run/sshd")?;
    let config = format!("{directory}/sshd_config");
    servers.keep(&contender::words("/usr/sbin/sshd", &["-D", "-f", &config]))?;
    servers.keep(&contenders.msb(&["ssh", "serve", NAME, "--port", &ours.to_string()]))?;
    shell(READY, "").context("not both servers answer")?;

    let mut tables = Vec::new();
    for (work, most, run, after) in [
        ("ssh true", rounds, "ssh -F $1/config $3 true", "true"),
        (
            "scp of a 1 GB file into it",
            rounds.min(ROUNDS),
            "scp -q -F $1/config $1/large $3:/tmp/bench-large",
            "ssh -F $1/config $3 rm /tmp/bench-large",
        ),
        (
            "scp of a 1 GB file out of it",
            rounds.min(ROUNDS),
            "scp -q -F $1/config $3:/tmp/bench-kept $1/back",
            "cmp $1/large $1/back && rm $1/back",
        ),
        (
            "rsync of 5,000 small files into it",
            rounds.min(ROUNDS),
            "rsync -a -e \"ssh -F $1/config\" $1/small/ $3:/tmp/bench-small/",
            "ssh -F $1/config $3 rm -r /tmp/bench-small",
        ),
    ] {
        if run.contains("bench-kept") {
            for host in ["msb", "sshd"] {
                shell("scp -q -F $1/config $1/large $3:/tmp/bench-kept", host)?;
            }
        }
        // What was written for the table before is on its way to the disk, and would be in the way of this one.
        shell("sync", "")?;
        let measured = |host: &'static str| {
            let (shell, ours) = (&shell, host == "msb");
            let measure = Box::new(move || {
                let took = shell(run, host)?;
                shell(after, host)?;
                Ok(rounds::milliseconds(took))
            });
            Entrant { name: host, ours, measure }
        };
        let series = rounds::play(most, vec![measured("msb"), measured("sshd")])?;
        let goal = Some(Goal::Ratio(GOAL));
        tables.push(Table::new(work, Unit::Milliseconds, "sshd", goal, &series));
    }
    shell("ssh -F $1/config $3 rm /tmp/bench-kept", "sshd")?;
    drop(servers);
    bench_dir.clear();
    Ok(tables)
}

/// What sshd and its clients are told. Nothing about ciphers: each pair agrees by itself.
fn settings(bench_dir: &BenchDir, directory: &str, ours: u16, theirs: u16) -> Result<()> {
    let sshd = format!(
        "Port {theirs}\nListenAddress 127.0.0.1\nHostKey {directory}/host\nPidFile none\nUsePAM no\n\
         AuthorizedKeysFile {directory}/authorized\nPasswordAuthentication no\nStrictModes no\n\
         Subsystem sftp /usr/lib/openssh/sftp-server\n"
    );
    let common = format!(
        "HostName 127.0.0.1\nIdentityFile {directory}/key\nIdentitiesOnly yes\nBatchMode yes\n\
         StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
    );
    let user = bench_dir.user.name;
    let clients = format!(
        "Host msb\nPort {ours}\nUser root\n{common}Host sshd\nPort {theirs}\nUser {user}\n{common}"
    );
    for (name, text) in [("sshd_config", sshd), ("config", clients)] {
        let path = Path::new(directory).join(name);
        fs::write(&path, text)?;
        bench_dir::give(&path, user)?;
    }
    workspace::run(Command::new("test").args(["-x", "/usr/sbin/sshd"]))
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
