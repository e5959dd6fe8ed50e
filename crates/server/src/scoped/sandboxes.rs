//! Sandboxes and networks of one namespace.

use super::Scoped;
use msb_api::{
    Api, Create, EventStream, Inspection, LogFilter, LogStream, Metrics, NetRecord, NetTable,
    Networks, Sandboxes, Stopped, Summary, Watch,
};
use msb_spec::{Error, Kind, Name, Plan, Policy, Published, Result, Rule, Spec};
use std::sync::Arc;
use std::time::Duration;

impl Scoped {
    fn summary(&self, mut summary: Summary) -> Option<Summary> {
        summary.name = self.outer(&summary.name)?;
        summary.image = self.text(&summary.image);
        Some(summary)
    }

    /// One that was asked for by name.
    fn asked_for(&self, summary: Summary) -> Result<Summary> {
        self.summary(summary).ok_or_else(|| Error::new(Kind::Protocol, "another sandbox came back"))
    }
}

impl Sandboxes for Scoped {
    fn giving(&self, secrets: Vec<(String, Vec<u8>)>) -> Arc<dyn Api> {
        Arc::new(Self { api: self.api.giving(secrets), ..self.clone() })
    }

    fn sandbox_plan(&self, spec: &Spec, watch: &dyn Watch) -> Result<Plan> {
        let (spec, _) = self.spec(spec)?;
        self.told(self.api.sandbox_plan(&spec, watch)).and_then(|plan| self.plan(plan))
    }

    fn sandbox_create(&self, ask: &Create, watch: &dyn Watch) -> Result<Summary> {
        let (spec, _) = self.spec(&ask.spec)?;
        let mut registry = ask.registry.clone();
        registry.ca = registry.ca.map(|path| self.host(&path)).transpose()?;
        let ask = Create { spec, replace: ask.replace, registry };
        self.told(self.api.sandbox_create(&ask, watch)).and_then(|made| self.asked_for(made))
    }

    fn sandbox_list(&self) -> Result<Vec<Summary>> {
        let all = self.told(self.api.sandbox_list())?;
        Ok(all.into_iter().filter_map(|summary| self.summary(summary)).collect())
    }

    fn sandbox_inspect(&self, name: &Name) -> Result<Inspection> {
        let seen = self.told(self.api.sandbox_inspect(&self.inner(name)?))?;
        let plan = self.plan(seen.plan)?;
        let reason = seen.reason.map(|reason| self.text(&reason));
        Ok(Inspection { name: name.clone(), plan, reason, ..seen })
    }

    fn sandbox_summary(&self, name: &Name) -> Result<Summary> {
        let summary = self.told(self.api.sandbox_summary(&self.inner(name)?))?;
        self.asked_for(summary)
    }

    fn sandbox_start(&self, name: &Name) -> Result<bool> {
        self.told(self.api.sandbox_start(&self.inner(name)?))
    }

    fn sandbox_stop(&self, name: &Name, grace: Duration) -> Result<bool> {
        self.told(self.api.sandbox_stop(&self.inner(name)?, grace))
    }

    fn sandbox_remove(&self, name: &Name, force: bool) -> Result<()> {
        self.told(self.api.sandbox_remove(&self.inner(name)?, force))
    }

    fn sandbox_drain(&self, name: &Name) -> Result<bool> {
        self.told(self.api.sandbox_drain(&self.inner(name)?))
    }

    fn sandbox_pause(&self, name: &Name) -> Result<()> {
        self.told(self.api.sandbox_pause(&self.inner(name)?))
    }

    fn sandbox_resume(&self, name: &Name) -> Result<()> {
        self.told(self.api.sandbox_resume(&self.inner(name)?))
    }

    fn sandbox_renew(&self, name: &Name, left: Option<Duration>) -> Result<Option<u64>> {
        self.told(self.api.sandbox_renew(&self.inner(name)?, left))
    }

    fn sandbox_wait(&self, name: &Name, limit: Option<Duration>) -> Result<Option<Stopped>> {
        self.told(self.api.sandbox_wait(&self.inner(name)?, limit))
    }

    fn sandbox_metrics(&self, name: &Name) -> Result<Metrics> {
        let metrics = self.told(self.api.sandbox_metrics(&self.inner(name)?))?;
        Ok(Metrics { name: name.to_string(), ..metrics })
    }

    fn sandbox_logs(&self, name: &Name, filter: &LogFilter) -> Result<Box<dyn LogStream>> {
        self.told(self.api.sandbox_logs(&self.inner(name)?, filter))
    }

    fn sandbox_events(&self, name: &Name) -> Result<Box<dyn EventStream>> {
        self.told(self.api.sandbox_events(&self.inner(name)?))
    }
}

impl Networks for Scoped {
    fn network_table(&self, name: &Name) -> Result<NetTable> {
        self.told(self.api.network_table(&self.inner(name)?))
    }

    fn network_allow(&self, name: &Name, rules: &[Rule]) -> Result<Policy> {
        self.told(self.api.network_allow(&self.inner(name)?, rules))
    }

    fn port_publish(&self, name: &Name, port: &Published) -> Result<Published> {
        self.told(self.api.port_publish(&self.inner(name)?, port))
    }

    fn port_withdraw(&self, name: &Name, port: &Published) -> Result<()> {
        self.told(self.api.port_withdraw(&self.inner(name)?, port))
    }

    fn network_events(&self, name: &Name) -> Result<Vec<NetRecord>> {
        self.told(self.api.network_events(&self.inner(name)?))
    }
}
