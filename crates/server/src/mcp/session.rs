//! The state of one MCP session: log level and resource subscriptions.

use crate::content::{ResourceBody, ResourceContent};
use crate::dialect::{Caller, Dialect};
use crate::quota::{CallLimiter, CallPermit, Permit};
use rmcp::model::{ErrorData, ResourceUpdatedNotificationParam};
use rmcp::service::Peer;
use rmcp::{RoleServer, model};
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

#[expect(deprecated, reason = "MCP deprecates logging, but clients still use it")]
pub(super) type Level = model::LoggingLevel;

/// Log level and subscriptions of one client.
#[derive(Default)]
pub(super) struct ClientSession {
    /// The least severe log level that the client wants; none until it sets one.
    level: Mutex<Option<Level>>,
    /// Subscriptions by URI, with the tokens that end them.
    watched: Mutex<HashMap<String, CancellationToken>>,
}

/// Most subscriptions of one client: more than any dialect has resources.
const MOST_WATCHED: usize = 64;

impl ClientSession {
    pub(super) fn level(&self) -> Option<Level> {
        *self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_level(&self, level: Level) {
        *self.level.lock().unwrap_or_else(PoisonError::into_inner) = Some(level);
    }

    /// Notifies the client of every change of a resource from now on.
    pub(super) async fn watch(
        &self,
        watched: Subscription,
        peer: Peer<RoleServer>,
    ) -> Result<(), ErrorData> {
        let first = watched.seen().await?;
        let end = CancellationToken::new();
        {
            let mut all = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
            if all.contains_key(&watched.uri) {
                return Ok(());
            }
            if all.len() >= MOST_WATCHED {
                let text = format!("a client can subscribe to {MOST_WATCHED} resources at most");
                return Err(ErrorData::invalid_params(text, None));
            }
            all.insert(watched.uri.clone(), end.clone());
        }
        tokio::spawn(async move {
            let notifying = async move {
                let mut last = first;
                loop {
                    last = watched.changed(last).await;
                    let update = ResourceUpdatedNotificationParam::new(&watched.uri);
                    if peer.notify_resource_updated(update).await.is_err() {
                        return;
                    }
                }
            };
            end.run_until_cancelled_owned(notifying).await;
        });
        Ok(())
    }

    /// Ends a subscription. It is no error if there is none.
    pub(super) fn unwatch(&self, uri: &str) {
        let mut all = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(end) = all.remove(uri) {
            end.cancel();
        }
    }
}

impl Drop for ClientSession {
    fn drop(&mut self) {
        for end in self.watched.lock().unwrap_or_else(PoisonError::into_inner).values() {
            end.cancel();
        }
    }
}

/// A resource with a subscription.
pub(super) struct Subscription {
    pub(super) dialect: Arc<dyn Dialect>,
    pub(super) caller: Caller,
    pub(super) uri: String,
    pub(super) limiter: CallLimiter,
    /// The subscription's share of the quota.
    pub(super) _permit: Permit,
}

/// How often a resource is read. Other programs can change it without notice.
const EVERY: Duration = Duration::from_secs(1);

impl Subscription {
    /// Waits until the content differs from `last`, and returns the new hash.
    pub(super) async fn changed(&self, last: u64) -> u64 {
        loop {
            tokio::time::sleep(EVERY).await;
            // A resource that cannot be read now is tried again.
            match self.seen().await {
                Ok(now) if now != last => return now,
                _ => {}
            }
        }
    }

    /// A hash of the current content.
    pub(super) async fn seen(&self) -> Result<u64, ErrorData> {
        let permit = self.limiter.acquire(&self.caller);
        let permit = permit.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        let read =
            read(Arc::clone(&self.dialect), self.caller.clone(), self.uri.clone(), permit).await?;
        let mut hasher = DefaultHasher::new();
        match &read.body {
            ResourceBody::Text(text) => text.hash(&mut hasher),
            ResourceBody::Bytes(bytes) => bytes.hash(&mut hasher),
        }
        Ok(hasher.finish())
    }
}

/// Reads a resource of a dialect.
pub(super) async fn read(
    dialect: Arc<dyn Dialect>,
    caller: Caller,
    uri: String,
    permit: CallPermit,
) -> Result<ResourceContent, ErrorData> {
    let text = format!("Resource {uri} not found");
    let missing = ErrorData::invalid_params(text, Some(serde_json::json!({"uri": uri})));
    let read = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        dialect.read(&uri, &caller)
    });
    let read = read.await;
    let internal =
        |error: &dyn std::fmt::Display| ErrorData::internal_error(error.to_string(), None);
    match read.map_err(|error| internal(&error))? {
        Some(read) => read.map_err(|error| internal(&error)),
        None => Err(missing),
    }
}
