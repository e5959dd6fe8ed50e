//! One call of a tool on its way through MCP: what it tells meanwhile, and what it asks.

use super::session::Level;
use crate::dialect::{Answer, Client};
use msb_api::{Part, Watch};
use rmcp::RoleServer;
use rmcp::model::{
    CallToolResult, ClientCapabilities, CustomRequest, ProgressNotificationParam, ProgressToken,
    ProtocolVersion, ServerRequest,
};
use rmcp::service::{Peer, RequestContext};
use serde_json::Value;
use std::sync::OnceLock;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Whoever hears how a call goes.
pub(super) struct Listener {
    pub(super) peer: Peer<RoleServer>,
    /// Under which sign it wants progress.
    pub(super) token: Option<ProgressToken>,
    /// From which level on it wants to be told what happens.
    pub(super) level: Option<Level>,
    /// Who tells.
    pub(super) logger: &'static str,
    pub(super) last: f64,
}

impl Listener {
    pub(super) fn wants_anything(&self) -> bool {
        self.token.is_some() || self.level.is_some()
    }

    pub(super) async fn step(&mut self, step: Step) {
        self.log(INFO, &step.what).await;
        if let Some(token) = &self.token {
            let progress = step.progress(&mut self.last, token.clone());
            // A client that does not listen still gets its answer.
            let _ = self.peer.notify_progress(progress).await;
        }
    }

    #[expect(deprecated, reason = "MCP gives logging up, its clients have not yet")]
    pub(super) async fn log(&self, level: Level, what: &str) {
        if self.level.is_some_and(|least| wants(least, level)) {
            let text = Value::String(what.to_owned());
            let message = rmcp::model::LoggingMessageNotificationParam::new(level, text);
            let message = message.with_logger(self.logger);
            let _ = self.peer.notify_logging_message(message).await;
        }
    }
}

#[expect(deprecated, reason = "MCP gives logging up, its clients have not yet")]
pub(super) const INFO: Level = Level::Info;
#[expect(deprecated, reason = "MCP gives logging up, its clients have not yet")]
pub(super) const WARNING: Level = Level::Warning;

/// Whether who wants this level and what is above it wants the other one.
pub(super) fn wants(least: Level, level: Level) -> bool {
    // They are declared from the least severe to the most.
    level as u8 >= least as u8
}

/// A step of the work, on its way to the client.
pub(super) struct Step {
    what: String,
    part: Option<Part>,
}

impl Step {
    /// As MCP wants it: a number that grows with every message.
    fn progress(self, last: &mut f64, token: ProgressToken) -> ProgressNotificationParam {
        #[expect(clippy::cast_precision_loss, reason = "nobody sees the last of 53 bits")]
        let (done, total) = match self.part {
            Some(part) if part.of > 0 => (part.done as f64 / part.of as f64, Some(1.0)),
            _ => (*last, None),
        };
        const LEAST: f64 = 1e-6;
        *last = if done > *last { done } else { *last + LEAST };
        let mut progress = ProgressNotificationParam::new(token, *last);
        progress.total = total;
        progress.message = Some(self.what);
        progress
    }
}

pub(super) struct Told(pub(super) mpsc::UnboundedSender<Step>);

impl Watch for Told {
    fn step(&self, what: &str, part: Option<Part>) {
        let _ = self.0.send(Step { what: what.to_owned(), part });
    }
}

/// The client that waits for a call, to be asked from the thread that works on it.
pub(super) struct Waiting {
    peer: Peer<RoleServer>,
    ended: CancellationToken,
    runtime: Handle,
    /// What it said that it can be asked for.
    can: ClientCapabilities,
    /// Whether it speaks a revision in which only clients ask.
    newer: bool,
    missing: OnceLock<ClientCapabilities>,
}

impl Waiting {
    pub(super) fn new(context: &RequestContext<RoleServer>) -> Self {
        let newest = ProtocolVersion::V_2026_07_28;
        let version = context.protocol_version();
        Self {
            peer: context.peer.clone(),
            ended: context.ct.clone(),
            runtime: Handle::current(),
            can: context.client_capabilities().unwrap_or_default(),
            newer: version.is_some_and(|version| version.as_str() >= newest.as_str()),
            missing: OnceLock::new(),
        }
    }

    /// What it was to be asked for and cannot be, where the protocol has an error for that.
    pub(super) fn missing(&self) -> Option<ClientCapabilities> {
        self.missing.get().filter(|_| self.newer).cloned()
    }
}

impl Client for Waiting {
    fn ask(&self, method: &str, params: Value) -> Result<Value, String> {
        if let Some(missing) = missing(&self.can, method) {
            let _ = self.missing.set(missing);
            return Err(format!("this client cannot be asked for `{method}`"));
        }
        if self.newer {
            return Err("this client cannot be asked while it waits".to_owned());
        }
        let request = CustomRequest::new(method, Some(params));
        let asking = self.peer.send_request(ServerRequest::CustomRequest(request));
        let said = self.runtime.block_on(self.ended.run_until_cancelled(asking));
        let said = said.ok_or("the call was cancelled")?.map_err(|error| error.to_string())?;
        serde_json::to_value(said).map_err(|error| error.to_string())
    }
}

/// What somebody who can be asked for this says, if this one does not.
fn missing(can: &ClientCapabilities, method: &str) -> Option<ClientCapabilities> {
    let mut needed = ClientCapabilities::default();
    let has = match method.split_once('/').map_or(method, |(what, _)| what) {
        "sampling" => {
            needed.sampling = Some(Default::default());
            can.sampling.is_some()
        }
        "elicitation" => {
            needed.elicitation = Some(Default::default());
            can.elicitation.is_some()
        }
        "roots" => {
            needed.roots = Some(Default::default());
            can.roots.is_some()
        }
        _ => true,
    };
    (!has).then_some(needed)
}

pub(super) fn result(answer: Answer) -> CallToolResult {
    let text = answer.text.into_iter().map(rmcp::model::ContentBlock::text);
    let content = text.chain(answer.more.into_iter().map(super::content::block)).collect();
    let mut result = match answer.failed {
        true => CallToolResult::error(content),
        false => CallToolResult::success(content),
    };
    result.structured_content = answer.structured;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_wanted_from_the_one_that_was_said() {
        assert!(wants(INFO, INFO) && wants(INFO, WARNING));
        assert!(!wants(WARNING, INFO));
    }

    #[test]
    fn only_what_a_client_offers_is_asked_for() {
        let mut can = ClientCapabilities::default();
        assert!(missing(&can, "sampling/createMessage").is_some_and(|it| it.sampling.is_some()));
        assert!(missing(&can, "ping").is_none());
        can.elicitation = Some(Default::default());
        assert_eq!(missing(&can, "elicitation/create"), None);
        assert!(missing(&can, "roots/list").is_some_and(|it| it.roots.is_some()));
    }

    #[test]
    fn progress_grows_with_every_message() {
        let token = ProgressToken(rmcp::model::NumberOrString::Number(1));
        let mut last = 0.0;
        let mut seen = vec![last];
        for part in [None, Some((1, 2)), Some((1, 2)), None, Some((2, 2))] {
            let part = part.map(|(done, of)| Part { done, of });
            let step = Step { what: String::new(), part };
            seen.push(step.progress(&mut last, token.clone()).progress);
        }
        assert!(seen.is_sorted_by(|before, after| before < after), "{seen:?}");
    }
}
