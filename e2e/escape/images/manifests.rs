//! False manifests, indexes and configs.

use super::fixture::{ImageFixture, Transfer, busybox, split};
use msb_e2e::http_stub::{HttpStub, reply};
use msb_e2e::raw_image::{
    Blob, INDEX, MANIFEST, RawImage, RawLayer, architecture, descriptor, digest, gzip, layout,
    media, put_blob, put_manifest, zstd,
};
use serde_json::{Value, json};
use std::fs;

fn image() -> RawImage {
    RawImage::new([Blob::gzip(&RawLayer::new().file("f", "content"))])
}

/// Attack 8.
#[test]
fn manifests_that_cannot_be_are_refused() {
    for fixture in ImageFixture::each() {
        let nested = "[".repeat(200_000) + &"]".repeat(200_000);
        let good = String::from_utf8(image().manifest).unwrap();
        let twice = good.replacen('{', r#"{"layers":[],"#, 1);
        for (what, text) in [
            ("nothing", String::new()),
            ("null", "null".to_owned()),
            ("a list", "[]".to_owned()),
            ("an empty object", "{}".to_owned()),
            ("half of it", good[..good.len() / 2].to_owned()),
            ("more after it", format!("{good}{{}}")),
            ("a mark before it", format!("\u{feff}{good}")),
            ("a zero byte in it", good.replacen(':', ":\0", 1)),
            ("a word twice", twice),
            ("nested without end", nested.clone()),
            ("not JSON", "<html>\u{1b}[2J</html>".to_owned()),
            ("version 1", good.replace("\"schemaVersion\":2", "\"schemaVersion\":1")),
            ("version 3", good.replace("\"schemaVersion\":2", "\"schemaVersion\":3")),
            ("version minus", good.replace("\"schemaVersion\":2", "\"schemaVersion\":-2")),
            ("no version", good.replace("\"schemaVersion\":2", "\"x\":2")),
        ] {
            let image = RawImage { manifest: text.into_bytes(), ..image() };
            let (name, gave) = fixture.pull_from_stub(&image);
            fixture.is_refused(&format!("{what} as {}", fixture.msb.uid()), &name, &gave);
            let gave = fixture.load(&image.oci_archive("docker.io/hostile/load:1"));
            fixture.is_refused(&format!("{what} in an archive"), "", &gave);
            assert_eq!(fixture.state(), Default::default(), "{what}");
        }
    }
}

/// Attack 8.
#[test]
fn fields_that_cannot_be_are_refused() {
    for fixture in ImageFixture::each() {
        let sha = digest(b"");
        let hex = &sha["sha256:".len()..];
        let bend = |bend: &dyn Fn(&mut Value)| image().edit_manifest(bend);
        let layer = |key: &'static str, value: Value| {
            bend(&|manifest| manifest["layers"][0][key] = value.clone())
        };
        let config = |key: &'static str, value: Value| {
            bend(&|manifest| manifest["config"][key] = value.clone())
        };
        for (what, image) in [
            ("no layers", bend(&|manifest| manifest["layers"] = json!([]))),
            ("null layers", bend(&|manifest| manifest["layers"] = Value::Null)),
            ("layers as an object", bend(&|manifest| manifest["layers"] = json!({}))),
            ("layers as numbers", bend(&|manifest| manifest["layers"] = json!([1]))),
            ("no config", bend(&|manifest| manifest["config"] = Value::Null)),
            (
                "a config that is a layer",
                bend(&|manifest| manifest["config"] = manifest["layers"][0].clone()),
            ),
            (
                "a layer that is the config",
                bend(&|manifest| {
                    manifest["layers"][0]["digest"] = manifest["config"]["digest"].clone()
                }),
            ),
            ("a list too", bend(&|manifest| manifest["manifests"] = json!([]))),
            ("another type", bend(&|manifest| manifest["mediaType"] = json!(INDEX))),
            ("an unknown type", bend(&|manifest| manifest["mediaType"] = json!("text/plain"))),
            ("a size below zero", layer("size", json!(-1))),
            ("a size with a point", layer("size", json!(1.5))),
            ("a size in words", layer("size", json!("1"))),
            ("a size beyond all", layer("size", json!(u64::MAX))),
            ("a size too large", layer("size", json!(9999))),
            ("a size too small", layer("size", json!(5))),
            ("a size of nothing", layer("size", json!(0))),
            ("no size", layer("size", Value::Null)),
            ("a config's size below zero", config("size", json!(-1))),
            ("a config's size too large", config("size", json!(9999))),
            ("a config's size too small", config("size", json!(5))),
            ("a config's size beyond all", config("size", json!(u64::MAX))),
            ("another algorithm", layer("digest", json!(format!("sha512:{hex}{hex}")))),
            ("no algorithm", layer("digest", json!(hex))),
            ("a path", layer("digest", json!("sha256:../../../config.toml"))),
            (
                "a long path",
                layer("digest", json!(format!("sha256:{:0<64}", "../../../by-image/"))),
            ),
            ("capitals", layer("digest", json!(sha.to_uppercase()))),
            ("capital digits", layer("digest", json!(format!("sha256:{}", hex.to_uppercase())))),
            ("too few digits", layer("digest", json!(&sha[..70]))),
            ("an escape", layer("digest", json!("\u{1b}[2J"))),
            ("a config's path", config("digest", json!("sha256:../../../config.toml"))),
            ("another layer's digest", layer("digest", json!(sha))),
            ("another config's digest", config("digest", json!(sha))),
            (
                "a type that holds no files",
                layer("mediaType", json!("application/vnd.cyclonedx+json")),
            ),
            (
                "an encrypted type",
                layer("mediaType", json!("application/vnd.oci.image.layer.v1.tar+encrypted")),
            ),
            ("a type with an escape", layer("mediaType", json!("\u{1b}]0;by\u{7}"))),
            ("no type", layer("mediaType", Value::Null)),
        ] {
            let (name, gave) = fixture.pull_from_stub(&image);
            fixture.is_refused(&format!("{what} as {}", fixture.msb.uid()), &name, &gave);
            let gave = fixture.load(&image.oci_archive("docker.io/hostile/load:1"));
            fixture.is_refused(&format!("{what} in an archive"), "", &gave);
            assert_eq!(fixture.state(), Default::default(), "{what}");
        }
    }
}

/// Attack 8.
#[test]
fn configs_that_do_not_fit_their_layers_are_refused() {
    for fixture in ImageFixture::each() {
        let one = || Blob::gzip(&RawLayer::new().file("one", "content"));
        let two = || Blob::gzip(&RawLayer::new().file("two", "content"));
        let says = |diff_ids: Value| {
            let config = json!({
                "architecture": architecture(),
                "os": "linux",
                "rootfs": { "type": "layers", "diff_ids": diff_ids },
            });
            RawImage::with_config([one(), two()], config.to_string())
        };
        let (first, second) = (one().diff_id, two().diff_id);
        let wrong = digest(b"something else");
        for (what, image) in [
            ("swapped", says(json!([second, first]))),
            ("one too few", says(json!([first]))),
            ("one too many", says(json!([first, second, first]))),
            ("none", says(json!([]))),
            ("the last wrong", says(json!([first, wrong]))),
            ("the first wrong", says(json!([wrong, second]))),
            ("one twice", says(json!([first, first]))),
            ("the other twice", says(json!([second, second]))),
            ("of the blobs", says(json!([digest(&one().bytes), digest(&two().bytes)]))),
            ("a path", says(json!([first, "sha256:../../../../by-image"]))),
            ("null", says(Value::Null)),
            ("text", says(json!("sha256"))),
            ("not JSON", RawImage::with_config([one(), two()], "{")),
            ("nothing", RawImage::with_config([one(), two()], "")),
            ("a list", RawImage::with_config([one(), two()], "[]")),
            ("nested without end", RawImage::with_config([one(), two()], "[".repeat(100_000))),
            (
                "no layers in it",
                RawImage::with_config([one(), two()], r#"{"architecture":"amd64","os":"linux"}"#),
            ),
        ] {
            for way in [Transfer::Pull, Transfer::DockerArchive, Transfer::OciArchive] {
                let (name, gave) = fixture.bring(&image, way);
                let what = format!("{what} by {way:?} as {}", fixture.msb.uid());
                fixture.is_refused(&what, &name, &gave);
                assert!(!fixture.state().iter().any(|path| path.starts_with("images")), "{what}");
                fixture.prune(&what);
                assert_eq!(fixture.state(), Default::default(), "{what}");
            }
        }
    }
}

/// Attack 8: to know the name of a layer is not to have it.
#[test]
fn naming_the_digest_of_a_private_layer_does_not_give_it() {
    for fixture in ImageFixture::each() {
        let private = Blob::gzip(&RawLayer::new().file("secret", "private"));
        let own = Blob::gzip(&RawLayer::new().file("own", "attacker"));
        let (_, gave) = fixture.bring(&RawImage::new([private.clone()]), Transfer::Pull);
        gave.ok();
        // A blob of its own under the name of the other's layer, before and after it is here.
        let false_blob = Blob { diff_id: private.diff_id.clone(), ..own.clone() };
        let honest = RawImage::new([own.clone()]);
        let steps: [(&str, RawImage, bool); 5] = [
            ("a new blob", RawImage::new([false_blob.clone()]), false),
            ("a true blob", honest, true),
            ("a blob that is here", RawImage::new([false_blob.clone()]), false),
            ("the same twice", RawImage::new([own.clone(), false_blob.clone()]), false),
            ("the other way round", RawImage::new([false_blob, own]), false),
        ];
        for (what, image, is_good) in steps {
            for way in [Transfer::Pull, Transfer::DockerArchive, Transfer::OciArchive] {
                let (name, gave) = fixture.bring(&image, way);
                let what = format!("{what} by {way:?} as {}", fixture.msb.uid());
                match is_good {
                    true => assert_eq!(gave.code, 0, "{what}: {gave:#?}"),
                    false => fixture.is_refused(&what, &name, &gave),
                }
            }
        }
        // The same layer, compressed in another way, is another blob of the same contents.
        let tar = RawLayer::new().file("secret", "private").tar();
        let other = Blob::of(media::ZSTD, &tar, zstd(&tar));
        fixture.bring(&RawImage::new([other]), Transfer::Pull).1.ok();
    }
}

/// What comes twice in an honest image is one layer, wherever it lies.
#[test]
fn an_image_may_have_one_layer_several_times() {
    for fixture in ImageFixture::each() {
        let twice = Blob::gzip(&RawLayer::new().file("twice", "content"));
        let once = Blob::gzip(&RawLayer::new().file(".wh.twice", ""));
        let layers = [busybox(), twice.clone(), once, twice.clone(), twice];
        fixture.takes("one layer several times", &RawImage::new(layers), |name| {
            assert_eq!(fixture.msb.run(["run", name, "--", "cat", "/twice"]).line(), "content");
        });
    }
}

/// Attack 8: size and digest of a blob that is here already count as well.
#[test]
fn a_blob_that_is_here_is_still_compared() {
    for fixture in ImageFixture::each() {
        fixture.bring(&image(), Transfer::Pull).1.ok();
        for size in [json!(1), json!(99_999), json!(0)] {
            let image =
                image().edit_manifest(|manifest| manifest["layers"][0]["size"] = size.clone());
            let (name, gave) = fixture.pull_from_stub(&image);
            fixture.is_refused(&format!("{size} bytes as {}", fixture.msb.uid()), &name, &gave);
        }
    }
}

/// Attack 8: lists of lists.
#[test]
fn invalid_indexes_are_refused() {
    for fixture in ImageFixture::each() {
        let platform = json!({ "os": "linux", "architecture": architecture() });
        let list = |entries: &[Value]| {
            let mut entries = entries.to_vec();
            entries.iter_mut().for_each(|entry| entry["platform"] = platform.clone());
            json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": entries })
                .to_string()
                .into_bytes()
        };
        let image = image();
        let mut parts: Vec<Vec<u8>> = image.parts().iter().map(|part| part.to_vec()).collect();
        let mut chain = vec![list(&[descriptor(MANIFEST, &image.manifest)])];
        for _ in 0..20 {
            chain.push(list(&[descriptor(INDEX, chain.last().unwrap())]));
        }
        parts.extend(chain.clone());
        let mut lying = descriptor(MANIFEST, &image.manifest);
        lying["size"] = json!(7);
        let smaller = list(&[lying]);
        let mut lying = descriptor(MANIFEST, &image.manifest);
        lying["size"] = json!(-7);
        let negative = list(&[lying]);
        let missing = list(&[descriptor(MANIFEST, b"not there")]);
        let as_image = list(&[descriptor(MANIFEST, &image.config)]);
        let tops: [(&str, &[u8]); 7] = [
            ("twenty deep", &chain[20]),
            ("five deep", &chain[4]),
            ("a size that is wrong", &smaller),
            ("a size below zero", &negative),
            ("nothing", &list(&[])),
            ("what is not there", &missing),
            ("a config", &as_image),
        ];
        for (what, top) in tops {
            let what = format!("a list of {what} as {}", fixture.msb.uid());
            let shelf = RawImage { manifest: top.to_vec(), ..image.clone() };
            let all: Vec<Vec<u8>> = parts.iter().cloned().chain([top.to_vec()]).collect();
            let stub = holding(&shelf, all);
            let name = format!("{}/hostile/list:1", stub.address());
            let gave = fixture.run(["pull", &name]);
            fixture.is_refused(&what, &name, &gave);
            let all: Vec<&[u8]> = parts.iter().map(|part| &part[..]).chain([top]).collect();
            let mut entry = descriptor(INDEX, top);
            entry["annotations"] = json!({ "org.opencontainers.image.ref.name": "hostile/list:1" });
            let index = json!({ "schemaVersion": 2, "manifests": [entry] });
            let gave = fixture.load(&layout(&all, &index).tar());
            fixture.is_refused(&format!("{what} in an archive"), "", &gave);
            assert_eq!(fixture.state(), Default::default(), "{what}");
        }
        // A list that is its own entry can only be had from a registry that lies.
        let stub = HttpStub::start({
            let list = list(&[descriptor(INDEX, &chain[0])]);
            move |_, stream| reply(stream, "200 OK", &[("Content-Type", INDEX)], &list)
        });
        let name = format!("{}/hostile/loop:1", stub.address());
        let gave = fixture.run(["pull", &name]);
        fixture.is_refused("a list that is its own entry", &name, &gave);
        // And one that a real registry holds.
        let name = fixture.name(Transfer::Pull);
        let (repository, tag) = split(&name);
        let registry = fixture.registry.address();
        image.put(registry, repository, "image").unwrap();
        for list in &chain {
            put_blob(registry, repository, list).unwrap();
            put_manifest(registry, repository, tag, INDEX, list).unwrap();
        }
        let gave = fixture.run(["pull", &name]);
        fixture.is_refused("twenty lists in a real registry", &name, &gave);
    }
}

/// Attack 8: what the registry's disk has lost or changed.
#[test]
fn blobs_that_were_changed_in_the_registry_are_refused() {
    for fixture in ImageFixture::each() {
        let layer = RawLayer::new().file("f", vec![b'x'; 100_000]);
        let blob = Blob::gzip(&layer);
        let lower = Blob::gzip(&RawLayer::new().file("g", format!("{}", fixture.msb.uid())));
        let config = json!({ "Labels": { "for": fixture.msb.uid().to_string() } });
        let image = RawImage::with([lower, blob.clone()], &config);
        let mut flipped = blob.bytes.clone();
        flipped[50_000] ^= 1;
        let other = gzip(&RawLayer::new().file("f", vec![b'y'; 100_000]).tar());
        let changes: [(&str, &[u8], &[u8]); 9] = [
            ("a bit of the layer", &blob.bytes, &flipped),
            ("half of the layer", &blob.bytes, &blob.bytes[..50_000]),
            ("nothing of the layer", &blob.bytes, b""),
            ("more than the layer", &blob.bytes, &[&blob.bytes[..], b"more"].concat()),
            ("another layer", &blob.bytes, &other),
            ("half of the config", &image.config, &image.config[..20]),
            ("another config", &image.config, b"{}"),
            ("half of the manifest", &image.manifest, &image.manifest[..20]),
            ("more than the config", &image.config, &[&image.config[..], b" "].concat()),
        ];
        for (what, part, instead) in changes {
            let name = fixture.name(Transfer::Pull);
            let (repository, tag) = split(&name);
            image.put(fixture.registry.address(), repository, tag).unwrap();
            let hex = digest(part)["sha256:".len()..].to_owned();
            let place = format!("docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]);
            let place = fixture.registry.storage().join(place);
            fs::write(&place, instead).unwrap();
            let gave = fixture.run(["pull", &name]);
            fs::write(&place, part).unwrap();
            let what = format!("{what} as {}", fixture.msb.uid());
            fixture.is_refused(&what, &name, &gave);
            let state = fixture.state();
            assert!(!state.iter().any(|path| path.starts_with("images")), "{what}: {state:?}");
            let hex = &blob.diff_id["sha256:".len()..];
            assert!(!state.iter().any(|path| path.ends_with(hex)), "{what}: {state:?}");
            fixture.prune(&what);
            // What was wrong is not remembered.
            fixture.run(["pull", &name]).ok();
            fixture.forget(&what, &name);
        }
    }
}

/// Attack 8: names in an archive are not paths.
#[test]
fn paths_in_an_archive_manifest_do_not_reach_the_host() {
    for fixture in ImageFixture::each() {
        let image = image();
        let canary = fixture.outside().join("canary").display().to_string();
        let layer = &image.blobs[0].bytes;
        let says = |config: &str, layer_name: &str, tag: &str| {
            let manifest = json!([{ "Config": config, "RepoTags": [tag], "Layers": [layer_name] }]);
            RawLayer::new()
                .file("config.json", &image.config)
                .file("layer.tar", layer)
                .file("manifest.json", manifest.to_string())
        };
        let good = "docker.io/hostile/load:1";
        let up = format!("{}canary", "../".repeat(12));
        let archive = says("config.json", "layer.tar", good).tar();
        fixture.load(&archive).ok();
        fixture.forget("an honest archive", good);
        for (what, archive) in [
            ("a config outside", says(&canary, "layer.tar", good)),
            ("a config above", says(&up, "layer.tar", good)),
            ("a layer outside", says("config.json", &canary, good)),
            ("a layer above", says("config.json", &up, good)),
            ("a layer by link", says("config.json", "l", good).symlink("l", &canary)),
            ("a config by link", says("l", "layer.tar", good).symlink("l", &canary)),
            ("a layer by hard link", says("config.json", "l", good).hardlink("l", &canary)),
            ("a link to itself", says("config.json", "l", good).symlink("l", "l")),
            ("a name that leads up", says("config.json", "layer.tar", "../../by-image:1")),
            ("an absolute name", says("config.json", "layer.tar", "/etc/by-image:1")),
            ("a name with an escape", says("config.json", "layer.tar", "a\u{1b}[2J:1")),
            ("a name with a tag that leads up", says("config.json", "layer.tar", "a:../../x")),
            ("a name without end", says("config.json", "layer.tar", &"a/".repeat(100_000))),
            ("an empty name", says("config.json", "layer.tar", "")),
        ] {
            let gave = fixture.load(&archive.tar());
            fixture.is_refused(&format!("{what} as {}", fixture.msb.uid()), "", &gave);
            assert_eq!(fixture.state(), Default::default(), "{what}");
        }
        for (what, archive) in [
            ("a file above", says("config.json", "layer.tar", good).file("../by-image", "x")),
            ("an absolute file", says("config.json", "layer.tar", good).file("/etc/by-image", "x")),
            (
                "a file through a link",
                says("config.json", "layer.tar", good)
                    .symlink("d", &canary[..canary.len() - 7])
                    .file("d/by-image", "x"),
            ),
            ("a file twice", says("config.json", "layer.tar", good).file("layer.tar", layer)),
            ("a device", says("config.json", "layer.tar", good).special(b'3', "null", 1, 3)),
            (
                "a link to a link",
                says("l", "layer.tar", good).symlink("l", "m").symlink("m", "config.json"),
            ),
        ] {
            let gave = fixture.load(&archive.tar());
            let what = format!("{what} as {}", fixture.msb.uid());
            fixture.is_unharmed(&what);
            match gave.code {
                0 => fixture.forget(&what, good),
                _ => fixture.is_refused(&what, good, &gave),
            }
        }
    }
}

/// Attack 8: the same for a directory, where names could be links of the host.
#[test]
fn links_in_a_layout_directory_are_not_followed() {
    for fixture in ImageFixture::each() {
        let image = image();
        let name = "docker.io/hostile/load:1";
        let index = fixture.msb.file("outside-index.json", image.index(name).to_string());
        for what in ["index", "manifest", "config", "layer", "blobs", "pipe"] {
            let place = fixture.msb.scratch().join(format!("layout-{what}"));
            let relative = format!("layout-{what}");
            fixture.msb.file(&format!("{relative}/index.json"), image.index(name).to_string());
            for part in image.parts() {
                let hex = &digest(part)["sha256:".len()..].to_owned();
                fixture.msb.file(&format!("{relative}/blobs/sha256/{hex}"), part);
            }
            let blob =
                |part: &[u8]| place.join("blobs/sha256").join(&digest(part)["sha256:".len()..]);
            let away = fixture.msb.scratch().join(format!("away-{what}"));
            let swapped = match what {
                "index" => place.join("index.json"),
                "manifest" => blob(&image.manifest),
                "config" => blob(&image.config),
                "layer" | "pipe" => blob(&image.blobs[0].bytes),
                _ => place.join("blobs"),
            };
            fs::rename(&swapped, &away).unwrap();
            match what {
                "pipe" => drop(std::process::Command::new("mkfifo").arg(&swapped).status()),
                _ => std::os::unix::fs::symlink(&away, &swapped).unwrap(),
            }
            let gave = fixture.run(["load", "-i", place.to_str().unwrap()]);
            fixture.is_refused(&format!("{what} as {}", fixture.msb.uid()), name, &gave);
        }
        fs::remove_file(index).unwrap();
    }
}

/// Attack 8: a layer that is said to be had elsewhere is not asked for there.
#[test]
fn addresses_in_a_manifest_are_not_asked() {
    for fixture in ImageFixture::each() {
        let foreign = HttpStub::not_found();
        let url = format!("http://{}/layer", foreign.address());
        let tar = RawLayer::new().file("f", "content").tar();
        for media in [media::FOREIGN, media::DOCKER_FOREIGN, media::GZIP, media::TAR] {
            let bytes = if media == media::TAR { tar.clone() } else { gzip(&tar) };
            let blob = Blob::of(media, &tar, bytes);
            let whole = RawImage::new([blob]).edit_manifest(|manifest| {
                manifest["layers"][0]["urls"] = json!([url, "file:///etc/passwd"]);
                manifest["config"]["urls"] = json!([url]);
            });
            // The registry has all of it, and then all but the layer.
            let lacking = RawImage { blobs: Vec::new(), ..whole.clone() };
            for image in [whole, lacking] {
                let (name, gave) = fixture.pull_from_stub(&image);
                match gave.code {
                    0 => fixture.forget(media, &name),
                    _ => fixture.is_refused(media, &name, &gave),
                }
                let gave = fixture.load(&image.oci_archive("docker.io/hostile/load:1"));
                match gave.code {
                    0 => fixture.forget(media, "docker.io/hostile/load:1"),
                    _ => fixture.is_refused(media, "", &gave),
                }
                assert_eq!(foreign.connections(), 0, "{media}: {:?}", foreign.seen());
            }
        }
    }
}

/// A registry that has these parts, and the image's manifest under every tag.
fn holding(image: &RawImage, parts: Vec<Vec<u8>>) -> HttpStub {
    let manifest = image.manifest.clone();
    HttpStub::start(move |asked, stream| {
        let wanted = asked.path.rsplit('/').next().unwrap_or_default();
        let found = parts.iter().find(|part| digest(part) == wanted);
        let is_tag = asked.path.contains("/manifests/") && !wanted.contains(':');
        match found.or(is_tag.then_some(&manifest)) {
            Some(part) => reply(stream, "200 OK", &[("Content-Type", INDEX)], part),
            None => reply(stream, "404 Not Found", &[], b""),
        }
    })
}
