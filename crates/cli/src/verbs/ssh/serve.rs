//! `msb ssh serve`: SSH for a sandbox, at a port or on stdin and stdout.

use super::config::{known_hosts, quoted};
use super::keys::{authorized, my_keys};
use super::{host_key, known_as, login_name, make_known};
use crate::http_server::{block_on, listen, told_to_stop};
use crate::output::{self, Outcome};
use crate::target::{bare_engine, runs};
use crate::verb_table::LocalVerb;
use clap::Parser;
use msb_engine::{Engine, SshFile, SshFiles};
use msb_spec::{Error, Kind, Name, Result};
use msb_ssh::{Door, HostKey, ServerNotice, SshServerConfig, Still, serve_pair, serve_port};
use std::io::{stdin, stdout};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// How often it is looked whether the sandbox still runs.
const LOOK: Duration = Duration::from_secs(1);
/// How often in a row it must not run to have ended: one that is restarted is up again by then.
const LOOKS: u32 = 3;

/// Serves SSH for a sandbox until it ends, or this is interrupted. The sandbox needs no sshd.
///
/// At a port only the keys of `msb ssh authorize` may log in, as any user of the sandbox. With `--stdio` there is one
/// client and no authentication: a user that can start this could use `msb exec`.
#[derive(Debug, Parser)]
#[command(override_usage = "msb ssh serve [OPTIONS] NAME")]
pub(crate) struct SshServeArgs {
    /// Name of the sandbox
    #[arg(value_name = "NAME")]
    name: String,
    /// The port to listen on; 0 takes any that is free
    #[arg(long, short, value_name = "PORT", required_unless_present = "stdio")]
    port: Option<u16>,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    bind: IpAddr,
    /// Let your own keys in as well, those of `~/.ssh/*.pub`
    #[arg(long)]
    my_keys: bool,
    /// Speak SSH on stdin and stdout, for a ProxyCommand of ssh
    #[arg(long, conflicts_with_all = ["port", "bind", "my_keys"])]
    stdio: bool,
}

impl LocalVerb for SshServeArgs {
    fn run(self) -> Outcome {
        let name = Name::parse(&self.name)?;
        let engine = bare_engine()?;
        let files = engine.ssh_files(&name)?;
        // Says in words what is wrong with a sandbox that does not run.
        engine.running_execs(&name)?;
        msb_engine::raise_file_limit();
        let host_key = host_key(&files)?;
        // Before anybody connects: ssh looks at it only then, and the sandbox may be newer than what ssh was told.
        make_known(&files, &name, &host_key)?;
        let served = SshServerConfig {
            still: still(files.clone(), name.clone(), host_key.fingerprint()),
            host_key,
            door: Door::Anybody,
            tell: Arc::new(tell),
            api: Arc::new(bare_engine()?),
            name,
        };
        match self.port {
            Some(port) => self.at_a_port(port, engine, &files, served)?,
            None => {
                let (input, output) = (own(stdin().as_fd())?, own(stdout().as_fd())?);
                block_on(async move {
                    tokio::select! {
                        done = serve_pair(&served, input, output) => done,
                        () = ended(Arc::new(engine), &served) => Ok(()),
                    }
                })?;
            }
        }
        Ok(0)
    }
}

impl SshServeArgs {
    fn at_a_port(
        &self,
        port: u16,
        engine: Engine,
        files: &SshFiles,
        mut served: SshServerConfig,
    ) -> Result<()> {
        let (name, mine) = (served.name.clone(), self.my_keys);
        if mine {
            my_keys()?;
        }
        let keys = authorized(&engine, &name, mine);
        keys.faults.iter().for_each(output::print_error);
        if keys.good.is_empty() {
            output::note("no key may log in yet: `msb ssh authorize KEY` adds one");
        }
        let known_hosts = known_hosts(&files.path(SshFile::KnownHosts))?;
        let listener = listen(self.bind, port)?;
        let at = listener.local_addr().map_err(|error| Error::host("cannot listen", error))?;
        if !at.ip().is_loopback() {
            output::note(format!(
                "this port is open to every host that reaches {}: each authorized key can log in from there",
                at.ip()
            ));
        }
        output::print(format!("listening on {at}"));
        output::print(format!("host key {}", served.host_key.fingerprint()));
        output::print(format!(
            "ssh -p {} -o HostKeyAlias={} -o {} {}@{}",
            at.port(),
            known_as(&name),
            quoted(&format!("UserKnownHostsFile={known_hosts}")),
            login_name(&engine, &name)?,
            if at.ip().is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { at.ip() },
        ));
        let engine = Arc::new(engine);
        let door = {
            let (engine, name) = (Arc::clone(&engine), name.clone());
            move || authorized(&engine, &name, mine)
        };
        served.door = Door::Keys(Arc::new(door));
        block_on(async move {
            tokio::select! {
                done = serve_port(&served, listener) => done,
                () = told_to_stop() => Ok(()),
                () = ended(engine, &served) => Ok(()),
            }
        })
    }
}

/// Says whether the name still means the sandbox that it meant. The host key tells: it is the sandbox's own,
/// stays when that is restarted, and goes with it.
fn still(files: SshFiles, name: Name, fingerprint: String) -> Still {
    Arc::new(move || {
        let text = files.read(SshFile::HostKey)?.unwrap_or_default();
        match HostKey::parse(&text).is_ok_and(|key| key.fingerprint() == fingerprint) {
            true => Ok(()),
            false => Err(Error::new(Kind::NotFound, format!("sandbox `{name}` is gone"))
                .hint("what has the name now is another; connect anew")),
        }
    })
}

/// Waits until the sandbox has ended, or its name is another's.
async fn ended(engine: Arc<Engine>, served: &SshServerConfig) {
    let mut down = 0;
    while down < LOOKS {
        tokio::time::sleep(LOOK).await;
        let (engine, name) = (Arc::clone(&engine), served.name.clone());
        let still = Arc::clone(&served.still);
        let look = move || if still().is_err() { LOOKS } else { u32::from(!runs(&*engine, &name)) };
        let looked = tokio::task::spawn_blocking(look).await.unwrap_or(0);
        down = if looked == 0 { 0 } else { down + looked };
    }
    output::note("the sandbox has ended");
}

fn own(fd: std::os::fd::BorrowedFd<'_>) -> Result<OwnedFd> {
    fd.try_clone_to_owned().map_err(|error| Error::host("cannot use stdin and stdout", error))
}

fn tell(told: &ServerNotice) {
    match told {
        ServerNotice::Refused(error) => output::print_error(error),
        ServerNotice::Login { user, key, from } => {
            output::note(format!("login from {from} as `{user}` with {key}"));
        }
    }
}
