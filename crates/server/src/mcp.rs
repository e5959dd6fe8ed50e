//! The MCP protocol, through rmcp: only this module uses types of that library.

mod call;
mod content;
mod session;
#[cfg(test)]
mod tests;

use crate::cancel::Cancel;
use crate::dialect::{Caller, Dialect, McpClient, ToolCall};
use crate::dialects::DialectName;
use crate::http_state::HttpState;
use crate::quota::{CallLimiter, CallPermit};
use call::{CallClient, CallNotifier, ProgressSender, WARNING, result};
use content::{block, contents, listed};
use msb_api::Watch;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult, CompletionInfo,
    ErrorData, Extensions, GetPromptRequestParams, GetPromptResponse, GetPromptResult,
    Implementation, JsonObject, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, Prompt, PromptArgument,
    PromptMessage, ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, Reference,
    Resource, ResourceTemplate, Role, ServerCapabilities, ServerConfig, SubscribeRequestParams,
    SubscriptionFilter, UnsubscribeRequestParams,
};
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::session::{SessionId, SessionManager};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{RoleServer, ServerHandler, ServiceExt};
use session::{ClientSession, Subscription};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Serves one dialect on stdin and stdout until the client closes them.
pub async fn serve_stdio(dialect: Arc<dyn Dialect>) -> msb_spec::Result<()> {
    let service = DialectService {
        dialect,
        state: None,
        limiter: CallLimiter::default(),
        session: Some(Arc::default()),
    };
    let failed = |error: &dyn std::fmt::Display| {
        let text = "the MCP handshake failed";
        msb_spec::Error::new(msb_spec::Kind::Protocol, text).cause(error)
    };
    let running = match service.serve(rmcp::transport::io::stdio_pipes()).await {
        Ok(running) => running,
        // A client that closes stdin at once only checks that the server starts.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(failed(&error)),
    };
    running.waiting().await.map(drop).map_err(|error| failed(&error))
}

/// One dialect over HTTP. Without `sessions`, requests are independent and answered in plain JSON,
/// as clients of the old server expect.
pub(crate) fn over_http(
    state: &Arc<HttpState>,
    dialect_name: DialectName,
    sessions: bool,
) -> StreamableHttpService<DialectService, LocalSessionManager> {
    let mut settings = StreamableHttpServerConfig::default()
        // The middleware of the listener checks the `Host` and `Origin` headers.
        .disable_allowed_hosts()
        .with_legacy_session_mode(sessions)
        .with_json_response(!sessions)
        .with_max_request_body_bytes(LARGEST_BODY);
    settings.cancellation_token = state.stopping().clone();
    let manager = Arc::new(LocalSessionManager::default());
    let (weak, runtime) = (Arc::downgrade(&manager), tokio::runtime::Handle::current());
    state.on_session_evicted(move |id| {
        let (manager, id) = (weak.clone(), SessionId::from(id));
        runtime.spawn(async move {
            if let Some(manager) = manager.upgrade() {
                msb_log::debug_on_failure!(
                    manager.close_session(&id).await,
                    "cannot close an MCP session"
                );
            }
        });
    });
    let (state, dialect) = (Arc::clone(state), state.unscoped_dialect(dialect_name));
    let begin = move || {
        let session = sessions.then(Arc::default);
        let limiter = state.limiter().clone();
        let state = Some((state.clone(), dialect_name));
        Ok(DialectService { dialect: dialect.clone(), state, limiter, session })
    };
    StreamableHttpService::new(begin, manager, settings)
}

/// Largest body in bytes. Files are sent as arguments.
const LARGEST_BODY: usize = 32 << 20;

/// One dialect as a service of rmcp.
#[derive(Clone)]
pub(crate) struct DialectService {
    /// The dialect that answers where callers do not differ: its name, tools and lists.
    dialect: Arc<dyn Dialect>,
    /// Gives each scope its own dialect over HTTP; none on stdio.
    state: Option<(Arc<HttpState>, DialectName)>,
    limiter: CallLimiter,
    /// Log level and subscriptions of the client; none without sessions.
    session: Option<Arc<ClientSession>>,
}

impl DialectService {
    /// The dialect and the identity of the caller of a request.
    fn for_caller(&self, extensions: &Extensions) -> Result<(Arc<dyn Dialect>, Caller), ErrorData> {
        let Some((state, dialect_name)) = &self.state else {
            return Ok((Arc::clone(&self.dialect), Caller::default()));
        };
        let parts = extensions.get::<axum::http::request::Parts>();
        let caller = parts.and_then(|parts| parts.extensions.get::<Caller>()).ok_or_else(|| {
            ErrorData::internal_error("the request has no authenticated caller", None)
        })?;
        Ok((state.dialect(*dialect_name, &caller.scope), caller.clone()))
    }

    fn subscription(
        &self,
        extensions: &Extensions,
        uri: String,
    ) -> Result<Subscription, ErrorData> {
        let (dialect, caller) = self.for_caller(extensions)?;
        let permit = self.limiter.subscription_permit(&caller).map_err(|error| busy(&error))?;
        Ok(Subscription { dialect, caller, uri, limiter: self.limiter.clone(), _permit: permit })
    }

    /// A permit for a request other than a tool call.
    fn permit(&self, caller: &Caller) -> Result<CallPermit, ErrorData> {
        self.limiter.acquire(caller).map_err(|error| busy(&error))
    }

    /// The session of the client; fails where there are none.
    fn session(&self, method: &str) -> Result<&ClientSession, ErrorData> {
        self.session.as_deref().ok_or_else(|| unknown(method))
    }

    /// Fails for methods of capabilities that the dialect does not declare.
    fn has(&self, method: &str) -> Result<(), ErrorData> {
        let about = self.dialect.about();
        let has = match method.split_once('/') {
            Some(("resources", _)) => about.resources,
            Some(("prompts" | "completion", _)) => about.prompts,
            _ => true,
        };
        if has { Ok(()) } else { Err(unknown(method)) }
    }
}

fn busy(error: &msb_spec::Error) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

fn unknown(method: &str) -> ErrorData {
    ErrorData::new(rmcp::model::ErrorCode::METHOD_NOT_FOUND, method.to_owned(), None)
}

impl ServerHandler for DialectService {
    fn get_info(&self) -> ServerConfig {
        let about = self.dialect.about();
        let mut capabilities = ServerCapabilities::builder().enable_tools().build();
        capabilities.resources = about.resources.then(Default::default);
        capabilities.prompts = about.prompts.then(Default::default);
        capabilities.completions = about.prompts.then(JsonObject::new);
        if self.session.is_some() {
            capabilities.logging = Some(JsonObject::new());
            if let Some(resources) = &mut capabilities.resources {
                resources.subscribe = Some(true);
            }
        }
        let mut info = ServerConfig::new(capabilities);
        info.server_info = Implementation::new(about.name, env!("CARGO_PKG_VERSION"));
        info.server_info.title = about.title.map(str::to_owned);
        info.instructions = about.instructions.map(str::to_owned);
        info
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = self.dialect.tools().iter().map(listed).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let (dialect, caller) = self.for_caller(&context.extensions)?;
        let (sender, mut steps) = mpsc::unbounded_channel();
        let level = self.session.as_deref().and_then(ClientSession::level);
        let mut notifier = CallNotifier {
            peer: context.peer.clone(),
            token: context.meta.get_progress_token(),
            level: context.meta.log_level().or(level),
            logger: self.dialect.about().name,
            last: 0.0,
        };
        let watch: Arc<dyn Watch> = match notifier.wants_anything() {
            true => Arc::new(ProgressSender(sender)),
            false => Arc::new(msb_api::NoProgress),
        };
        let client = Arc::new(CallClient::new(&context));
        let cancel = Cancel::default();
        let call = ToolCall {
            tool: request.name.into_owned(),
            arguments: request.arguments.unwrap_or_default(),
            caller: caller.clone(),
            cancel: cancel.clone(),
            watch,
            client: Arc::clone(&client) as Arc<dyn McpClient>,
        };
        let permit = match self.limiter.acquire(&caller) {
            Ok(permit) => permit,
            Err(error) => return Ok(result(dialect.refused(&error)).into()),
        };
        let tool = call.tool.clone();
        let mut answer = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            dialect.call(&call)
        });
        loop {
            tokio::select! {
                // Progress before the result: the client gets the last steps first.
                biased;
                () = context.ct.cancelled(), if !cancel.is_cancelled() => cancel.cancel(),
                Some(step) = steps.recv() => notifier.step(step).await,
                answer = &mut answer => {
                    let answer = answer.map_err(|error| {
                        ErrorData::internal_error(format!("the tool panicked: {error}"), None)
                    })?;
                    if let Some(missing) = client.missing() {
                        return Err(ErrorData::missing_required_client_capability(missing));
                    }
                    if answer.failed {
                        notifier.log(WARNING, &format!("`{tool}` failed")).await;
                    }
                    return Ok(result(answer).into());
                }
            }
        }
    }

    #[expect(deprecated, reason = "MCP deprecates logging, but clients still use it")]
    async fn set_level(
        &self,
        request: rmcp::model::SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.session("logging/setLevel")?.set_level(request.level);
        Ok(())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        self.has("completion/complete")?;
        let Reference::Prompt(prompt) = request.r#ref else {
            return Ok(CompleteResult::default());
        };
        let (dialect, caller) = self.for_caller(&context.extensions)?;
        let argument = request.argument;
        let permit = self.permit(&caller)?;
        let fitting = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            dialect.complete(&prompt.name, &argument.name, &argument.value, &caller)
        });
        let mut values = fitting.await.map_err(|error| {
            ErrorData::internal_error(format!("the completion panicked: {error}"), None)
        })?;
        let (all, most) = (values.len(), CompletionInfo::MAX_VALUES);
        values.truncate(most);
        let internal = |text| ErrorData::internal_error(text, None);
        let total = u32::try_from(all).ok();
        let completion =
            CompletionInfo::with_pagination(values, total, all > most).map_err(internal)?;
        Ok(CompleteResult::new(completion))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        self.has("resources/list")?;
        let resources = self.dialect.resources().into_iter().map(|resource| {
            let mut listed = Resource::new(resource.uri, resource.name);
            listed.title = resource.title.map(str::to_owned);
            listed.description = Some(resource.description.to_owned());
            listed.mime_type = Some(resource.mime_type.to_owned());
            listed
        });
        Ok(ListResourcesResult::with_all_items(resources.collect()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        self.has("resources/read")?;
        let (dialect, caller) = self.for_caller(&context.extensions)?;
        let permit = self.permit(&caller)?;
        let read = session::read(dialect, caller, request.uri.clone(), permit).await?;
        Ok(ReadResourceResult::new(vec![contents(request.uri, read)]).into())
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        self.has("resources/templates/list")?;
        let templates = self.dialect.templates().into_iter().map(|template| {
            ResourceTemplate::new(template.uri, template.name)
                .with_description(template.description)
                .with_mime_type(template.mime_type)
        });
        Ok(ListResourceTemplatesResult::with_all_items(templates.collect()))
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.has("resources/subscribe")?;
        let subscription = self.subscription(&context.extensions, request.uri)?;
        self.session("resources/subscribe")?.watch(subscription, context.peer.clone()).await
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.session("resources/unsubscribe")?.unwatch(&request.uri);
        Ok(())
    }

    /// Newer clients subscribe by one long-lived request for several resources.
    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        self.session.as_ref()?;
        let known = |uri: &String| self.dialect.resources().iter().any(|it| it.uri == uri);
        let mut accepted = SubscriptionFilter::new();
        let requested_uris = requested.resource_subscriptions.as_ref();
        accepted.resource_subscriptions =
            requested_uris.map(|uris| uris.iter().filter(|uri| known(uri)).cloned().collect());
        Some(accepted)
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut notifying = tokio::task::JoinSet::new();
        let extensions = &context.request_context().extensions;
        for uri in context.accepted().resource_subscriptions.iter().flatten() {
            let subscription = self.subscription(extensions, uri.clone())?;
            let (mut last, sink) = (subscription.seen().await?, context.sink().clone());
            notifying.spawn(async move {
                loop {
                    last = subscription.changed(last).await;
                    if sink.notify_resource_updated(&subscription.uri).await.is_err() {
                        return;
                    }
                }
            });
        }
        context.cancelled().await;
        Ok(())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        self.has("prompts/list")?;
        let prompts = self.dialect.prompts().into_iter().map(|prompt| {
            let arguments = prompt.arguments.iter().map(|(name, description, required)| {
                PromptArgument::new(*name).with_description(*description).with_required(*required)
            });
            Prompt::new(prompt.name, Some(prompt.description), Some(arguments.collect()))
        });
        Ok(ListPromptsResult::with_all_items(prompts.collect()))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        self.has("prompts/get")?;
        let arguments = request.arguments.unwrap_or_default();
        let said = match self.dialect.prompt(&request.name, &arguments) {
            Some(said) => said.map_err(|error| ErrorData::invalid_params(error, None))?,
            None => {
                let text = format!("no prompt `{}`", request.name);
                return Err(ErrorData::invalid_params(text, None));
            }
        };
        let prompts = self.dialect.prompts();
        let about = prompts.iter().find(|prompt| prompt.name == request.name);
        let said = said.into_iter().map(|said| PromptMessage::new(Role::User, block(said)));
        let mut result = GetPromptResult::new(said.collect());
        result.description = about.map(|prompt| prompt.description.to_owned());
        Ok(result.into())
    }
}
