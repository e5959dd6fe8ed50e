//! Tests of the helpers, without `msb`: registries, multi-platform images, the relay.

use msb_e2e::eventually;
use msb_e2e::images::{Image, Layout, own_architecture};
use msb_e2e::registry::Registry;
use msb_e2e::relay::Relay;
use std::process::Command;

#[test]
fn each_registry_takes_and_gives_an_image() {
    let start =
        [Registry::plain, Registry::with_password, Registry::with_tokens, Registry::with_tls];
    for registry in start.map(|start| start()) {
        registry.push(Layout::busybox(), "team/busybox:1");
        let manifest: serde_json::Value =
            serde_json::from_str(&registry.manifest("team/busybox:1")).unwrap();
        assert_eq!(manifest, Layout::busybox().manifest(0));
    }
}

#[test]
fn several_platforms_are_one_name() {
    let registry = Registry::shared();
    let other = Image::busybox().platform("linux", "arm64", Some("v8"));
    let layout = Layout::index(&[Image::busybox(), other]);
    registry.push(&layout, "several:1");
    let index: serde_json::Value = serde_json::from_str(&registry.manifest("several:1")).unwrap();
    assert_eq!(index, layout.read(&layout.digest));
    assert_eq!(index["manifests"][0]["platform"]["architecture"], own_architecture());
}

#[test]
fn a_relay_notes_what_was_asked_and_holds_an_answer_back() {
    let registry = Registry::plain();
    let relay = Relay::to(registry.address());
    relay.hold_after(0);
    let url = format!("http://{}/v2/", relay.address());
    let script = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read())";
    let asking = Command::new("python3")
        .args(["-c", script, &url])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    eventually("the answer waits", || relay.is_held());
    assert!(relay.asked()[0].starts_with("GET /v2/ HTTP/1.1"), "{:?}", relay.asked());
    relay.release();
    assert_eq!(msb_e2e::ends(asking).line(), "b'{}'");
}
