//! Generates the OpenAPI document from the table of Operations.

use msb_api::Snapshot;
use msb_api::http::streams::{
    self, ExecMessage, FileRead, FileWrite, Follow, SnapshotLoad, SnapshotSave, StartExec,
    StartRun, Tell,
};
use msb_api::http::{Count, HttpRequest, Route, Visitor, each};
use msb_spec::Error;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// The whole OpenAPI document, as `/openapi.json` serves it.
pub fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut builder = OpenApiBuilder { schemas: SchemaGenerator::new(settings), paths: Map::new() };
    each(&mut builder);
    builder.streams();
    let error = builder.schemas.subschema_for::<Error>();
    let schemas = Value::Object(builder.schemas.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "msb",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Sandboxes for AI agents. Every Operation accepts \
                `Accept: text/event-stream`: the response is then a stream of \
                `progress` events that ends with `answer` or `error`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:5555"}],
        "security": [{"key": []}],
        "paths": builder.paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {
                "type": "http",
                "scheme": "bearer",
                "description": "An API key, created by `msb server keygen`. A server started with `--dev` needs none.",
            }},
            "responses": {"Failed": {
                "description": "The error, with its kind, causes and a hint.",
                "content": {"application/json": {"schema": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {"error": error},
                }}},
            }},
        },
    })
}

struct OpenApiBuilder {
    schemas: SchemaGenerator,
    paths: Map<String, Value>,
}

impl Visitor for OpenApiBuilder {
    fn visit<R: HttpRequest>(&mut self) {
        let answer = self.schemas.subschema_for::<R::Response>();
        let arguments_of = R::json_schema(&mut self.schemas);
        self.operation(R::ROUTE, &arguments_of, &answer);
    }
}

impl OpenApiBuilder {
    fn operation(&mut self, route: Route, arguments_of: &Schema, answer: &Schema) {
        let template = route.template();
        let Route { name, method, about, .. } = route;
        let mut operation = arguments(arguments_of.as_value(), &template, method.has_body());
        operation.insert("operationId".to_owned(), name.into());
        operation.insert("summary".to_owned(), about.trim().into());
        operation.insert("responses".to_owned(), responses("application/json", &json!(answer)));
        self.add_operation(&template, &method.as_str().to_lowercase(), operation);
    }

    fn add_operation(&mut self, path: &str, method: &str, operation: Map<String, Value>) {
        let methods = self.paths.entry(path).or_insert_with(|| json!({}));
        methods[method] = Value::Object(operation);
    }

    fn arguments_of<T: JsonSchema>(
        &mut self,
        template: &str,
        has_body: bool,
    ) -> Map<String, Value> {
        arguments(T::json_schema(&mut self.schemas).as_value(), template, has_body)
    }

    /// Streams: files, archives, logs, events and running commands.
    fn streams(&mut self) {
        let bytes = json!({"type": "string", "format": "binary"});
        let message = json!(self.schemas.subschema_for::<ExecMessage>());
        let client_message = json!(self.schemas.subschema_for::<Tell>());
        let count = json!(self.schemas.subschema_for::<Count>());
        let snapshot = json!(self.schemas.subschema_for::<Snapshot>());

        self.stream::<FileRead>(
            "file_read",
            "get",
            streams::FILE_CONTENT,
            "Reads the bytes of a file.",
            ("application/octet-stream", &bytes),
            None,
        );
        self.stream::<FileWrite>(
            "file_write",
            "put",
            streams::FILE_CONTENT,
            "Creates or replaces a file, or appends to it.",
            ("application/json", &count),
            Some("application/octet-stream"),
        );
        self.stream::<SnapshotSave>(
            "snapshot_save",
            "get",
            streams::SNAPSHOT_SAVE,
            "Exports a snapshot as an OCI archive.",
            ("application/x-tar", &bytes),
            None,
        );
        self.stream::<SnapshotLoad>(
            "snapshot_load",
            "post",
            streams::SNAPSHOT_LOAD,
            "Loads a snapshot from an archive.",
            ("application/json", &snapshot),
            Some("application/octet-stream"),
        );
        let events = "text/event-stream";
        let text = json!({"type": "string"});
        self.stream::<Follow>(
            "sandbox_logs_follow",
            "get",
            streams::LOGS_FOLLOW,
            "Follows the logs of a sandbox: events `items`, each a list of lines.",
            (events, &text),
            None,
        );
        self.stream::<Follow>(
            "sandbox_events_follow",
            "get",
            streams::EVENTS_FOLLOW,
            "Follows the lifecycle events of a sandbox: events `items`, each a list of events.",
            (events, &text),
            None,
        );
        for (name, path, about) in [
            (
                "exec_stream",
                streams::EXEC_STREAM,
                "Starts a command and streams events: `started`, `stdout`, `stderr` and `exited`.",
            ),
            (
                "run_stream",
                streams::RUN_STREAM,
                "Starts a command in a new sandbox, which is removed when the command has ended.",
            ),
        ] {
            let mut operation = match name {
                "exec_stream" => self.arguments_of::<StartExec>("", true),
                _ => self.arguments_of::<StartRun>("", true),
            };
            self.add_path_parameters(&mut operation, path);
            self.finish(operation, name, "post", path, about, (events, &text));
        }
        let mut operation = Map::new();
        self.add_path_parameters(&mut operation, streams::ATTACH_STREAM);
        self.finish(
            operation,
            "exec_attach",
            "get",
            streams::ATTACH_STREAM,
            "Attaches to a running command: streams its recent output, then new events.",
            (events, &text),
        );
        for (name, path, about) in [
            (
                "exec_socket",
                streams::EXEC_SOCKET,
                "Starts a command over a WebSocket. The first message is the body of `exec_stream`.",
            ),
            (
                "run_socket",
                streams::RUN_SOCKET,
                "Starts a command in a new sandbox over a WebSocket. The first message is the body of `run_stream`.",
            ),
            (
                "attach_socket",
                streams::ATTACH_SOCKET,
                "Attaches to a running command over a WebSocket.",
            ),
        ] {
            let mut operation = Map::new();
            self.add_path_parameters(&mut operation, path);
            operation.insert("operationId".to_owned(), name.into());
            operation.insert("summary".to_owned(), about.into());
            operation.insert("description".to_owned(), "Binary messages of the client are stdin; those of the server are output, after one byte that is 1 for stdout and 2 for stderr. Text messages are JSON: see `x-client` and `x-server`.".into());
            operation.insert("x-client".to_owned(), client_message.clone());
            operation.insert("x-server".to_owned(), message.clone());
            operation.insert(
                "responses".to_owned(),
                json!({
                    "101": {"description": "The connection is a WebSocket now."},
                    "default": {"$ref": "#/components/responses/Failed"},
                }),
            );
            self.add_operation(path, "get", operation);
        }
    }

    fn stream<T: JsonSchema>(
        &mut self,
        name: &str,
        method: &str,
        path: &str,
        about: &str,
        answer: (&str, &Value),
        body: Option<&str>,
    ) {
        let mut operation = self.arguments_of::<T>(path, false);
        if let Some(kind) = body {
            operation.insert(
                "requestBody".to_owned(),
                json!({
                    "required": true,
                    "content": {kind: {"schema": {"type": "string", "format": "binary"}}},
                }),
            );
        }
        self.finish(operation, name, method, path, about, answer);
    }

    fn finish(
        &mut self,
        mut operation: Map<String, Value>,
        name: &str,
        method: &str,
        path: &str,
        about: &str,
        (kind, schema): (&str, &Value),
    ) {
        operation.insert("operationId".to_owned(), name.into());
        operation.insert("summary".to_owned(), about.into());
        operation.insert("responses".to_owned(), responses(kind, schema));
        self.add_operation(path, method, operation);
    }

    /// Adds the members in the path of a stream as parameters.
    fn add_path_parameters(&mut self, operation: &mut Map<String, Value>, path: &str) {
        let mut parameters = Vec::new();
        for part in path.split('/') {
            let Some(name) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) else {
                continue;
            };
            let of = match name {
                "id" => json!({"type": "integer", "minimum": 0}),
                _ => json!(self.schemas.subschema_for::<msb_spec::Name>()),
            };
            parameters.push(json!({"name": name, "in": "path", "required": true, "schema": of}));
        }
        if !parameters.is_empty() {
            operation.insert("parameters".to_owned(), parameters.into());
        }
    }
}

/// Parameters and request body of an Operation.
fn arguments(schema: &Value, template: &str, has_body: bool) -> Map<String, Value> {
    let none = Map::new();
    let members = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |name: &str| required.is_some_and(|all| all.iter().any(|it| it == name));
    let in_path = |name: &str| template.contains(&format!("{{{name}}}"));
    let mut parameters = Vec::new();
    let (mut inside, mut needed) = (Map::new(), Vec::new());
    for (name, of) in members {
        if has_body && !in_path(name) {
            inside.insert(name.clone(), of.clone());
            if is_required(name) {
                needed.push(Value::from(name.as_str()));
            }
            continue;
        }
        let mut of = of.clone();
        let about = of.as_object_mut().and_then(|of| of.remove("description"));
        let place = if in_path(name) { "path" } else { "query" };
        let required = in_path(name) || is_required(name);
        let mut parameter = json!({"name": name, "in": place, "required": required, "schema": of});
        if let Some(about) = about {
            parameter["description"] = about;
        }
        parameters.push(parameter);
    }
    let mut operation = Map::new();
    if !parameters.is_empty() {
        operation.insert("parameters".to_owned(), parameters.into());
    }
    if has_body {
        let schema = json!({
            "type": "object",
            "properties": inside,
            "required": needed,
            "additionalProperties": false,
        });
        let is_needed = schema["required"].as_array().is_some_and(|it| !it.is_empty());
        let body = json!({
            "required": is_needed,
            "content": {"application/json": {"schema": schema}},
        });
        operation.insert("requestBody".to_owned(), body);
    }
    operation
}

fn responses(kind: &str, schema: &Value) -> Value {
    json!({
        "200": {"description": "The Operation has succeeded.", "content": {kind: {"schema": schema}}},
        "default": {"$ref": "#/components/responses/Failed"},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The document is committed, so that a change of the API shows in its diff.
    #[test]
    fn the_committed_document_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let text = serde_json::to_string_pretty(&document()).unwrap() + "\n";
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(committed == text, "docs/openapi.json is another: UPDATE_SNAPSHOTS=1 writes it");
    }
}
