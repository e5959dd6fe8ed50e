//! What a client says and hears, line by line.

use super::*;
use crate::content::{Block, Content};
use crate::dialect::{About, Answer, Tool};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};

/// Counts its calls, and shows the count as a resource.
#[derive(Default)]
struct Counter(AtomicU32);

impl Dialect for Counter {
    fn about(&self) -> About {
        About { name: "counter", title: None, instructions: None, resources: true, prompts: true }
    }

    fn tools(&self) -> &[Tool] {
        &[]
    }

    fn call(&self, call: &Call) -> Answer {
        call.watch.step("counts", None);
        let count = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        let more = vec![Block::Image("image/png".to_owned(), vec![1, 2, 3])];
        Answer { more, failed: call.tool == "fails", ..Answer::text(count.to_string()) }
    }

    fn read(&self, uri: &str, _: &Who) -> Option<msb_spec::Result<Content>> {
        let count = self.0.load(Ordering::SeqCst).to_string();
        (uri == "count://").then(|| Ok(Content::text("text/plain", count)))
    }

    fn complete(&self, _: &str, _: &str, typed: &str, _: &Who) -> Vec<String> {
        (0..300).map(|number| format!("{typed}{number}")).collect()
    }
}

struct Desk {
    lines: tokio::io::Lines<BufReader<ReadHalf<DuplexStream>>>,
    to: WriteHalf<DuplexStream>,
    next: u64,
    /// What came without being an answer.
    heard: Vec<Value>,
}

impl Desk {
    async fn open(session: bool) -> Self {
        Self::of(Arc::new(Counter::default()), session).await
    }

    async fn of(dialect: Arc<dyn Dialect>, session: bool) -> Self {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let keeps = session;
        let session = session.then(Arc::default);
        let service = Service { dialect, site: None, room: Room::default(), session };
        tokio::spawn(async move {
            let running = service.serve(theirs).await.unwrap();
            running.waiting().await.unwrap();
        });
        let (from, to) = tokio::io::split(ours);
        let lines = BufReader::new(from).lines();
        let mut desk = Self { lines, to, next: 0, heard: Vec::new() };
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        });
        let about = desk.ask("initialize", params).await;
        assert_eq!(about["result"]["capabilities"]["logging"].is_object(), keeps, "{about}");
        desk.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        desk
    }

    async fn send(&mut self, message: &Value) {
        self.to.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn hear(&mut self) -> Value {
        let line = self.lines.next_line().await.unwrap().expect("the server is there");
        serde_json::from_str(&line).unwrap()
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut request = json!({"jsonrpc": "2.0", "id": id, "method": method});
        request["params"] = params;
        self.send(&request).await;
        loop {
            let heard = self.hear().await;
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
async fn what_happens_is_logged_from_the_level_that_was_asked_for() {
    let mut desk = Desk::open(true).await;
    let call = |tool: &str| json!({"name": tool});
    desk.ask("tools/call", call("fails")).await;
    assert_eq!(desk.logged(), [], "nobody asked for anything");
    let said = desk.ask("logging/setLevel", json!({"level": "debug"})).await;
    assert_eq!(said["result"], json!({}));
    desk.ask("tools/call", call("fails")).await;
    let both = [("info", "counts"), ("warning", "`fails` failed")];
    assert_eq!(desk.logged(), both.map(|(level, text)| (json!(level), json!(text))));
    desk.ask("logging/setLevel", json!({"level": "error"})).await;
    desk.ask("tools/call", call("fails")).await;
    assert_eq!(desk.logged(), []);
}

#[tokio::test]
async fn who_watches_a_resource_hears_that_it_changed() {
    let mut desk = Desk::open(true).await;
    let said = desk.ask("resources/subscribe", json!({"uri": "count://other"})).await;
    assert_eq!(said["error"]["message"], "Resource count://other not found");
    assert_eq!(said["error"]["data"], json!({"uri": "count://other"}));
    let said = desk.ask("resources/subscribe", json!({"uri": "count://"})).await;
    assert_eq!(said["result"], json!({}));
    desk.ask("tools/call", json!({"name": "counts"})).await;
    let heard = match desk.heard.pop() {
        Some(heard) => heard,
        None => desk.hear().await,
    };
    assert_eq!(heard["method"], "notifications/resources/updated");
    assert_eq!(heard["params"]["uri"], "count://");
    let said = desk.ask("resources/unsubscribe", json!({"uri": "count://"})).await;
    assert_eq!(said["result"], json!({}));
}

#[tokio::test]
async fn where_nothing_is_kept_nothing_can_be_watched() {
    let mut desk = Desk::open(false).await;
    for (method, params) in [
        ("resources/subscribe", json!({"uri": "count://"})),
        ("resources/unsubscribe", json!({"uri": "count://"})),
        ("logging/setLevel", json!({"level": "debug"})),
    ] {
        assert_eq!(desk.ask(method, params).await["error"]["code"], -32601, "{method}");
    }
}

/// Without prompts and resources, as `core`.
struct Bare;

impl Dialect for Bare {
    fn about(&self) -> About {
        About { name: "bare", title: None, instructions: None, resources: false, prompts: false }
    }

    fn tools(&self) -> &[Tool] {
        &[]
    }

    fn call(&self, _: &Call) -> Answer {
        Answer::default()
    }
}

#[tokio::test]
async fn what_a_dialect_has_not_it_does_not_know() {
    let mut desk = Desk::of(Arc::new(Bare), true).await;
    for (method, params) in [
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("resources/read", json!({"uri": "count://"})),
        ("resources/subscribe", json!({"uri": "count://"})),
        ("prompts/list", json!({})),
        ("prompts/get", json!({"name": "any"})),
    ] {
        assert_eq!(desk.ask(method, params).await["error"]["code"], -32601, "{method}");
    }
}

#[tokio::test]
async fn an_answer_is_more_than_text_and_completions_are_cut() {
    let mut desk = Desk::open(true).await;
    let said = desk.ask("tools/call", json!({"name": "counts"})).await;
    let image = json!({"type": "image", "data": "AQID", "mimeType": "image/png"});
    assert_eq!(said["result"]["content"], json!([{"type": "text", "text": "1"}, image]));
    let (prompt, argument) =
        (json!({"type": "ref/prompt", "name": "any"}), json!({"name": "a", "value": "x"}));
    let said = desk.ask("completion/complete", json!({"ref": prompt, "argument": argument})).await;
    let completion = &said["result"]["completion"];
    assert_eq!(completion["values"].as_array().unwrap().len(), 100);
    assert_eq!((&completion["total"], &completion["hasMore"]), (&json!(300), &json!(true)));
}
