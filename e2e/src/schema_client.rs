//! An MCP client that checks each result against the schema of its tool.

use crate::mcp::Client;
use crate::{Msb, schema};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A client, the schemas of its tools, and the tools that were called.
#[derive(Debug)]
pub struct SchemaClient {
    /// The client itself.
    pub client: Client,
    /// The schema of what each tool answers with.
    pub schemas: BTreeMap<String, Value>,
    /// Tools that have answered.
    pub called: BTreeSet<String>,
}

impl SchemaClient {
    /// Starts a server of this dialect.
    #[track_caller]
    pub fn open(msb: &Msb, dialect: &str) -> Self {
        let mut client = Client::start(msb, &["--dialect", dialect]);
        let schema = |tool: &Value| {
            (tool["name"].as_str().expect("text").to_owned(), tool["outputSchema"].clone())
        };
        let schemas = client.tools().iter().map(schema).collect();
        Self { client, schemas, called: BTreeSet::new() }
    }

    /// Calls a tool that answers well; the whole result.
    #[track_caller]
    pub fn result(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.client.call(tool, arguments);
        assert_eq!(result["isError"], false, "{tool}: {result}");
        let said = &result["structuredContent"];
        assert_eq!(schema::complaint(said, &self.schemas[tool]), None, "{tool}: {said}");
        self.called.insert(tool.to_owned());
        result
    }

    /// Calls a tool that answers well; the structured content alone.
    #[track_caller]
    pub fn done(&mut self, tool: &str, arguments: Value) -> Value {
        self.result(tool, arguments)["structuredContent"].clone()
    }

    /// Calls a tool that fails; what it says then.
    #[track_caller]
    pub fn failed(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.client.call(tool, arguments);
        assert_eq!(result["isError"], true, "{tool}: {result}");
        result["content"][0]["text"].as_str().expect("text").to_owned()
    }
}
