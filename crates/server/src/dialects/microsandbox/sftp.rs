//! Files over SFTP: seen by a user of the sandbox, and with the manners of version 3, which makes no
//! directories on the way, and replaces nothing by a name or a link. What is written replaces what was
//! there.

use super::envelope::{Done, Failure, Outcome};
use super::files::{Asked, Removed, about};
use super::{Microsandbox, read};
use crate::dialect::Call;
use msb_api::{EntryKind, Place};
use serde_json::json;

impl Microsandbox {
    /// The tools for files over SFTP; none if it is another.
    pub(super) fn sftp_outcome(&self, call: &Call) -> Option<Outcome> {
        Some(match call.tool.strip_prefix("sandbox_sftp_")? {
            // At the user's place they are as all others.
            "read" => self.fs_read(call),
            "write" => self.fs_write(call),
            "mkdir" => self.sftp_mkdir(call),
            "remove" => self.sftp_remove(call),
            "rename" => self.sftp_rename(call),
            "realpath" => self.sftp_realpath(call),
            "readlink" => self.sftp_readlink(call),
            "symlink" => self.sftp_symlink(call),
            _ => return None,
        })
    }

    fn sftp_mkdir(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let at = self.at(call, &asked)?;
        let path = at.path(&asked.path)?;
        self.world.api.file_mkdir(&at.place, &path, false).map_err(about(&asked.path))?;
        Ok(Done::new(json!({"path": asked.path, "created": true})))
    }

    fn sftp_remove(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let at = self.at(call, &asked)?;
        let path = at.path(&asked.path)?;
        let api = &self.world.api;
        let meta = api.file_stat(&at.place, &path, false).map_err(about(&asked.path))?;
        match (asked.kind == Removed::Dir, meta.kind == EntryKind::Directory) {
            (false, true) => return Err(Failure::new(format!("{} is a directory", asked.path))),
            (true, false) => {
                return Err(Failure::new(format!("{} is not a directory", asked.path)));
            }
            // One that holds something stays.
            _ => api.file_remove(&at.place, &path, false).map_err(about(&asked.path))?,
        }
        Ok(Done::new(json!({"path": asked.path, "removed": true})))
    }

    fn sftp_rename(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let at = self.at(call, &asked)?;
        let (from, to) = (at.path(&asked.from)?, at.path(&asked.to)?);
        self.refuse_existing(&at.place, &to, &asked.to)?;
        self.world.api.file_rename(&at.place, &from, &to).map_err(about(&asked.from))?;
        Ok(Done::new(json!({"from": asked.from, "to": asked.to, "renamed": true})))
    }

    fn sftp_realpath(&self, call: &Call) -> Outcome {
        let mut asked: Asked = read(call)?;
        let said = asked.path.clone();
        if said.is_empty() {
            // As everywhere in SFTP, no path is where the user is.
            ".".clone_into(&mut asked.path);
        }
        let at = self.at(call, &asked)?;
        let path = at.path(&asked.path)?;
        let real = self.world.api.file_real(&at.place, &path).map_err(about(&said))?;
        let real = String::from_utf8_lossy(&real);
        Ok(Done::new(json!({"path": said, "realPath": real})))
    }

    fn sftp_readlink(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let at = self.at(call, &asked)?;
        let path = at.path(&asked.path)?;
        let meta = self.world.api.file_stat(&at.place, &path, false).map_err(about(&asked.path))?;
        match meta.kind {
            EntryKind::Symlink(target) => {
                let target = String::from_utf8_lossy(&target);
                Ok(Done::new(json!({"path": asked.path, "target": target})))
            }
            _ => Err(Failure::new(format!("{} is not a symbolic link", asked.path))),
        }
    }

    fn sftp_symlink(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let at = self.at(call, &asked)?;
        let link = at.path(&asked.link_path)?;
        if asked.target.is_empty() || asked.target.contains('\0') {
            return Err(Failure::new("target is empty or holds a zero byte"));
        }
        self.refuse_existing(&at.place, &link, &asked.link_path)?;
        let target = asked.target.as_bytes();
        self.world.api.file_symlink(&at.place, &link, target).map_err(about(&asked.link_path))?;
        let (target, link) = (&asked.target, &asked.link_path);
        Ok(Done::new(json!({"target": target, "linkPath": link, "created": true})))
    }

    fn refuse_existing(&self, at: &Place, path: &[u8], shown: &str) -> Result<(), Failure> {
        match self.world.api.file_stat(at, path, false) {
            Ok(_) => Err(Failure::new(format!("{shown} exists already"))),
            Err(_) => Ok(()),
        }
    }
}
