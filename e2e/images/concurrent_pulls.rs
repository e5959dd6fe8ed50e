//! Interrupted pulls, and concurrent pulls of one image.

use msb_e2e::images::{Image, Layout};
use msb_e2e::registry::Registry;
use msb_e2e::relay::Relay;
use msb_e2e::tar::Entry;
use msb_e2e::{Msb, Process, ends, eventually, signal_pid};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Enough that it does not fit into the buffers between two processes.
const SIZE: usize = 16 << 20;

/// One layer that cannot be compressed, so that its transfer can be cut in the middle.
fn large() -> Layout {
    let mut state = 88_172_645_463_325_252_u64;
    let noise = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let noise: Vec<u8> = noise.take(SIZE / 8).flatten().collect();
    Image::busybox().entries([Entry::file("noise", noise)]).layout()
}

fn layer_digest(layout: &Layout) -> String {
    layout.manifest(0)["layers"][1]["digest"].as_str().expect("text").to_owned()
}

/// Whether all that bears a digest as its name is what it says.
fn blobs_are_true(home: &Path) {
    for entry in fs::read_dir(home.join("blobs/sha256")).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.len() == 64 {
            assert_eq!(msb_e2e::images::digest(&entry.path()), format!("sha256:{name}"));
        }
    }
}

#[test]
fn a_killed_pull_shows_nothing_and_the_next_one_goes_on_where_it_was() {
    for msb in Msb::each_with_own_layers() {
        let registry = Registry::plain();
        let layout = large();
        registry.push(&layout, "large:1");
        let relay = Relay::to(registry.address());
        let name = format!("{}/large:1", relay.address());
        relay.hold_after(SIZE as u64 / 2);
        let pull = msb.spawn(["pull", &name]);
        eventually("half of it is there", || relay.is_held());
        let processes = Process::tree(pull.id());
        signal_pid(pull.id(), "KILL");
        assert_eq!(ends(pull).code, 137);
        eventually("no process is left", || !processes.iter().any(Process::is_alive));
        assert_eq!(msb.json(["image", "ls", "--json"]), serde_json::json!([]));
        assert_eq!(msb.run(["run", "--pull", "never", &name, "--", "true"]).code, 125);
        blobs_are_true(&msb.home());

        relay.release();
        let already = relay.passed();
        let gave = msb.run(["run", &name, "--", "sh", "-c", "wc -c < /noise"]);
        assert_eq!(gave.line(), SIZE.to_string());
        let digest = layer_digest(&layout);
        let again = relay.passed() - already;
        assert!(again < SIZE as u64, "{again} bytes came again");
        let is_rest = |head: &String| {
            head.contains(&digest) && head.to_ascii_lowercase().contains("\r\nrange: bytes=")
        };
        assert!(relay.asked().iter().any(is_rest), "{:#?}", relay.asked());
        assert!(registry.fetched(&digest).iter().any(|one| one.status == 206));
        blobs_are_true(&msb.home());
        let left = fs::read_dir(msb.home().join("partial")).into_iter().flatten().count();
        assert_eq!(left, 0, "nothing is left half-done");
    }
}

#[test]
fn a_transfer_that_breaks_off_is_taken_up_again_by_the_next_pull() {
    let msb = Msb::with_own_layers();
    let registry = Registry::plain();
    let layout = large();
    registry.push(&layout, "broken-off:1");
    let relay = Relay::to(registry.address());
    let name = format!("{}/broken-off:1", relay.address());
    relay.hold_after(SIZE as u64 / 2);
    let pull = msb.spawn(["pull", &name]);
    eventually("half of it is there", || relay.is_held());
    relay.cut();
    let gave = ends(pull);
    if gave.code != 0 {
        assert_eq!(msb.json(["image", "ls", "--json"]), serde_json::json!([]));
        relay.release();
        msb.run(["pull", &name]).ok();
    }
    assert!(registry.fetched(&layer_digest(&layout)).iter().any(|one| one.status == 206));
}

#[test]
fn two_pulls_of_one_image_fetch_it_once() {
    for msb in Msb::each_with_own_layers() {
        let registry = Registry::plain();
        let layout = large();
        registry.push(&layout, "both:1");
        let relay = Relay::to(registry.address());
        let name = format!("{}/both:1", relay.address());
        relay.hold_after(SIZE as u64 / 2);
        let first = msb.spawn(["pull", &name]);
        eventually("half of it is there", || relay.is_held());
        let second = msb.spawn(["run", &name, "--", "sh", "-c", "wc -c < /noise"]);
        // Time to begin what it must not begin; a test that passes too early is not wrong.
        std::thread::sleep(Duration::from_millis(300));
        relay.release();
        assert_eq!(ends(first).line(), format!("{name}@{}", layout.digest));
        assert_eq!(ends(second).line(), SIZE.to_string());
        // The config is a few hundred bytes that each reads to know what it waits for.
        for layer in layout.manifest(0)["layers"].as_array().unwrap() {
            let fetched = registry.fetched(layer["digest"].as_str().unwrap());
            assert_eq!(fetched.len(), 1, "{fetched:#?}");
        }
    }
}

#[test]
fn a_pull_that_waits_for_a_killed_one_takes_it_over() {
    for msb in Msb::each_with_own_layers() {
        let registry = Registry::plain();
        let layout = large();
        registry.push(&layout, "inherited:1");
        let relay = Relay::to(registry.address());
        let name = format!("{}/inherited:1", relay.address());
        relay.hold_after(SIZE as u64 / 2);
        let first = msb.spawn(["pull", &name]);
        eventually("half of it is there", || relay.is_held());
        let second = msb.spawn(["pull", &name]);
        std::thread::sleep(Duration::from_millis(300));
        signal_pid(first.id(), "KILL");
        relay.release();
        assert_eq!(ends(first).code, 137);
        assert_eq!(ends(second).line(), format!("{name}@{}", layout.digest));
        assert_eq!(
            msb.run(["run", &name, "--", "sh", "-c", "wc -c < /noise"]).line(),
            SIZE.to_string()
        );
        blobs_are_true(&msb.home());
    }
}

#[test]
fn an_interrupted_pull_ends_at_once_and_says_nothing_false() {
    let msb = Msb::with_own_layers();
    let registry = Registry::plain();
    let layout = large();
    registry.push(&layout, "interrupted:1");
    let relay = Relay::to(registry.address());
    let name = format!("{}/interrupted:1", relay.address());
    relay.hold_after(SIZE as u64 / 2);
    let pull = msb.spawn(["pull", &name]);
    eventually("half of it is there", || relay.is_held());
    let processes = Process::tree(pull.id());
    signal_pid(pull.id(), "INT");
    let gave = ends(pull);
    assert_eq!((gave.code, gave.stdout.as_str()), (130, ""), "{gave:?}");
    eventually("no process is left", || !processes.iter().any(Process::is_alive));
    assert_eq!(msb.json(["image", "ls", "--json"]), serde_json::json!([]));
}
