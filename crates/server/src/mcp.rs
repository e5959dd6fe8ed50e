//! MCP itself, through rmcp: only this file and those below it name its types.

mod call;
mod content;
mod session;
#[cfg(test)]
mod tests;

use crate::cancel::Cancel;
use crate::dialect::{Call, Client, Dialect, Who};
use crate::dialects::Named;
use crate::room::{Room, Seat};
use crate::site::Site;
use call::{Listener, Told, WARNING, Waiting, result};
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
use session::{Session, Watched};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Serves one dialect on stdin and stdout until the client closes them.
pub async fn serve_stdio(dialect: Arc<dyn Dialect>) -> msb_spec::Result<()> {
    let service =
        Service { dialect, site: None, room: Room::default(), session: Some(Arc::default()) };
    let failed = |error: &dyn std::fmt::Display| {
        let text = "the client did not begin as MCP wants";
        msb_spec::Error::new(msb_spec::Kind::Protocol, text).cause(error)
    };
    let running = match service.serve(rmcp::transport::io::stdio_pipes()).await {
        Ok(running) => running,
        // Nobody said anything: a client that only looked whether we start.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(failed(&error)),
    };
    running.waiting().await.map(drop).map_err(|error| failed(&error))
}

/// One dialect over HTTP. Where `sessions` is false every request stands alone and is answered in
/// plain JSON, as clients of the old server expect.
pub(crate) fn over_http(
    site: &Arc<Site>,
    named: Named,
    sessions: bool,
) -> StreamableHttpService<Service, LocalSessionManager> {
    let mut settings = StreamableHttpServerConfig::default()
        // Who may call from where is decided before a request comes here.
        .disable_allowed_hosts()
        .with_legacy_session_mode(sessions)
        .with_json_response(!sessions)
        .with_max_request_body_bytes(LARGEST_BODY);
    settings.cancellation_token = site.stopping().clone();
    let manager = Arc::new(LocalSessionManager::default());
    let (weak, runtime) = (Arc::downgrade(&manager), tokio::runtime::Handle::current());
    site.when_session_ends(move |id| {
        let (manager, id) = (weak.clone(), SessionId::from(id));
        runtime.spawn(async move {
            if let Some(manager) = manager.upgrade() {
                let _ = manager.close_session(&id).await;
            }
        });
    });
    let (site, dialect) = (Arc::clone(site), site.plain(named));
    let begin = move || {
        let session = sessions.then(Arc::default);
        let room = site.room().clone();
        let site = Some((site.clone(), named));
        Ok(Service { dialect: dialect.clone(), site, room, session })
    };
    StreamableHttpService::new(begin, manager, settings)
}

/// Files travel in arguments.
const LARGEST_BODY: usize = 32 << 20;

/// One dialect, as rmcp calls it.
#[derive(Clone)]
pub(crate) struct Service {
    /// What is the same for everybody.
    dialect: Arc<dyn Dialect>,
    /// Where each caller has a dialect of its own, if that is so.
    site: Option<(Arc<Site>, Named)>,
    room: Room,
    /// What its client wants to hear of; none where every request stands alone.
    session: Option<Arc<Session>>,
}

impl Service {
    /// The dialect of whoever sent a request.
    fn for_caller(&self, extensions: &Extensions) -> Result<(Arc<dyn Dialect>, Who), ErrorData> {
        let Some((site, named)) = &self.site else {
            return Ok((Arc::clone(&self.dialect), Who::default()));
        };
        let parts = extensions.get::<axum::http::request::Parts>();
        let caller = parts
            .and_then(|parts| parts.extensions.get::<Who>())
            .ok_or_else(|| ErrorData::internal_error("nobody knows who sent this request", None))?;
        Ok((site.dialect(*named, &caller.reaches), caller.clone()))
    }

    fn watched(&self, extensions: &Extensions, uri: String) -> Result<Watched, ErrorData> {
        let (dialect, who) = self.for_caller(extensions)?;
        let permit = self.room.watch(&who).map_err(|error| busy(&error))?;
        Ok(Watched { dialect, who, uri, room: self.room.clone(), _permit: permit })
    }

    /// A place for a call that is no tool's.
    fn seat(&self, who: &Who) -> Result<Seat, ErrorData> {
        self.room.take(who).map_err(|error| busy(&error))
    }

    /// What the client keeps here, where it can keep something.
    fn session(&self, method: &str) -> Result<&Session, ErrorData> {
        self.session.as_deref().ok_or_else(|| unknown(method))
    }

    /// What it did not say that it has, it does not know either: an empty list would be another answer.
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

impl ServerHandler for Service {
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
        let (dialect, who) = self.for_caller(&context.extensions)?;
        let (told, mut steps) = mpsc::unbounded_channel();
        let level = self.session.as_deref().and_then(Session::level);
        let mut listener = Listener {
            peer: context.peer.clone(),
            token: context.meta.get_progress_token(),
            level: context.meta.log_level().or(level),
            logger: self.dialect.about().name,
            last: 0.0,
        };
        let watch: Arc<dyn Watch> = match listener.wants_anything() {
            true => Arc::new(Told(told)),
            false => Arc::new(msb_api::Unwatched),
        };
        let waiting = Arc::new(Waiting::new(&context));
        let cancel = Cancel::default();
        let call = Call {
            tool: request.name.into_owned(),
            arguments: request.arguments.unwrap_or_default(),
            who: who.clone(),
            cancel: cancel.clone(),
            watch,
            client: Arc::clone(&waiting) as Arc<dyn Client>,
        };
        let seat = match self.room.take(&who) {
            Ok(seat) => seat,
            Err(error) => return Ok(result(dialect.refused(&error)).into()),
        };
        let tool = call.tool.clone();
        let mut answer = tokio::task::spawn_blocking(move || {
            let _seat = seat;
            dialect.call(&call)
        });
        loop {
            tokio::select! {
                // Steps first: the last of them are told before the answer.
                biased;
                () = context.ct.cancelled(), if !cancel.is_cancelled() => cancel.cancel(),
                Some(step) = steps.recv() => listener.step(step).await,
                answer = &mut answer => {
                    let answer = answer.map_err(|error| {
                        ErrorData::internal_error(format!("the tool broke: {error}"), None)
                    })?;
                    if let Some(missing) = waiting.missing() {
                        return Err(ErrorData::missing_required_client_capability(missing));
                    }
                    if answer.failed {
                        listener.log(WARNING, &format!("`{tool}` failed")).await;
                    }
                    return Ok(result(answer).into());
                }
            }
        }
    }

    #[expect(deprecated, reason = "MCP gives logging up, its clients have not yet")]
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
        let (dialect, who) = self.for_caller(&context.extensions)?;
        let argument = request.argument;
        let seat = self.seat(&who)?;
        let fitting = tokio::task::spawn_blocking(move || {
            let _seat = seat;
            dialect.complete(&prompt.name, &argument.name, &argument.value, &who)
        });
        let mut values = fitting
            .await
            .map_err(|error| ErrorData::internal_error(format!("it broke: {error}"), None))?;
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
        let (dialect, who) = self.for_caller(&context.extensions)?;
        let seat = self.seat(&who)?;
        let read = session::read(dialect, who, request.uri.clone(), seat).await?;
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
        let watched = self.watched(&context.extensions, request.uri)?;
        self.session("resources/subscribe")?.watch(watched, context.peer.clone()).await
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.session("resources/unsubscribe")?.unwatch(&request.uri);
        Ok(())
    }

    /// How newer clients subscribe: with one request for all, which lasts.
    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        self.session.as_ref()?;
        let known = |uri: &String| self.dialect.resources().iter().any(|it| it.uri == uri);
        let mut accepted = SubscriptionFilter::new();
        let asked = requested.resource_subscriptions.as_ref();
        accepted.resource_subscriptions =
            asked.map(|uris| uris.iter().filter(|uri| known(uri)).cloned().collect());
        Some(accepted)
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut telling = tokio::task::JoinSet::new();
        let extensions = &context.request_context().extensions;
        for uri in context.accepted().resource_subscriptions.iter().flatten() {
            let watched = self.watched(extensions, uri.clone())?;
            let (mut last, sink) = (watched.seen().await?, context.sink().clone());
            telling.spawn(async move {
                loop {
                    last = watched.changed(last).await;
                    if sink.notify_resource_updated(&watched.uri).await.is_err() {
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
