//! Resource usage of sandboxes.

use super::Server;
use super::args::{CallContext, MetricsArgs, SandboxView, sandbox_name};
use crate::namespace;
use msb_api::{Metrics, Summary};
use msb_spec::{Kind, Result};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The interval over which CPU usage is measured.
const LOOK: Duration = Duration::from_millis(50);

impl Server {
    /// Reports the resource usage of one sandbox or several.
    pub(crate) fn metrics(
        &self,
        context: &CallContext<'_>,
        measured: &MetricsArgs,
    ) -> Result<Value> {
        let view = self.view(context, measured.namespace.as_deref())?;
        let summaries = match &measured.sandbox {
            Some(name) => vec![view.api.sandbox_summary(&sandbox_name(name)?)?],
            None => view.api.sandbox_list()?,
        };
        let chosen = |summary: &Summary| match &view.namespace {
            // The view has stored names of all namespaces; only one is requested.
            Some(chosen) if view.is_unscoped => chosen.to_visible(summary.name.as_str()).is_some(),
            _ => true,
        };
        let summaries: Vec<Summary> = match measured.sandbox {
            Some(_) => summaries,
            None => summaries.into_iter().filter(chosen).collect(),
        };
        let before = measure(&view, &summaries)?;
        if before.iter().any(Option::is_some) {
            std::thread::sleep(LOOK);
        }
        let after = measure(&view, &summaries)?;
        let rows = summaries.iter().zip(before.iter().zip(&after));
        let rows: Vec<Value> = rows
            .map(|(summary, (before, after))| row(&view, summary, before.as_ref(), after.as_ref()))
            .collect();
        Ok(json!({"sandboxes": rows}))
    }
}

/// The current usage of each sandbox; none for one that is not running.
fn measure(view: &SandboxView, summaries: &[Summary]) -> Result<Vec<Option<(Instant, Metrics)>>> {
    let one = |summary: &Summary| match view.api.sandbox_metrics(&summary.name) {
        Ok(metrics) => Ok(Some((Instant::now(), metrics))),
        // It was stopped or removed meanwhile, or never ran.
        Err(error) if matches!(error.kind(), Kind::State | Kind::NotFound | Kind::Protocol) => {
            Ok(None)
        }
        Err(error) => Err(error),
    };
    summaries.iter().map(one).collect()
}

fn row(
    view: &SandboxView,
    summary: &Summary,
    before: Option<&(Instant, Metrics)>,
    after: Option<&(Instant, Metrics)>,
) -> Value {
    let (namespace, name) = match &view.namespace {
        Some(namespace) if !view.is_unscoped => (namespace.as_str(), summary.name.as_str()),
        _ => match namespace::split(summary.name.as_str()) {
            // A name of the CLI that only looks like one of a namespace.
            ("", name) => (namespace::DEFAULT, name),
            split => split,
        },
    };
    let cpu = before.zip(after).map(|((then, before), (now, after))| {
        let (used, passed) =
            (after.cpu_us.saturating_sub(before.cpu_us), now.duration_since(*then));
        #[expect(clippy::cast_precision_loss, reason = "display needs no 53 bits of precision")]
        let percent = used as f64 / (passed.as_micros().max(1) as f64) * 100.0;
        (percent * 100.0).round() / 100.0
    });
    let after = after.map(|(_, metrics)| metrics);
    let mut row = json!({
        "namespace": namespace,
        "name": name,
        "running": after.is_some(),
        "cpu_usage": cpu,
        "memory_usage": after.map(|metrics| metrics.memory >> 20),
        "disk_usage": after.and_then(|metrics| metrics.disk),
    });
    if let Some(reason) = &summary.isolation_reason {
        row["isolation_reason"] = json!(reason);
    }
    row
}
