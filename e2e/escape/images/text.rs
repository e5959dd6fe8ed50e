//! Text of images on the way to a terminal or a log.

use super::fixture::{ImageFixture, Transfer, busybox, is_printable};
use msb_e2e::raw_image::{Blob, RawImage, RawLayer, architecture, media};
use serde_json::{Value, json};

/// Clears the screen, sets a title, turns the direction, goes back over the line.
const ESCAPES: &str =
    "\u{1b}[2J\u{1b}]0;title\u{7}\u{202e}\u{9b}31m\rover\u{8}\u{0}\nnew line\t\u{2028}";

/// Attacks 11 and 28.
#[test]
fn text_of_an_image_does_not_reach_the_terminal_as_it_is() {
    for fixture in ImageFixture::each() {
        let text = ESCAPES.replace('\0', "");
        let blob = busybox();
        let step = json!({
            "created": text, "created_by": text, "comment": text, "author": text,
        });
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "author": text,
            "created": text,
            "config": {
                "Env": [format!("A={text}"), format!("{text}=1"), "PATH=/bin"],
                "Entrypoint": [text, text],
                "Cmd": [text],
                "User": text,
                "WorkingDir": text,
                "Labels": { text.clone(): ESCAPES, "plain": text },
                "ExposedPorts": { text.clone(): {} },
                "Volumes": { text.clone(): {} },
                "StopSignal": text,
                "Shell": [text],
                "Healthcheck": { "Test": [text] },
            },
            "rootfs": { "type": "layers", "diff_ids": [blob.diff_id] },
            "history": vec![step; 3],
        });
        let image = RawImage::with_config([blob], config.to_string());
        for way in [Transfer::Pull, Transfer::DockerArchive, Transfer::OciArchive] {
            let (name, gave) = fixture.bring(&image, way);
            gave.ok();
            for words in [
                vec!["image", "ls"],
                vec!["image", "ls", "--json"],
                vec!["image", "inspect", &name],
                vec!["image", "inspect", "--json", &name],
                vec!["run", "--dry-run", &name],
                vec!["run", "--dry-run", "--json", &name],
                vec!["run", &name],
                vec!["run", &name, "--", "echo"],
                vec!["run", "-w", "/", "-u", "0", &name],
                vec!["create", "-n", "web", "-w", "/", "-u", "0", &name],
                vec!["inspect", "web"],
                vec!["ls"],
                vec!["logs", "web"],
                vec!["rm", "-f", "web"],
                vec!["image", "prune", "--dry-run"],
                vec!["df"],
                vec!["image", "rm", &name],
            ] {
                let gave = fixture.msb.run(&words);
                assert!(
                    is_printable(&gave.stdout),
                    "{words:?} as {}: {gave:#?}",
                    fixture.msb.uid()
                );
                assert!(
                    is_printable(&gave.stderr),
                    "{words:?} as {}: {gave:#?}",
                    fixture.msb.uid()
                );
                assert!(!gave.stderr.contains("panicked"), "{words:?}: {gave:#?}");
            }
            fixture.prune("text");
        }
    }
}

/// Attacks 6 and 28: names in a layer that is refused are told, but not as they are.
#[test]
fn names_in_an_error_are_made_harmless() {
    for fixture in ImageFixture::each() {
        let text = ESCAPES.replace('\0', "");
        for (what, layer) in [
            ("a name", RawLayer::new().pax("path", format!("../{text}")).file("f", "")),
            (
                "a long name",
                RawLayer::new().pax("path", format!("/{}", text.repeat(50))).file("f", ""),
            ),
            ("a target", RawLayer::new().pax("linkpath", format!("../{text}")).hardlink("h", "x")),
            ("an owner", RawLayer::new().pax("uname", &text).pax("uid", &text).file("f", "")),
            (
                "below a file",
                RawLayer::new().file("f", "").pax("path", format!("f/{text}")).file("g", ""),
            ),
            (
                "an attribute",
                RawLayer::new()
                    .pax(&format!("SCHILY.xattr.user.{}", text.repeat(20)), "")
                    .file("f", ""),
            ),
            ("invalid UTF-8", RawLayer::new().pax("path", b"../\xff\xfe\x1b[2J").file("f", "")),
        ] {
            // That nothing unprintable is said is seen where it is refused.
            fixture.survives(what, &RawImage::of(&layer));
        }
    }
}

/// Attack 28: types and notes of a manifest.
#[test]
fn text_of_a_manifest_is_made_harmless() {
    for fixture in ImageFixture::each() {
        let blob = || Blob::of(media::TAR, &RawLayer::new().tar(), RawLayer::new().tar());
        let bend = |key: &'static str| {
            RawImage::new([blob()]).edit_manifest(|manifest| manifest[key] = json!(ESCAPES))
        };
        let layer = |key: &'static str, value: Value| {
            RawImage::new([blob()]).edit_manifest(|manifest| manifest["layers"][0][key] = value)
        };
        for (what, image) in [
            ("its type", bend("mediaType")),
            ("what it is of", bend("artifactType")),
            ("its notes", bend("annotations")),
            ("a layer's type", layer("mediaType", json!(ESCAPES))),
            ("a layer's digest", layer("digest", json!(ESCAPES))),
            ("a layer's notes", layer("annotations", json!({ "org.x": ESCAPES }))),
            ("a layer's addresses", layer("urls", json!([ESCAPES]))),
            ("a layer's size", layer("size", json!(ESCAPES))),
        ] {
            let (name, gave) = fixture.pull_from_stub(&image);
            let what = format!("{what} as {}", fixture.msb.uid());
            match gave.code {
                0 => {
                    let shown = fixture.msb.run(["image", "inspect", &name]);
                    assert!(is_printable(&shown.stdout), "{what}: {shown:#?}");
                    fixture.forget(&what, &name);
                }
                _ => fixture.is_refused(&what, &name, &gave),
            }
        }
    }
}
