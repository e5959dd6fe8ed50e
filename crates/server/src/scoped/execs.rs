//! Commands in the sandboxes of one namespace.

use super::Scoped;
use msb_api::{Exec, ExecEntry, Execs, Watch};
use msb_spec::{Command, Exit, Name, Result, Spec};
use std::time::Duration;

impl Execs for Scoped {
    fn exec_start(&self, name: &Name, command: &Command) -> Result<Box<dyn Exec>> {
        let name = self.inner(name)?;
        self.told(self.asking(|| self.api.exec_start(&name, command)))
    }

    fn exec_attach(&self, name: &Name, id: u64) -> Result<Box<dyn Exec>> {
        self.told(self.api.exec_attach(&self.inner(name)?, id))
    }

    fn exec_run(&self, spec: &Spec, watch: &dyn Watch) -> Result<(Name, Box<dyn Exec>)> {
        let (spec, name) = self.spec(spec)?;
        let (_, exec) = self.told(self.asking(|| self.api.exec_run(&spec, watch)))?;
        Ok((name, exec))
    }

    fn exec_signal(&self, name: &Name, id: u64, signal: i32) -> Result<()> {
        self.told(self.api.exec_signal(&self.inner(name)?, id, signal))
    }

    fn exec_wait(&self, name: &Name, id: u64, limit: Duration) -> Result<Option<Exit>> {
        self.told(self.api.exec_wait(&self.inner(name)?, id, limit))
    }

    fn exec_list(&self, name: &Name) -> Result<Vec<ExecEntry>> {
        self.told(self.api.exec_list(&self.inner(name)?))
    }
}
