//! What the HTTP listener serves, to whom.

use crate::asking::Asking;
use crate::dialect::{Dialect, Who};
use crate::dialects::{Named, Server, World};
use crate::keys::{Keys, Refused};
use crate::namespace::Reaches;
use crate::room::Room;
use crate::scoped::Scoped;
use crate::selected::Selected;
use crate::sessions::Sessions;
use msb_api::Api;
use msb_spec::{Asker, Surface};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio_util::sync::CancellationToken;

/// How one gets in.
#[derive(Debug)]
pub enum Door {
    /// Without a key: everything is for everybody who can connect.
    Open,
    /// With a key of ours.
    Keys(Keys),
}

/// Everything that is served.
pub struct Site {
    world: World,
    door: Door,
    tools: Vec<String>,
    /// Knows namespaces by itself, and its interpreters are for all who reach a sandbox.
    server: Arc<Server>,
    /// A dialect has state, and each namespace its own.
    dialects: Mutex<HashMap<(Named, Reaches), Arc<dyn Dialect>>>,
    sessions: Mutex<Sessions>,
    /// Ends a session of MCP by its id, where there is such a one.
    enders: Mutex<Vec<SessionEnder>>,
    stopping: CancellationToken,
    room: Room,
}

/// Ends a session by its id.
type SessionEnder = Box<dyn Fn(&str) + Send + Sync>;

impl Site {
    /// A site over these sandboxes.
    pub fn new(world: World, door: Door) -> Self {
        Self {
            server: Arc::new(Server::new(world.clone())),
            world,
            door,
            tools: Vec::new(),
            dialects: Mutex::default(),
            sessions: Mutex::default(),
            enders: Mutex::default(),
            stopping: CancellationToken::new(),
            room: Room::default(),
        }
    }

    /// Serves a dialect in the place of another.
    #[cfg(feature = "fixture")]
    #[must_use]
    pub(crate) fn with_dialect(self, named: Named, dialect: Arc<dyn Dialect>) -> Self {
        let mut dialects = self.dialects.lock().unwrap_or_else(PoisonError::into_inner);
        dialects.insert((named, Reaches::All), dialect);
        drop(dialects);
        self
    }

    /// Shows only the tools that fit one of these patterns; all if there are none.
    #[must_use]
    pub fn with_tools(mut self, patterns: Vec<String>) -> Self {
        self.tools = patterns;
        self
    }

    /// The dialect of the microsandbox server, which its other API works on, too.
    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// For the calls of everybody.
    pub(crate) fn room(&self) -> &Room {
        &self.room
    }

    pub(crate) fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Who shows this key. The word says why nobody does.
    pub(crate) fn caller(&self, token: Option<&str>) -> Result<Who, Refused> {
        let keys = match &self.door {
            Door::Open => return Ok(Who::default()),
            Door::Keys(keys) => keys,
        };
        let key = keys.verify(token.unwrap_or_default())?;
        Ok(Who { key: Some(key.id), reaches: key.reaches })
    }

    /// The dialect for whoever reaches this far.
    pub(crate) fn dialect(&self, named: Named, reaches: &Reaches) -> Arc<dyn Dialect> {
        let mut dialects = self.dialects.lock().unwrap_or_else(PoisonError::into_inner);
        let made = dialects.entry((named, reaches.clone())).or_insert_with(|| {
            let mut world = self.world.clone();
            if let Reaches::One(namespace) = reaches {
                world.paths = Arc::new(world.paths.of_namespace(namespace));
                world.sandbox_mcp = world.sandbox_mcp.of_namespace(namespace);
                let scoped = Scoped::new(world.api, namespace.clone());
                world.api = Arc::new(scoped.with_host_paths(Arc::clone(&world.paths)));
            }
            let dialect: Arc<dyn Dialect> = match named {
                Named::Server => Arc::new(Asking::new(Arc::clone(&self.server) as _, named)),
                _ => named.dialect(world),
            };
            match Selected::new(Arc::clone(&dialect), &self.tools) {
                Ok(selected) if !self.tools.is_empty() => Arc::new(selected),
                _ => dialect,
            }
        });
        Arc::clone(made)
    }

    /// The sandboxes that somebody reaches, without what of the host is not allowed.
    pub(crate) fn guarded(&self, caller: &Who) -> Arc<dyn Api> {
        let api = Arc::clone(&self.world.api);
        let paths = &self.world.paths;
        let scoped = match &caller.reaches {
            Reaches::All => Scoped::all(api).with_host_paths(Arc::clone(paths)),
            Reaches::One(namespace) => Scoped::new(api, namespace.clone())
                .with_host_paths(Arc::new(paths.of_namespace(namespace))),
        };
        Arc::new(scoped.asked_by(caller.by(Asker::new(Surface::Rest))))
    }

    /// The dialect as it introduces itself.
    pub(crate) fn plain(&self, named: Named) -> Arc<dyn Dialect> {
        self.dialect(named, &Reaches::All)
    }

    /// Has this called for every session that ends because its key has too many.
    pub(crate) fn when_session_ends(&self, ender: impl Fn(&str) + Send + Sync + 'static) {
        let mut enders = self.enders.lock().unwrap_or_else(PoisonError::into_inner);
        enders.push(Box::new(ender));
    }

    /// Remembers whose session this is.
    pub(crate) fn begin_session(&self, id: &str, who: &Who) {
        let ended = self.sessions().begin(id, who);
        let enders = self.enders.lock().unwrap_or_else(PoisonError::into_inner);
        for id in &ended {
            enders.iter().for_each(|end| end(id));
        }
    }

    /// Forgets a session.
    pub(crate) fn end_session(&self, id: &str) {
        self.sessions().end(id);
    }

    /// Whether this is a session of somebody else, or of nobody.
    pub(crate) fn is_foreign(&self, id: &str, who: &Who) -> bool {
        !self.sessions().is_of(id, who)
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site").field("door", &self.door).finish_non_exhaustive()
    }
}
