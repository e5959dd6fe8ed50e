//! Files of a volume, without a sandbox: served by a process that has the volume's ids and sees
//! nothing but the volume.

use super::held;
use super::record::Record;
use crate::connection::Connection;
use crate::files::Files;
use crate::host::User;
use crate::sandboxes::Engine;
use msb_spec::{Error, Ids, Kind, Result, Stored, VolumeName};
use msb_sys::socket;
use msb_wire::{VOLUME_ARGUMENT, VolumeLetter};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

/// An error has a few lines.
const ANSWER_LIMIT: u64 = 1 << 20;

/// What a file operation on a volume needs for as long as it lasts.
#[derive(Debug)]
pub(crate) struct Served {
    process: Child,
    _lock: std::fs::File,
}

impl Drop for Served {
    fn drop(&mut self) {
        // Its client has gone, which ends it.
        let _ = self.process.wait();
    }
}

impl Engine {
    /// One file operation on a volume.
    pub fn volume_files(&self, name: &VolumeName) -> Result<Files> {
        let lock = held::share(self.home(), name)?;
        let record = Record::read(self.home(), name)?;
        if record.stored() == Stored::Disk {
            return Err(Error::unsupported(format!("volume `{name}` is a disk"))
                .cause("its files are the business of whoever mounts it")
                .hint(format!("`msb run -v {name}:/{name} -- ls /{name}` looks into it")));
        }
        let path = record.path(&self.home().volume(name));
        let letter = VolumeLetter { ids: ids(&record)?, path, stored: record.stored() };
        let text = serde_json::to_string(&letter).expect("our own types always serialise");
        let about = |error| Error::host(format!("cannot open volume `{name}`"), error);
        let (ours, theirs) = socket::pair().map_err(about)?;
        let process = Command::new(self.program())
            .arg(VOLUME_ARGUMENT)
            .arg(text)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(about)?;
        let mut served = Served { process, _lock: lock };
        let mut line = String::new();
        if let Some(answer) = served.process.stdout.take() {
            let _ = BufReader::new(answer.take(ANSWER_LIMIT)).read_line(&mut line);
        }
        let died = |_| Error::new(Kind::Host, "the process that serves files has died");
        let answer = serde_json::from_str::<Result<()>>(&line).map_err(died).and_then(|told| told);
        if let Err(error) = answer {
            drop(ours);
            return Err(error.under(format!("cannot open volume `{name}`")));
        }
        Ok(Files::of_volume(Connection::on(UnixStream::from(ours)), served))
    }
}

/// The ids of whoever serves its files.
fn ids(record: &Record) -> Result<Ids> {
    let user = User::current();
    let User { uid, gid } = user;
    match (record.range(), user.granted()) {
        (Some(range), _) if user.is_root() => Ok(Ids::Shifted { range }),
        (_, Some((uids, gids))) if !user.is_root() => Ok(Ids::Subordinate { uid, gid, uids, gids }),
        (_, None) if !user.is_root() => Ok(Ids::Single { uid, gid }),
        _ => Err(Error::invalid(format!("volume `{}` has no ids", record.name))),
    }
}
