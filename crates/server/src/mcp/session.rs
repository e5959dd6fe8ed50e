//! What one client has said it wants to hear of, until it goes.

use crate::content::{Body, Content};
use crate::dialect::{Dialect, Who};
use crate::room::{Permit, Room, Seat};
use rmcp::model::{ErrorData, ResourceUpdatedNotificationParam};
use rmcp::service::Peer;
use rmcp::{RoleServer, model};
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

#[expect(deprecated, reason = "MCP gives logging up, its clients have not yet")]
pub(super) type Level = model::LoggingLevel;

/// What one client wants to hear of.
#[derive(Default)]
pub(super) struct Session {
    /// From which level on it wants to be told what happens; none until it says so.
    level: Mutex<Option<Level>>,
    /// The resources that it watches, and how to end that.
    watched: Mutex<HashMap<String, CancellationToken>>,
}

/// Resources that one client may watch: more than there are, for every dialect.
const MOST_WATCHED: usize = 64;

impl Session {
    pub(super) fn level(&self) -> Option<Level> {
        *self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_level(&self, level: Level) {
        *self.level.lock().unwrap_or_else(PoisonError::into_inner) = Some(level);
    }

    /// Tells the client of every change of a resource from now on.
    pub(super) async fn watch(
        &self,
        watched: Watched,
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
                let text = format!("no more than {MOST_WATCHED} resources can be watched");
                return Err(ErrorData::invalid_params(text, None));
            }
            all.insert(watched.uri.clone(), end.clone());
        }
        tokio::spawn(async move {
            let telling = async move {
                let mut last = first;
                loop {
                    last = watched.changed(last).await;
                    let update = ResourceUpdatedNotificationParam::new(&watched.uri);
                    if peer.notify_resource_updated(update).await.is_err() {
                        return;
                    }
                }
            };
            end.run_until_cancelled_owned(telling).await;
        });
        Ok(())
    }

    /// Ends that. Who watches nothing there has what was asked for, too.
    pub(super) fn unwatch(&self, uri: &str) {
        let mut all = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(end) = all.remove(uri) {
            end.cancel();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for end in self.watched.lock().unwrap_or_else(PoisonError::into_inner).values() {
            end.cancel();
        }
    }
}

/// A resource that somebody watches.
pub(super) struct Watched {
    pub(super) dialect: Arc<dyn Dialect>,
    pub(super) who: Who,
    pub(super) uri: String,
    pub(super) room: Room,
    /// Its part of what may be watched.
    pub(super) _permit: Permit,
}

/// How often a resource is looked at. What changes it may be another program, which tells nobody.
const EVERY: Duration = Duration::from_secs(1);

impl Watched {
    /// Waits until it is another than it was, and gives what it is then.
    pub(super) async fn changed(&self, last: u64) -> u64 {
        loop {
            tokio::time::sleep(EVERY).await;
            // What cannot be read now is looked at again.
            match self.seen().await {
                Ok(now) if now != last => return now,
                _ => {}
            }
        }
    }

    /// A number for what it holds, which is another once that is.
    pub(super) async fn seen(&self) -> Result<u64, ErrorData> {
        let seat = self.room.take(&self.who);
        let seat = seat.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        let read =
            read(Arc::clone(&self.dialect), self.who.clone(), self.uri.clone(), seat).await?;
        let mut hasher = DefaultHasher::new();
        match &read.body {
            Body::Text(text) => text.hash(&mut hasher),
            Body::Bytes(bytes) => bytes.hash(&mut hasher),
        }
        Ok(hasher.finish())
    }
}

/// Reads a resource.
pub(super) async fn read(
    dialect: Arc<dyn Dialect>,
    who: Who,
    uri: String,
    seat: Seat,
) -> Result<Content, ErrorData> {
    let text = format!("Resource {uri} not found");
    let missing = ErrorData::invalid_params(text, Some(serde_json::json!({"uri": uri})));
    let read = tokio::task::spawn_blocking(move || {
        let _seat = seat;
        dialect.read(&uri, &who)
    });
    let read = read.await;
    let internal =
        |error: &dyn std::fmt::Display| ErrorData::internal_error(error.to_string(), None);
    match read.map_err(|error| internal(&error))? {
        Some(read) => read.map_err(|error| internal(&error)),
        None => Err(missing),
    }
}
