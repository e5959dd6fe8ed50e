//! Serves the files of a volume without a sandbox: by a process with the ids of the volume that
//! sees nothing else.

use super::record::VolumeRecord;
use super::{VolumeStore, locks};
use crate::connection::Connection;
use crate::files::Files;
use crate::host::HostUser;
use msb_spec::{Error, Ids, Kind, Result, VolumeName, VolumeStorage};
use msb_sys::socket;
use msb_wire::{VOLUME_ARGUMENT, VolumeHelperRequest};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

/// The most bytes of the reply of the server process, which is an error of a few lines.
const ANSWER_LIMIT: u64 = 1 << 20;

/// The server process of a file operation on a volume, with the shared lock of the volume.
#[derive(Debug)]
pub(crate) struct VolumeFileServer {
    process: Child,
    _lock: std::fs::File,
}

impl Drop for VolumeFileServer {
    fn drop(&mut self) {
        // It ends when its client closes the connection.
        let _ = self.process.wait();
    }
}

impl VolumeStore {
    /// Opens a connection for one file operation on a volume.
    pub fn files(&self, name: &VolumeName) -> Result<Files> {
        let lock = locks::share(&self.home, name)?;
        let record = VolumeRecord::read(&self.home, name)?;
        if record.stored() == VolumeStorage::Disk {
            return Err(Error::unsupported(format!("volume `{name}` is a disk"))
                .cause("only a sandbox that mounts it can read its files")
                .hint(format!("`msb run -v {name}:/{name} -- ls /{name}` looks into it")));
        }
        let path = record.path(&self.home.volume(name));
        let letter = VolumeHelperRequest { ids: ids(&record)?, path, stored: record.stored() };
        let text = serde_json::to_string(&letter).expect("our own types always serialise");
        let about = |error| Error::host(format!("cannot open volume `{name}`"), error);
        let (ours, theirs) = socket::pair().map_err(about)?;
        let process = Command::new(&self.program)
            .arg(VOLUME_ARGUMENT)
            .arg(text)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(about)?;
        let mut server = VolumeFileServer { process, _lock: lock };
        let mut line = String::new();
        if let Some(reply) = server.process.stdout.take() {
            let _ = BufReader::new(reply.take(ANSWER_LIMIT)).read_line(&mut line);
        }
        let died = |_| Error::new(Kind::Host, "the process that serves files has died");
        let reply = serde_json::from_str::<Result<()>>(&line).map_err(died).and_then(|reply| reply);
        if let Err(error) = reply {
            drop(ours);
            return Err(error.under(format!("cannot open volume `{name}`")));
        }
        Ok(Files::of_volume(Connection::from_stream(UnixStream::from(ours)), server))
    }
}

/// The ids of the server process.
fn ids(record: &VolumeRecord) -> Result<Ids> {
    let user = HostUser::current();
    let HostUser { uid, gid } = user;
    match (record.range(), user.subordinate_ids()) {
        (Some(range), _) if user.is_root() => Ok(Ids::Shifted { range }),
        (_, Some((uids, gids))) if !user.is_root() => Ok(Ids::Subordinate { uid, gid, uids, gids }),
        (_, None) if !user.is_root() => Ok(Ids::Single { uid, gid }),
        _ => Err(Error::invalid(format!("volume `{}` has no ids", record.name))),
    }
}
