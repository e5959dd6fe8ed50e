//! Files of the sandboxes and volumes of one namespace.

use super::Scoped;
use msb_api::{Attributes, Copied, Files, Meta, Place};
use msb_spec::Result;
use std::io::Read;
use std::path::Path;

impl Scoped {
    fn place(&self, at: &Place) -> Result<Place> {
        Ok(match at {
            Place::Sandbox { name, user } => {
                Place::Sandbox { name: self.inner(name)?, user: user.clone() }
            }
            Place::Volume(name) => Place::Volume(self.inner_volume(name)?),
        })
    }
}

impl Files for Scoped {
    fn file_read(
        &self,
        at: &Place,
        path: &[u8],
        offset: u64,
        length: Option<u64>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.told(self.api.file_read(&self.place(at)?, path, offset, length, take))
    }

    fn file_write(
        &self,
        at: &Place,
        path: &[u8],
        mode: u32,
        append: bool,
        content: &mut dyn Read,
    ) -> Result<u64> {
        self.told(self.api.file_write(&self.place(at)?, path, mode, append, content))
    }

    fn file_stat(&self, at: &Place, path: &[u8], follow: bool) -> Result<Meta> {
        self.told(self.api.file_stat(&self.place(at)?, path, follow))
    }

    fn file_real(&self, at: &Place, path: &[u8]) -> Result<Vec<u8>> {
        self.told(self.api.file_real(&self.place(at)?, path))
    }

    fn file_list(&self, at: &Place, path: &[u8]) -> Result<Vec<Meta>> {
        self.told(self.api.file_list(&self.place(at)?, path))
    }

    fn file_mkdir(&self, at: &Place, path: &[u8], parents: bool) -> Result<()> {
        self.told(self.api.file_mkdir(&self.place(at)?, path, parents))
    }

    fn file_remove(&self, at: &Place, path: &[u8], recursive: bool) -> Result<()> {
        self.told(self.api.file_remove(&self.place(at)?, path, recursive))
    }

    fn file_rename(&self, at: &Place, from: &[u8], to: &[u8]) -> Result<()> {
        self.told(self.api.file_rename(&self.place(at)?, from, to))
    }

    fn file_copy(&self, at: &Place, from: &[u8], to: &[u8]) -> Result<()> {
        self.told(self.api.file_copy(&self.place(at)?, from, to))
    }

    fn file_symlink(&self, at: &Place, path: &[u8], target: &[u8]) -> Result<()> {
        self.told(self.api.file_symlink(&self.place(at)?, path, target))
    }

    fn file_set(&self, at: &Place, path: &[u8], attributes: &Attributes) -> Result<()> {
        self.told(self.api.file_set(&self.place(at)?, path, attributes))
    }

    fn file_push(&self, at: &Place, from: &Path, to: &[u8]) -> Result<Copied> {
        let (at, from) = (self.place(at)?, self.host(from)?);
        self.told(self.api.file_push(&at, &from, to))
    }

    fn file_pull(&self, at: &Place, from: &[u8], to: &Path) -> Result<Copied> {
        let (at, to) = (self.place(at)?, self.host(to)?);
        self.told(self.api.file_pull(&at, from, &to))
    }
}
