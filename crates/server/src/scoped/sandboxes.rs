//! Sandboxes and networks of one namespace.

use super::{LABEL, Scoped};
use msb_api::{
    Api, Audit, Create, Event, EventStream, Happened, Inspection, LogFilter, LogStream, Metrics,
    Modified, NetRecord, NetTable, Networks, Sample, Sandboxes, Stopped, Summary, Watch,
};
use msb_spec::{Error, Kind, Modify, Name, Plan, Policy, Published, Result, Rule, Spec};
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
        let plan = self.asking(|| self.api.sandbox_plan(&spec, watch));
        self.told(plan).and_then(|plan| self.plan(plan))
    }

    fn sandbox_create(&self, ask: &Create, watch: &dyn Watch) -> Result<Summary> {
        let (spec, _) = self.spec(&ask.spec)?;
        let registry = self.registry(&ask.registry)?;
        let ask = Create { spec, replace: ask.replace, registry };
        let made = self.asking(|| self.api.sandbox_create(&ask, watch));
        self.told(made).and_then(|made| self.asked_for(made))
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
        let name = self.inner(name)?;
        self.told(self.asking(|| self.api.sandbox_start(&name)))
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

    fn sandbox_modify(&self, name: &Name, ask: &Modify) -> Result<Vec<Modified>> {
        let mut ask = ask.clone();
        if self.namespace.is_some() {
            // Whose it is stays said.
            ask.labels.remove(LABEL);
            ask.unlabel.retain(|key| key != LABEL);
        }
        self.told(self.api.sandbox_modify(&self.inner(name)?, &ask))
    }

    fn sandbox_rename(&self, name: &Name, to: &Name) -> Result<()> {
        self.told(self.api.sandbox_rename(&self.inner(name)?, &self.inner(to)?))
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

    fn sandbox_history(&self, name: &Name) -> Result<Vec<Sample>> {
        self.told(self.api.sandbox_history(&self.inner(name)?))
    }

    fn sandbox_audit(&self, name: &Name) -> Result<Audit> {
        let audit = self.told(self.api.sandbox_audit(&self.inner(name)?))?;
        Ok(Audit { name: name.to_string(), ..audit })
    }

    fn sandbox_events(&self, name: &Name) -> Result<Box<dyn EventStream>> {
        let events = self.told(self.api.sandbox_events(&self.inner(name)?))?;
        Ok(Box::new(Turned { events, scoped: self.clone() }))
    }
}

/// Events with names turned back.
struct Turned {
    events: Box<dyn EventStream>,
    scoped: Scoped,
}

impl EventStream for Turned {
    fn more(&mut self) -> Result<Vec<Event>> {
        let mut events = self.scoped.told(self.events.more())?;
        for event in &mut events {
            if let Happened::Renamed { from } = &mut event.happened
                && let Some(outer) = self.scoped.outer(from)
            {
                *from = outer;
            }
        }
        Ok(events)
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
