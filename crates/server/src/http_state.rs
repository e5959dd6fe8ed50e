//! The state of the HTTP listener: dialects by scope, authentication, sessions and limits.

use crate::dialect::{Caller, Dialect};
use crate::dialects::{DialectName, Server, ServerConfig};
use crate::http::{RequestLog, tls};
use crate::keys::{KeyError, Keys};
use crate::mcp_sessions::McpSessions;
use crate::namespace::Scope;
use crate::quota::CallLimiter;
use crate::scoped_api::ScopedApi;
use crate::tool_filter::ToolFilter;
use msb_api::Api;
use msb_spec::{CallOrigin, Result, Surface};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// How requests are authenticated.
#[derive(Debug)]
pub enum AuthMode {
    /// No authentication: every client that can connect may call everything.
    Open,
    /// Each request needs an API key.
    Keys(Keys),
}

/// Everything that the handlers of the HTTP listener share.
pub struct HttpState {
    config: ServerConfig,
    auth: AuthMode,
    tools: Vec<String>,
    /// Handles namespaces itself; its interpreters are shared by all callers of a sandbox.
    server: Arc<Server>,
    /// Dialects have state, so each scope has its own instances.
    dialects: Mutex<HashMap<(DialectName, Scope), Arc<dyn Dialect>>>,
    sessions: Mutex<McpSessions>,
    /// Called with the id of an MCP session that has to end.
    enders: Mutex<Vec<SessionEnder>>,
    stopping: CancellationToken,
    limiter: CallLimiter,
    /// Host names that clients may use besides those of loopback.
    allowed_hosts: Vec<String>,
    tls: Option<TlsAcceptor>,
    request_log: Option<RequestLog>,
}

/// Ends an MCP session by its id, if there is one.
type SessionEnder = Box<dyn Fn(&str) + Send + Sync>;

impl HttpState {
    /// State for a listener that serves these sandboxes.
    pub fn new(config: ServerConfig, auth: AuthMode) -> Self {
        Self {
            server: Arc::new(Server::new(config.clone())),
            config,
            auth,
            tools: Vec::new(),
            dialects: Mutex::default(),
            sessions: Mutex::default(),
            enders: Mutex::default(),
            stopping: CancellationToken::new(),
            limiter: CallLimiter::default(),
            allowed_hosts: Vec::new(),
            tls: None,
            request_log: None,
        }
    }

    /// Accepts requests for these host names too, such as that of a reverse proxy.
    #[must_use]
    pub fn with_hosts(mut self, names: Vec<String>) -> Self {
        self.allowed_hosts = names;
        self
    }

    /// Serves TLS with this certificate chain and key, both PEM.
    pub fn with_tls(mut self, chain: &[u8], key: &[u8]) -> Result<Self> {
        self.tls = Some(tls::acceptor(chain, key)?);
        Ok(self)
    }

    pub(crate) fn allowed_hosts(&self) -> &[String] {
        &self.allowed_hosts
    }

    pub(crate) fn tls(&self) -> Option<&TlsAcceptor> {
        self.tls.as_ref()
    }

    /// Logs each request when its response begins; `None`, the default, logs nothing.
    #[must_use]
    pub fn with_request_log(mut self, log: Option<RequestLog>) -> Self {
        self.request_log = log;
        self
    }

    pub(crate) fn request_log(&self) -> Option<&RequestLog> {
        self.request_log.as_ref()
    }

    /// Replaces a dialect by another implementation.
    #[cfg(feature = "fixture")]
    #[must_use]
    pub(crate) fn with_dialect(self, name: DialectName, dialect: Arc<dyn Dialect>) -> Self {
        let mut dialects = self.dialects.lock().unwrap_or_else(PoisonError::into_inner);
        dialects.insert((name, Scope::All), dialect);
        drop(dialects);
        self
    }

    /// Lists only the tools that match one of these patterns; all if there are none.
    #[must_use]
    pub fn with_tools(mut self, patterns: Vec<String>) -> Self {
        self.tools = patterns;
        self
    }

    /// The dialect of the microsandbox server, which also serves its RPC API.
    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// The limits of calls, shared by all callers.
    pub(crate) fn limiter(&self) -> &CallLimiter {
        &self.limiter
    }

    pub(crate) fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Authenticates the bearer token of a request.
    pub(crate) fn caller(&self, token: Option<&str>) -> Result<Caller, KeyError> {
        let keys = match &self.auth {
            AuthMode::Open => return Ok(Caller::default()),
            AuthMode::Keys(keys) => keys,
        };
        let key = keys.verify(token.unwrap_or_default())?;
        Ok(Caller { key: Some(key.id), scope: key.scope })
    }

    /// The dialect for callers of this scope; it is created at the first use.
    pub(crate) fn dialect(&self, name: DialectName, scope: &Scope) -> Arc<dyn Dialect> {
        let mut dialects = self.dialects.lock().unwrap_or_else(PoisonError::into_inner);
        let dialect = dialects.entry((name, scope.clone())).or_insert_with(|| {
            let mut config = self.config.clone();
            if let Scope::One(namespace) = scope {
                config.paths = Arc::new(config.paths.of_namespace(namespace));
                config.sandbox_mcp = config.sandbox_mcp.of_namespace(namespace);
                let scoped = ScopedApi::new(config.api, namespace.clone());
                config.api = Arc::new(scoped.with_host_paths(Arc::clone(&config.paths)));
            }
            let dialect: Arc<dyn Dialect> = match name {
                DialectName::Server => Arc::clone(&self.server) as Arc<dyn Dialect>,
                _ => name.dialect(config),
            };
            match ToolFilter::new(Arc::clone(&dialect), &self.tools) {
                Ok(selected) if !self.tools.is_empty() => Arc::new(selected),
                _ => dialect,
            }
        });
        Arc::clone(dialect)
    }

    /// The Api for the REST handlers: the caller's namespaces, and only the allowed host paths.
    pub(crate) fn rest_api(&self, caller: &Caller) -> Arc<dyn Api> {
        let origin = caller.origin(CallOrigin::new(Surface::Rest));
        let api = self.config.api.with_origin(origin);
        let paths = &self.config.paths;
        Arc::new(match &caller.scope {
            Scope::All => ScopedApi::all(api).with_host_paths(Arc::clone(paths)),
            Scope::One(namespace) => ScopedApi::new(api, namespace.clone())
                .with_host_paths(Arc::new(paths.of_namespace(namespace))),
        })
    }

    /// The dialect with all namespaces, for its name and its instructions.
    pub(crate) fn unscoped_dialect(&self, name: DialectName) -> Arc<dyn Dialect> {
        self.dialect(name, &Scope::All)
    }

    /// Registers a function that ends sessions which are evicted because their key has too many.
    pub(crate) fn on_session_evicted(&self, ender: impl Fn(&str) + Send + Sync + 'static) {
        let mut enders = self.enders.lock().unwrap_or_else(PoisonError::into_inner);
        enders.push(Box::new(ender));
    }

    /// Records which caller owns this session, and ends those that are evicted for it.
    pub(crate) fn open_session(&self, id: &str, caller: &Caller) {
        let ended = self.sessions().begin(id, caller);
        let enders = self.enders.lock().unwrap_or_else(PoisonError::into_inner);
        for id in &ended {
            enders.iter().for_each(|end| end(id));
        }
    }

    /// Removes a session from the table.
    pub(crate) fn close_session(&self, id: &str) {
        self.sessions().end(id);
    }

    /// Whether this session belongs to another caller, or does not exist.
    pub(crate) fn is_unknown_session(&self, id: &str, caller: &Caller) -> bool {
        !self.sessions().is_of(id, caller)
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, McpSessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for HttpState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site").field("door", &self.auth).finish_non_exhaustive()
    }
}
