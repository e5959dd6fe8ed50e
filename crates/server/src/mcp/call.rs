//! One tool call over MCP: progress and log notifications, and requests to the client.

use super::session::Level;
use crate::dialect::{McpClient, ToolResult};
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

/// Sends notifications about a call to its client.
pub(super) struct CallNotifier {
    pub(super) peer: Peer<RoleServer>,
    /// The token for progress notifications, if the client wants them.
    pub(super) token: Option<ProgressToken>,
    /// The least severe log level that the client wants; none for no logs.
    pub(super) level: Option<Level>,
    /// The logger name of log notifications.
    pub(super) logger: &'static str,
    pub(super) last: f64,
}

impl CallNotifier {
    pub(super) fn wants_anything(&self) -> bool {
        self.token.is_some() || self.level.is_some()
    }

    pub(super) async fn step(&mut self, step: ProgressStep) {
        self.log(INFO, &step.what).await;
        if let Some(token) = &self.token {
            let progress = step.progress(&mut self.last, token.clone());
            // A failed notification does not fail the call.
            let _ = self.peer.notify_progress(progress).await;
        }
    }

    #[expect(deprecated, reason = "MCP deprecates logging, but clients still use it")]
    pub(super) async fn log(&self, level: Level, what: &str) {
        if self.level.is_some_and(|least| wants(least, level)) {
            let text = Value::String(what.to_owned());
            let message = rmcp::model::LoggingMessageNotificationParam::new(level, text);
            let message = message.with_logger(self.logger);
            let _ = self.peer.notify_logging_message(message).await;
        }
    }
}

#[expect(deprecated, reason = "MCP deprecates logging, but clients still use it")]
pub(super) const INFO: Level = Level::Info;
#[expect(deprecated, reason = "MCP deprecates logging, but clients still use it")]
pub(super) const WARNING: Level = Level::Warning;

/// Whether a client that wants levels from `least` on wants this one.
pub(super) fn wants(least: Level, level: Level) -> bool {
    // The enum lists levels from the least severe to the most severe.
    level as u8 >= least as u8
}

/// A progress step, on its way to the client.
pub(super) struct ProgressStep {
    what: String,
    part: Option<Part>,
}

impl ProgressStep {
    /// As a notification: MCP requires a number that grows with every message.
    fn progress(self, last: &mut f64, token: ProgressToken) -> ProgressNotificationParam {
        #[expect(clippy::cast_precision_loss, reason = "display needs no 53 bits of precision")]
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

pub(super) struct ProgressSender(pub(super) mpsc::UnboundedSender<ProgressStep>);

impl Watch for ProgressSender {
    fn step(&self, what: &str, part: Option<Part>) {
        let _ = self.0.send(ProgressStep { what: what.to_owned(), part });
    }
}

/// Sends requests to the client of a call, from the thread of that call.
pub(super) struct CallClient {
    peer: Peer<RoleServer>,
    ended: CancellationToken,
    runtime: Handle,
    /// The capabilities that the client declared.
    can: ClientCapabilities,
    /// Whether the protocol revision forbids requests from the server.
    newer: bool,
    missing: OnceLock<ClientCapabilities>,
}

impl CallClient {
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

    /// The capability that was needed and is missing, for the error of the protocol.
    pub(super) fn missing(&self) -> Option<ClientCapabilities> {
        self.missing.get().filter(|_| self.newer).cloned()
    }
}

impl McpClient for CallClient {
    fn ask(&self, method: &str, params: Value) -> Result<Value, String> {
        if let Some(missing) = missing(&self.can, method) {
            let _ = self.missing.set(missing);
            return Err(format!("this client does not support `{method}`"));
        }
        if self.newer {
            return Err("this client accepts no requests during a call".to_owned());
        }
        let request = CustomRequest::new(method, Some(params));
        let asking = self.peer.send_request(ServerRequest::CustomRequest(request));
        let said = self.runtime.block_on(self.ended.run_until_cancelled(asking));
        let said = said.ok_or("the call was cancelled")?.map_err(|error| error.to_string())?;
        serde_json::to_value(said).map_err(|error| error.to_string())
    }
}

/// The capability that a method needs, if the client has not declared it.
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

pub(super) fn result(answer: ToolResult) -> CallToolResult {
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
    fn levels_are_wanted_from_the_requested_one() {
        assert!(wants(INFO, INFO) && wants(INFO, WARNING));
        assert!(!wants(WARNING, INFO));
    }

    #[test]
    fn only_declared_capabilities_are_used() {
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
            let step = ProgressStep { what: String::new(), part };
            seen.push(step.progress(&mut last, token.clone()).progress);
        }
        assert!(seen.is_sorted_by(|before, after| before < after), "{seen:?}");
    }
}
