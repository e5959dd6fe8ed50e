//! The OpenAPI document, made from the table.

use msb_api::Snapshot;
use msb_api::http::streams::{
    self, FileRead, FileWrite, Follow, Heard, SnapshotLoad, SnapshotSave, StartExec, StartRun, Tell,
};
use msb_api::http::{Ask, Count, Route, Visitor, each};
use msb_spec::Error;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// All of it.
pub fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut book = Book { schemas: SchemaGenerator::new(settings), paths: Map::new() };
    each(&mut book);
    book.streams();
    let error = book.schemas.subschema_for::<Error>();
    let schemas = Value::Object(book.schemas.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "msb",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Sandboxes for AI agents. Every Operation can be asked for with \
                `Accept: text/event-stream`: then events `progress` come first, and `answer` or \
                `error` last.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:5555"}],
        "security": [{"key": []}],
        "paths": book.paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {
                "type": "http",
                "scheme": "bearer",
                "description": "Made by `msb server keygen`; a server started with `--dev` asks for none.",
            }},
            "responses": {"Failed": {
                "description": "What went wrong, and what to do.",
                "content": {"application/json": {"schema": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {"error": error},
                }}},
            }},
        },
    })
}

struct Book {
    schemas: SchemaGenerator,
    paths: Map<String, Value>,
}

impl Visitor for Book {
    fn visit<A: Ask>(&mut self) {
        let Route { name, method, about, .. } = A::ROUTE;
        let template = A::ROUTE.template();
        let answer = self.schemas.subschema_for::<A::Answer>();
        let mut operation = self.asked::<A>(&template, method.has_body());
        operation.insert("operationId".to_owned(), name.into());
        operation.insert("summary".to_owned(), about.trim().into());
        operation.insert("responses".to_owned(), answers("application/json", &json!(answer)));
        self.put(&template, &method.as_str().to_lowercase(), operation);
    }
}

impl Book {
    fn put(&mut self, path: &str, method: &str, operation: Map<String, Value>) {
        let methods = self.paths.entry(path).or_insert_with(|| json!({}));
        methods[method] = Value::Object(operation);
    }

    /// Parameters and body of what is asked for.
    fn asked<T: JsonSchema>(&mut self, template: &str, has_body: bool) -> Map<String, Value> {
        let schema = T::json_schema(&mut self.schemas).to_value();
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
            let mut parameter =
                json!({"name": name, "in": place, "required": required, "schema": of});
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

    /// What travels in pieces.
    fn streams(&mut self) {
        let bytes = json!({"type": "string", "format": "binary"});
        let heard = json!(self.schemas.subschema_for::<Heard>());
        let told = json!(self.schemas.subschema_for::<Tell>());
        let count = json!(self.schemas.subschema_for::<Count>());
        let snapshot = json!(self.schemas.subschema_for::<Snapshot>());

        self.stream::<FileRead>(
            "file_read",
            "get",
            streams::FILE_CONTENT,
            "Gives the bytes of a file.",
            ("application/octet-stream", &bytes),
            None,
        );
        self.stream::<FileWrite>(
            "file_write",
            "put",
            streams::FILE_CONTENT,
            "Makes or replaces a file, or adds to it.",
            ("application/json", &count),
            Some("application/octet-stream"),
        );
        self.stream::<SnapshotSave>(
            "snapshot_save",
            "get",
            streams::SNAPSHOT_SAVE,
            "A snapshot as an OCI archive.",
            ("application/x-tar", &bytes),
            None,
        );
        self.stream::<SnapshotLoad>(
            "snapshot_load",
            "post",
            streams::SNAPSHOT_LOAD,
            "Takes a snapshot from an archive.",
            ("application/json", &snapshot),
            Some("application/octet-stream"),
        );
        let events = "text/event-stream";
        let text = json!({"type": "string"});
        self.stream::<Follow>(
            "sandbox_logs_follow",
            "get",
            streams::LOGS_FOLLOW,
            "What commands say, as it comes: events `items`, each a list of lines.",
            (events, &text),
            None,
        );
        self.stream::<Follow>(
            "sandbox_events_follow",
            "get",
            streams::EVENTS_FOLLOW,
            "What happens to a sandbox, as it comes: events `items`.",
            (events, &text),
            None,
        );
        for (name, path, about) in [
            (
                "exec_stream",
                streams::EXEC_STREAM,
                "Starts a command; what it does comes as events `started`, `stdout`, `stderr` and `exited`.",
            ),
            (
                "run_stream",
                streams::RUN_STREAM,
                "The same in a sandbox of its own, which is gone when the command has ended.",
            ),
        ] {
            let mut operation = match name {
                "exec_stream" => self.asked::<StartExec>("", true),
                _ => self.asked::<StartRun>("", true),
            };
            self.named(&mut operation, path);
            self.finish(operation, name, "post", path, about, (events, &text));
        }
        let mut operation = Map::new();
        self.named(&mut operation, streams::ATTACH_STREAM);
        self.finish(
            operation,
            "exec_attach",
            "get",
            streams::ATTACH_STREAM,
            "What a command that runs says, as events: first what it has said lately.",
            (events, &text),
        );
        for (name, path, about) in [
            (
                "exec_socket",
                streams::EXEC_SOCKET,
                "A WebSocket. The first message says what is started, as the body of `exec_stream`.",
            ),
            (
                "run_socket",
                streams::RUN_SOCKET,
                "A WebSocket. The first message says what is started, as the body of `run_stream`.",
            ),
            ("attach_socket", streams::ATTACH_SOCKET, "A WebSocket for a command that runs."),
        ] {
            let mut operation = Map::new();
            self.named(&mut operation, path);
            operation.insert("operationId".to_owned(), name.into());
            operation.insert("summary".to_owned(), about.into());
            operation.insert("description".to_owned(), "Binary messages of the client are stdin; those of the server are output, behind a byte that is 1 for stdout and 2 for stderr. Text messages are JSON: see `x-client` and `x-server`.".into());
            operation.insert("x-client".to_owned(), told.clone());
            operation.insert("x-server".to_owned(), heard.clone());
            operation.insert(
                "responses".to_owned(),
                json!({
                    "101": {"description": "It is a WebSocket now."},
                    "default": {"$ref": "#/components/responses/Failed"},
                }),
            );
            self.put(path, "get", operation);
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
        let mut operation = self.asked::<T>(path, false);
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
        operation.insert("responses".to_owned(), answers(kind, schema));
        self.put(path, method, operation);
    }

    /// The members that a path names, for what has no others.
    fn named(&mut self, operation: &mut Map<String, Value>, path: &str) {
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

fn answers(kind: &str, schema: &Value) -> Value {
    json!({
        "200": {"description": "It is done.", "content": {kind: {"schema": schema}}},
        "default": {"$ref": "#/components/responses/Failed"},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The document is committed, so that a change of the API shows in its diff.
    #[test]
    fn the_committed_document_is_this_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let text = serde_json::to_string_pretty(&document()).unwrap() + "\n";
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(committed == text, "docs/openapi.json is another: UPDATE_SNAPSHOTS=1 writes it");
    }
}
