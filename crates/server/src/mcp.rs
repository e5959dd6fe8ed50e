//! MCP itself, through rmcp: the only file that names its types.

use crate::cancel::Cancel;
use crate::dialect::{Answer, Call, Dialect, Tool, Who};
use crate::dialects::Named;
use crate::room::Room;
use crate::site::Site;
use msb_api::{Part, Watch};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Extensions,
    GetPromptRequestParams, GetPromptResponse, GetPromptResult, Implementation, ListPromptsResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam,
    Prompt, PromptArgument, PromptMessage, ReadResourceRequestParams, ReadResourceResponse,
    ReadResourceResult, Resource, ResourceContents, Role, ServerCapabilities, ServerConfig,
    ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{RoleServer, ServerHandler, ServiceExt};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Serves one dialect on stdin and stdout until the client closes them.
pub async fn serve_stdio(dialect: Arc<dyn Dialect>) -> msb_spec::Result<()> {
    let service = Service { dialect, site: None, room: Room::default() };
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
    let service = Service {
        dialect: site.plain(named),
        site: Some((Arc::clone(site), named)),
        room: site.room().clone(),
    };
    StreamableHttpService::new(move || Ok(service.clone()), Arc::default(), settings)
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
}

impl ServerHandler for Service {
    fn get_info(&self) -> ServerConfig {
        let about = self.dialect.about();
        let mut capabilities = ServerCapabilities::builder().enable_tools().build();
        capabilities.resources = about.resources.then(Default::default);
        capabilities.prompts = about.prompts.then(Default::default);
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
        let token = context.meta.get_progress_token();
        let watch: Arc<dyn Watch> = match token {
            Some(_) => Arc::new(Told(told)),
            None => Arc::new(msb_api::Unwatched),
        };
        let cancel = Cancel::default();
        let call = Call {
            tool: request.name.into_owned(),
            arguments: request.arguments.unwrap_or_default(),
            who,
            cancel: cancel.clone(),
            watch,
        };
        let seat = match self.room.take() {
            Ok(seat) => seat,
            Err(error) => return Ok(result(dialect.refused(&error)).into()),
        };
        let mut answer = tokio::task::spawn_blocking(move || {
            let _seat = seat;
            dialect.call(&call)
        });
        let mut last = 0.0;
        loop {
            tokio::select! {
                // Steps first: the last of them are told before the answer.
                biased;
                () = context.ct.cancelled(), if !cancel.is_cancelled() => cancel.cancel(),
                Some(step) = steps.recv() => {
                    if let Some(token) = &token {
                        let progress = step.progress(&mut last, token.clone());
                        // A client that does not listen still gets its answer.
                        let _ = context.peer.notify_progress(progress).await;
                    }
                }
                answer = &mut answer => {
                    let answer = answer.map_err(|error| {
                        ErrorData::internal_error(format!("the tool broke: {error}"), None)
                    })?;
                    return Ok(result(answer).into());
                }
            }
        }
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
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
        let (dialect, who) = self.for_caller(&context.extensions)?;
        let uri = request.uri.clone();
        let read = tokio::task::spawn_blocking(move || dialect.read(&uri, &who)).await;
        let internal =
            |error: &dyn std::fmt::Display| ErrorData::internal_error(error.to_string(), None);
        let (mime_type, text) = match read.map_err(|error| internal(&error))? {
            Some(read) => read.map_err(|error| internal(&error))?,
            None => {
                let text = format!("Resource {} not found", request.uri);
                return Err(ErrorData::invalid_params(text, None));
            }
        };
        let (uri, mime_type, meta) = (request.uri, Some(mime_type), None);
        let contents = ResourceContents::TextResourceContents { uri, mime_type, text, meta };
        Ok(ReadResourceResult::new(vec![contents]).into())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
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
        let arguments = request.arguments.unwrap_or_default();
        let text = match self.dialect.prompt(&request.name, &arguments) {
            Some(text) => text.map_err(|error| ErrorData::invalid_params(error, None))?,
            None => {
                let text = format!("no prompt `{}`", request.name);
                return Err(ErrorData::invalid_params(text, None));
            }
        };
        let prompts = self.dialect.prompts();
        let about = prompts.iter().find(|prompt| prompt.name == request.name);
        let mut result = GetPromptResult::new(vec![PromptMessage::new_text(Role::User, text)]);
        result.description = about.map(|prompt| prompt.description.to_owned());
        Ok(result.into())
    }
}

/// A step of the work, on its way to the client.
struct Step {
    what: String,
    part: Option<Part>,
}

impl Step {
    /// As MCP wants it: a number that grows with every message.
    fn progress(
        self,
        last: &mut f64,
        token: rmcp::model::ProgressToken,
    ) -> ProgressNotificationParam {
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

struct Told(mpsc::UnboundedSender<Step>);

impl Watch for Told {
    fn step(&self, what: &str, part: Option<Part>) {
        let _ = self.0.send(Step { what: what.to_owned(), part });
    }
}

fn listed(tool: &Tool) -> rmcp::model::Tool {
    let description = tool.description.clone();
    let mut listed =
        rmcp::model::Tool::new(tool.name.clone(), description, Arc::clone(&tool.input));
    listed.title.clone_from(&tool.title);
    listed.output_schema.clone_from(&tool.output);
    let hints = tool.hints;
    if hints != crate::dialect::Hints::default() {
        // Its title is the tool's own, not a hint.
        listed.annotations = Some(ToolAnnotations::from_raw(
            None,
            hints.read_only,
            hints.destructive,
            hints.idempotent,
            hints.open_world,
        ));
    }
    listed
}

fn result(answer: Answer) -> CallToolResult {
    let content = answer.text.into_iter().map(ContentBlock::text).collect();
    let mut result = match answer.failed {
        true => CallToolResult::error(content),
        false => CallToolResult::success(content),
    };
    result.structured_content = answer.structured;
    result
}
