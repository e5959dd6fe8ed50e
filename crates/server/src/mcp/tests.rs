//! Tests of the MCP messages between a client and the server.

use super::*;
use crate::content::{ContentPart, ResourceContent};
use crate::dialect::{DialectInfo, Tool, ToolResult};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};

/// A dialect that counts its calls, with the count as a resource.
#[derive(Default)]
struct Counter(AtomicU32);

impl Dialect for Counter {
    fn about(&self) -> DialectInfo {
        DialectInfo {
            name: "counter",
            title: None,
            instructions: None,
            resources: true,
            prompts: true,
        }
    }

    fn tools(&self) -> &[Tool] {
        &[]
    }

    fn call(&self, call: &ToolCall) -> ToolResult {
        call.watch.step("counts", None);
        let count = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        let more = vec![ContentPart::Image("image/png".to_owned(), vec![1, 2, 3])];
        ToolResult { more, failed: call.tool == "fails", ..ToolResult::text(count.to_string()) }
    }

    fn read(&self, uri: &str, _: &Caller) -> Option<msb_spec::Result<ResourceContent>> {
        let count = self.0.load(Ordering::SeqCst).to_string();
        (uri == "count://").then(|| Ok(ResourceContent::text("text/plain", count)))
    }

    fn complete(&self, _: &str, _: &str, typed: &str, _: &Caller) -> Vec<String> {
        (0..300).map(|number| format!("{typed}{number}")).collect()
    }
}

struct TestClient {
    lines: tokio::io::Lines<BufReader<ReadHalf<DuplexStream>>>,
    to: WriteHalf<DuplexStream>,
    next: u64,
    /// Notifications that arrived before a response.
    heard: Vec<Value>,
}

impl TestClient {
    async fn open(session: bool) -> Self {
        Self::of(Arc::new(Counter::default()), session).await
    }

    async fn of(dialect: Arc<dyn Dialect>, session: bool) -> Self {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let keeps = session;
        let session = session.then(Arc::default);
        let service =
            DialectService { dialect, state: None, limiter: CallLimiter::default(), session };
        tokio::spawn(async move {
            let running = service.serve(theirs).await.unwrap();
            running.waiting().await.unwrap();
        });
        let (from, to) = tokio::io::split(ours);
        let lines = BufReader::new(from).lines();
        let mut client = Self { lines, to, next: 0, heard: Vec::new() };
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        });
        let about = client.request("initialize", params).await;
        assert_eq!(about["result"]["capabilities"]["logging"].is_object(), keeps, "{about}");
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        client
    }

    async fn send(&mut self, message: &Value) {
        self.to.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn receive(&mut self) -> Value {
        let line = self.lines.next_line().await.unwrap().expect("the server is there");
        serde_json::from_str(&line).unwrap()
    }

    async fn request(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut request = json!({"jsonrpc": "2.0", "id": id, "method": method});
        request["params"] = params;
        self.send(&request).await;
        loop {
            let heard = self.receive().await;
            if heard["id"] == id {
                return heard;
            }
            self.heard.push(heard);
        }
    }

    fn logged(&mut self) -> Vec<(Value, Value)> {
        let heard = std::mem::take(&mut self.heard).into_iter();
        let logged = heard.filter(|it| it["method"] == "notifications/message");
        logged.map(|it| (it["params"]["level"].clone(), it["params"]["data"].clone())).collect()
    }
}

#[tokio::test]
async fn log_notifications_start_at_the_requested_level() {
    let mut client = TestClient::open(true).await;
    let call = |tool: &str| json!({"name": tool});
    client.request("tools/call", call("fails")).await;
    assert_eq!(client.logged(), [], "no level was set");
    let said = client.request("logging/setLevel", json!({"level": "debug"})).await;
    assert_eq!(said["result"], json!({}));
    client.request("tools/call", call("fails")).await;
    let both = [("info", "counts"), ("warning", "`fails` failed")];
    assert_eq!(client.logged(), both.map(|(level, text)| (json!(level), json!(text))));
    client.request("logging/setLevel", json!({"level": "error"})).await;
    client.request("tools/call", call("fails")).await;
    assert_eq!(client.logged(), []);
}

#[tokio::test]
async fn subscribers_are_notified_of_changes() {
    let mut client = TestClient::open(true).await;
    let said = client.request("resources/subscribe", json!({"uri": "count://other"})).await;
    assert_eq!(said["error"]["message"], "Resource count://other not found");
    assert_eq!(said["error"]["data"], json!({"uri": "count://other"}));
    let said = client.request("resources/subscribe", json!({"uri": "count://"})).await;
    assert_eq!(said["result"], json!({}));
    client.request("tools/call", json!({"name": "counts"})).await;
    let heard = match client.heard.pop() {
        Some(heard) => heard,
        None => client.receive().await,
    };
    assert_eq!(heard["method"], "notifications/resources/updated");
    assert_eq!(heard["params"]["uri"], "count://");
    let said = client.request("resources/unsubscribe", json!({"uri": "count://"})).await;
    assert_eq!(said["result"], json!({}));
}

#[tokio::test]
async fn without_a_session_there_are_no_subscriptions() {
    let mut client = TestClient::open(false).await;
    for (method, params) in [
        ("resources/subscribe", json!({"uri": "count://"})),
        ("resources/unsubscribe", json!({"uri": "count://"})),
        ("logging/setLevel", json!({"level": "debug"})),
    ] {
        assert_eq!(client.request(method, params).await["error"]["code"], -32601, "{method}");
    }
}

/// A dialect without prompts and resources, as `core`.
struct Bare;

impl Dialect for Bare {
    fn about(&self) -> DialectInfo {
        DialectInfo {
            name: "bare",
            title: None,
            instructions: None,
            resources: false,
            prompts: false,
        }
    }

    fn tools(&self) -> &[Tool] {
        &[]
    }

    fn call(&self, _: &ToolCall) -> ToolResult {
        ToolResult::default()
    }
}

#[tokio::test]
async fn undeclared_capabilities_are_unknown_methods() {
    let mut client = TestClient::of(Arc::new(Bare), true).await;
    for (method, params) in [
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("resources/read", json!({"uri": "count://"})),
        ("resources/subscribe", json!({"uri": "count://"})),
        ("prompts/list", json!({})),
        ("prompts/get", json!({"name": "any"})),
    ] {
        assert_eq!(client.request(method, params).await["error"]["code"], -32601, "{method}");
    }
}

#[tokio::test]
async fn an_answer_is_more_than_text_and_completions_are_cut() {
    let mut client = TestClient::open(true).await;
    let said = client.request("tools/call", json!({"name": "counts"})).await;
    let image = json!({"type": "image", "data": "AQID", "mimeType": "image/png"});
    assert_eq!(said["result"]["content"], json!([{"type": "text", "text": "1"}, image]));
    let (prompt, argument) =
        (json!({"type": "ref/prompt", "name": "any"}), json!({"name": "a", "value": "x"}));
    let said =
        client.request("completion/complete", json!({"ref": prompt, "argument": argument})).await;
    let completion = &said["result"]["completion"];
    assert_eq!(completion["values"].as_array().unwrap().len(), 100);
    assert_eq!((&completion["total"], &completion["hasMore"]), (&json!(300), &json!(true)));
}
