//! File tools with the semantics of SFTP version 3, as a user of the sandbox: no parent directories
//! are created, and renames and links never replace a file. Writes do replace the content.

use super::envelope::{Outcome, ToolFailure, ToolSuccess};
use super::files::{FileParams, RemoveKind, about};
use super::{Microsandbox, read};
use crate::dialect::ToolCall;
use msb_api::{EntryKind, Place};
use serde_json::json;

impl Microsandbox {
    /// The SFTP tools; none if the tool is another one.
    pub(super) fn sftp_outcome(&self, call: &ToolCall) -> Option<Outcome> {
        Some(match call.tool.strip_prefix("sandbox_sftp_")? {
            // These tools work the same, with the rights of the user.
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

    fn sftp_mkdir(&self, call: &ToolCall) -> Outcome {
        let params: FileParams = read(call)?;
        let at = self.at(call, &params)?;
        let path = at.path(&params.path)?;
        self.config.api.file_mkdir(&at.place, &path, false).map_err(about(&params.path))?;
        Ok(ToolSuccess::new(json!({"path": params.path, "created": true})))
    }

    fn sftp_remove(&self, call: &ToolCall) -> Outcome {
        let params: FileParams = read(call)?;
        let at = self.at(call, &params)?;
        let path = at.path(&params.path)?;
        let api = &self.config.api;
        let meta = api.file_stat(&at.place, &path, false).map_err(about(&params.path))?;
        match (params.kind == RemoveKind::Dir, meta.kind == EntryKind::Directory) {
            (false, true) => {
                return Err(ToolFailure::new(format!("{} is a directory", params.path)));
            }
            (true, false) => {
                return Err(ToolFailure::new(format!("{} is not a directory", params.path)));
            }
            // A directory that is not empty stays.
            _ => api.file_remove(&at.place, &path, false).map_err(about(&params.path))?,
        }
        Ok(ToolSuccess::new(json!({"path": params.path, "removed": true})))
    }

    fn sftp_rename(&self, call: &ToolCall) -> Outcome {
        let params: FileParams = read(call)?;
        let at = self.at(call, &params)?;
        let (from, to) = (at.path(&params.from)?, at.path(&params.to)?);
        self.refuse_existing(&at.place, &to, &params.to)?;
        self.config.api.file_rename(&at.place, &from, &to).map_err(about(&params.from))?;
        Ok(ToolSuccess::new(json!({"from": params.from, "to": params.to, "renamed": true})))
    }

    fn sftp_realpath(&self, call: &ToolCall) -> Outcome {
        let mut params: FileParams = read(call)?;
        let requested = params.path.clone();
        if requested.is_empty() {
            // In SFTP, an empty path is the current directory.
            ".".clone_into(&mut params.path);
        }
        let at = self.at(call, &params)?;
        let path = at.path(&params.path)?;
        let real = self.config.api.file_real(&at.place, &path).map_err(about(&requested))?;
        let real = String::from_utf8_lossy(&real);
        Ok(ToolSuccess::new(json!({"path": requested, "realPath": real})))
    }

    fn sftp_readlink(&self, call: &ToolCall) -> Outcome {
        let params: FileParams = read(call)?;
        let at = self.at(call, &params)?;
        let path = at.path(&params.path)?;
        let meta =
            self.config.api.file_stat(&at.place, &path, false).map_err(about(&params.path))?;
        match meta.kind {
            EntryKind::Symlink(target) => {
                let target = String::from_utf8_lossy(&target);
                Ok(ToolSuccess::new(json!({"path": params.path, "target": target})))
            }
            _ => Err(ToolFailure::new(format!("{} is not a symbolic link", params.path))),
        }
    }

    fn sftp_symlink(&self, call: &ToolCall) -> Outcome {
        let params: FileParams = read(call)?;
        let at = self.at(call, &params)?;
        let link = at.path(&params.link_path)?;
        if params.target.is_empty() || params.target.contains('\0') {
            return Err(ToolFailure::new("target is empty or contains a zero byte"));
        }
        self.refuse_existing(&at.place, &link, &params.link_path)?;
        let target = params.target.as_bytes();
        self.config.api.file_symlink(&at.place, &link, target).map_err(about(&params.link_path))?;
        let (target, link) = (&params.target, &params.link_path);
        Ok(ToolSuccess::new(json!({"target": target, "linkPath": link, "created": true})))
    }

    fn refuse_existing(&self, at: &Place, path: &[u8], shown: &str) -> Result<(), ToolFailure> {
        match self.config.api.file_stat(at, path, false) {
            Ok(_) => Err(ToolFailure::new(format!("{shown} already exists"))),
            Err(_) => Ok(()),
        }
    }
}
