//! One call of a tool on its way through MCP: what it tells meanwhile, and what it asks.

use super::session::Level;
use crate::dialect::{Answer, Client};
use msb_api::{Part, Watch};
use rmcp::RoleServer;
use rmcp::model::{
    CallToolResult, CustomRequest, ProgressNotificationParam, ProgressToken, ServerRequest,
};
use rmcp::service::Peer;
use serde_json::Value;
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
    pub(super) peer: Peer<RoleServer>,
    pub(super) ended: CancellationToken,
    pub(super) runtime: Handle,
}

impl Client for Waiting {
    fn ask(&self, method: &str, params: Value) -> Result<Value, String> {
        let request = CustomRequest::new(method, Some(params));
        let asking = self.peer.send_request(ServerRequest::CustomRequest(request));
        let said = self.runtime.block_on(self.ended.run_until_cancelled(asking));
        let said = said.ok_or("the call was cancelled")?.map_err(|error| error.to_string())?;
        serde_json::to_value(said).map_err(|error| error.to_string())
    }
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
