//! Manifests, lists and configs that lie.

use super::scene::{Scene, Way, busybox, split};
use msb_e2e::forge::{
    Blob, INDEX, Image, Layer, MANIFEST, architecture, descriptor, digest, gzip, layout, media,
    put_blob, put_manifest, zstd,
};
use msb_e2e::liar::{Liar, reply};
use serde_json::{Value, json};
use std::fs;

fn image() -> Image {
    Image::new([Blob::gzip(&Layer::new().file("f", "content"))])
}

/// Attack 8.
#[test]
fn manifests_that_cannot_be_are_refused() {
    for scene in Scene::each() {
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
            let image = Image { manifest: text.into_bytes(), ..image() };
            let (name, gave) = scene.pull_from_liar(&image);
            scene.is_refused(&format!("{what} as {}", scene.msb.uid()), &name, &gave);
            let gave = scene.load(&image.oci_archive("docker.io/hostile/load:1"));
            scene.is_refused(&format!("{what} in an archive"), "", &gave);
            assert_eq!(scene.state(), Default::default(), "{what}");
        }
    }
}

/// Attack 8.
#[test]
fn fields_that_cannot_be_are_refused() {
    for scene in Scene::each() {
        let sha = digest(b"");
        let hex = &sha["sha256:".len()..];
        let bend = |bend: &dyn Fn(&mut Value)| image().bent(bend);
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
            let (name, gave) = scene.pull_from_liar(&image);
            scene.is_refused(&format!("{what} as {}", scene.msb.uid()), &name, &gave);
            let gave = scene.load(&image.oci_archive("docker.io/hostile/load:1"));
            scene.is_refused(&format!("{what} in an archive"), "", &gave);
            assert_eq!(scene.state(), Default::default(), "{what}");
        }
    }
}

/// Attack 8.
#[test]
fn configs_that_do_not_fit_their_layers_are_refused() {
    for scene in Scene::each() {
        let one = || Blob::gzip(&Layer::new().file("one", "content"));
        let two = || Blob::gzip(&Layer::new().file("two", "content"));
        let says = |diff_ids: Value| {
            let config = json!({
                "architecture": architecture(),
                "os": "linux",
                "rootfs": { "type": "layers", "diff_ids": diff_ids },
            });
            Image::with_config([one(), two()], config.to_string())
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
            ("not JSON", Image::with_config([one(), two()], "{")),
            ("nothing", Image::with_config([one(), two()], "")),
            ("a list", Image::with_config([one(), two()], "[]")),
            ("nested without end", Image::with_config([one(), two()], "[".repeat(100_000))),
            (
                "no layers in it",
                Image::with_config([one(), two()], r#"{"architecture":"amd64","os":"linux"}"#),
            ),
        ] {
            for way in [Way::Pull, Way::DockerArchive, Way::OciArchive] {
                let (name, gave) = scene.bring(&image, way);
                let what = format!("{what} by {way:?} as {}", scene.msb.uid());
                scene.is_refused(&what, &name, &gave);
                assert!(!scene.state().iter().any(|path| path.starts_with("images")), "{what}");
                scene.prune(&what);
                assert_eq!(scene.state(), Default::default(), "{what}");
            }
        }
    }
}

/// Attack 8: to know the name of a layer is not to have it.
#[test]
fn a_layer_of_another_image_is_not_given_to_who_names_it() {
    for scene in Scene::each() {
        let private = Blob::gzip(&Layer::new().file("secret", "private"));
        let own = Blob::gzip(&Layer::new().file("own", "attacker"));
        let (_, gave) = scene.bring(&Image::new([private.clone()]), Way::Pull);
        gave.ok();
        // A blob of its own under the name of the other's layer, before and after it is here.
        let false_blob = Blob { diff_id: private.diff_id.clone(), ..own.clone() };
        let honest = Image::new([own.clone()]);
        let steps: [(&str, Image, bool); 5] = [
            ("a new blob", Image::new([false_blob.clone()]), false),
            ("a true blob", honest, true),
            ("a blob that is here", Image::new([false_blob.clone()]), false),
            ("the same twice", Image::new([own.clone(), false_blob.clone()]), false),
            ("the other way round", Image::new([false_blob, own]), false),
        ];
        for (what, image, is_good) in steps {
            for way in [Way::Pull, Way::DockerArchive, Way::OciArchive] {
                let (name, gave) = scene.bring(&image, way);
                let what = format!("{what} by {way:?} as {}", scene.msb.uid());
                match is_good {
                    true => assert_eq!(gave.code, 0, "{what}: {gave:#?}"),
                    false => scene.is_refused(&what, &name, &gave),
                }
            }
        }
        // The same layer, compressed in another way, is another blob of the same contents.
        let tar = Layer::new().file("secret", "private").tar();
        let other = Blob::of(media::ZSTD, &tar, zstd(&tar));
        scene.bring(&Image::new([other]), Way::Pull).1.ok();
    }
}

/// What comes twice in an honest image is one layer, wherever it lies.
#[test]
fn an_image_may_have_one_layer_several_times() {
    for scene in Scene::each() {
        let twice = Blob::gzip(&Layer::new().file("twice", "content"));
        let once = Blob::gzip(&Layer::new().file(".wh.twice", ""));
        let layers = [busybox(), twice.clone(), once, twice.clone(), twice];
        scene.takes("one layer several times", &Image::new(layers), |name| {
            assert_eq!(scene.msb.run(["run", name, "--", "cat", "/twice"]).line(), "content");
        });
    }
}

/// Attack 8: size and digest of a blob that is here already count as well.
#[test]
fn a_blob_that_is_here_is_still_compared() {
    for scene in Scene::each() {
        scene.bring(&image(), Way::Pull).1.ok();
        for size in [json!(1), json!(99_999), json!(0)] {
            let image = image().bent(|manifest| manifest["layers"][0]["size"] = size.clone());
            let (name, gave) = scene.pull_from_liar(&image);
            scene.is_refused(&format!("{size} bytes as {}", scene.msb.uid()), &name, &gave);
        }
    }
}

/// Attack 8: lists of lists.
#[test]
fn lists_that_lead_nowhere_are_refused() {
    for scene in Scene::each() {
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
            let what = format!("a list of {what} as {}", scene.msb.uid());
            let shelf = Image { manifest: top.to_vec(), ..image.clone() };
            let all: Vec<Vec<u8>> = parts.iter().cloned().chain([top.to_vec()]).collect();
            let liar = holding(&shelf, all);
            let name = format!("{}/hostile/list:1", liar.address());
            let gave = scene.run(["pull", &name]);
            scene.is_refused(&what, &name, &gave);
            let all: Vec<&[u8]> = parts.iter().map(|part| &part[..]).chain([top]).collect();
            let mut entry = descriptor(INDEX, top);
            entry["annotations"] = json!({ "org.opencontainers.image.ref.name": "hostile/list:1" });
            let index = json!({ "schemaVersion": 2, "manifests": [entry] });
            let gave = scene.load(&layout(&all, &index).tar());
            scene.is_refused(&format!("{what} in an archive"), "", &gave);
            assert_eq!(scene.state(), Default::default(), "{what}");
        }
        // A list that is its own entry can only be had from a registry that lies.
        let liar = Liar::start({
            let list = list(&[descriptor(INDEX, &chain[0])]);
            move |_, stream| reply(stream, "200 OK", &[("Content-Type", INDEX)], &list)
        });
        let name = format!("{}/hostile/loop:1", liar.address());
        let gave = scene.run(["pull", &name]);
        scene.is_refused("a list that is its own entry", &name, &gave);
        // And one that a real registry holds.
        let name = scene.name(Way::Pull);
        let (repository, tag) = split(&name);
        let registry = scene.registry.address();
        image.put(registry, repository, "image").unwrap();
        for list in &chain {
            put_blob(registry, repository, list).unwrap();
            put_manifest(registry, repository, tag, INDEX, list).unwrap();
        }
        let gave = scene.run(["pull", &name]);
        scene.is_refused("twenty lists in a real registry", &name, &gave);
    }
}

/// Attack 8: what the registry's disk has lost or changed.
#[test]
fn blobs_that_were_changed_in_the_registry_are_refused() {
    for scene in Scene::each() {
        let layer = Layer::new().file("f", vec![b'x'; 100_000]);
        let blob = Blob::gzip(&layer);
        let lower = Blob::gzip(&Layer::new().file("g", format!("{}", scene.msb.uid())));
        let config = json!({ "Labels": { "for": scene.msb.uid().to_string() } });
        let image = Image::with([lower, blob.clone()], &config);
        let mut flipped = blob.bytes.clone();
        flipped[50_000] ^= 1;
        let other = gzip(&Layer::new().file("f", vec![b'y'; 100_000]).tar());
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
            let name = scene.name(Way::Pull);
            let (repository, tag) = split(&name);
            image.put(scene.registry.address(), repository, tag).unwrap();
            let hex = digest(part)["sha256:".len()..].to_owned();
            let place = format!("docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]);
            let place = scene.registry.storage().join(place);
            fs::write(&place, instead).unwrap();
            let gave = scene.run(["pull", &name]);
            fs::write(&place, part).unwrap();
            let what = format!("{what} as {}", scene.msb.uid());
            scene.is_refused(&what, &name, &gave);
            let state = scene.state();
            assert!(!state.iter().any(|path| path.starts_with("images")), "{what}: {state:?}");
            let hex = &blob.diff_id["sha256:".len()..];
            assert!(!state.iter().any(|path| path.ends_with(hex)), "{what}: {state:?}");
            scene.prune(&what);
            // What was wrong is not remembered.
            scene.run(["pull", &name]).ok();
            scene.forget(&what, &name);
        }
    }
}

/// Attack 8: names in an archive are not paths.
#[test]
fn names_in_an_archive_lead_nowhere() {
    for scene in Scene::each() {
        let image = image();
        let canary = scene.outside().join("canary").display().to_string();
        let layer = &image.blobs[0].bytes;
        let says = |config: &str, layer_name: &str, tag: &str| {
            let manifest = json!([{ "Config": config, "RepoTags": [tag], "Layers": [layer_name] }]);
            Layer::new()
                .file("config.json", &image.config)
                .file("layer.tar", layer)
                .file("manifest.json", manifest.to_string())
        };
        let good = "docker.io/hostile/load:1";
        let up = format!("{}canary", "../".repeat(12));
        let archive = says("config.json", "layer.tar", good).tar();
        scene.load(&archive).ok();
        scene.forget("an honest archive", good);
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
            let gave = scene.load(&archive.tar());
            scene.is_refused(&format!("{what} as {}", scene.msb.uid()), "", &gave);
            assert_eq!(scene.state(), Default::default(), "{what}");
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
            let gave = scene.load(&archive.tar());
            let what = format!("{what} as {}", scene.msb.uid());
            scene.is_unharmed(&what);
            match gave.code {
                0 => scene.forget(&what, good),
                _ => scene.is_refused(&what, good, &gave),
            }
        }
    }
}

/// Attack 8: the same for a directory, where names could be links of the host.
#[test]
fn links_in_a_layout_directory_are_not_followed() {
    for scene in Scene::each() {
        let image = image();
        let name = "docker.io/hostile/load:1";
        let index = scene.msb.file("outside-index.json", image.index(name).to_string());
        for what in ["index", "manifest", "config", "layer", "blobs", "pipe"] {
            let place = scene.msb.scratch().join(format!("layout-{what}"));
            let relative = format!("layout-{what}");
            scene.msb.file(&format!("{relative}/index.json"), image.index(name).to_string());
            for part in image.parts() {
                let hex = &digest(part)["sha256:".len()..].to_owned();
                scene.msb.file(&format!("{relative}/blobs/sha256/{hex}"), part);
            }
            let blob =
                |part: &[u8]| place.join("blobs/sha256").join(&digest(part)["sha256:".len()..]);
            let away = scene.msb.scratch().join(format!("away-{what}"));
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
            let gave = scene.run(["load", "-i", place.to_str().unwrap()]);
            scene.is_refused(&format!("{what} as {}", scene.msb.uid()), name, &gave);
        }
        fs::remove_file(index).unwrap();
    }
}

/// Attack 8: a layer that is said to be had elsewhere is not asked for there.
#[test]
fn addresses_in_a_manifest_are_not_asked() {
    for scene in Scene::each() {
        let elsewhere = Liar::mute();
        let url = format!("http://{}/layer", elsewhere.address());
        let tar = Layer::new().file("f", "content").tar();
        for media in [media::FOREIGN, media::DOCKER_FOREIGN, media::GZIP, media::TAR] {
            let bytes = if media == media::TAR { tar.clone() } else { gzip(&tar) };
            let blob = Blob::of(media, &tar, bytes);
            let whole = Image::new([blob]).bent(|manifest| {
                manifest["layers"][0]["urls"] = json!([url, "file:///etc/passwd"]);
                manifest["config"]["urls"] = json!([url]);
            });
            // The registry has all of it, and then all but the layer.
            let lacking = Image { blobs: Vec::new(), ..whole.clone() };
            for image in [whole, lacking] {
                let (name, gave) = scene.pull_from_liar(&image);
                match gave.code {
                    0 => scene.forget(media, &name),
                    _ => scene.is_refused(media, &name, &gave),
                }
                let gave = scene.load(&image.oci_archive("docker.io/hostile/load:1"));
                match gave.code {
                    0 => scene.forget(media, "docker.io/hostile/load:1"),
                    _ => scene.is_refused(media, "", &gave),
                }
                assert_eq!(elsewhere.connections(), 0, "{media}: {:?}", elsewhere.seen());
            }
        }
    }
}

/// A registry that has these parts, and the image's manifest under every tag.
fn holding(image: &Image, parts: Vec<Vec<u8>>) -> Liar {
    let manifest = image.manifest.clone();
    Liar::start(move |asked, stream| {
        let wanted = asked.path.rsplit('/').next().unwrap_or_default();
        let found = parts.iter().find(|part| digest(part) == wanted);
        let is_tag = asked.path.contains("/manifests/") && !wanted.contains(':');
        match found.or(is_tag.then_some(&manifest)) {
            Some(part) => reply(stream, "200 OK", &[("Content-Type", INDEX)], part),
            None => reply(stream, "404 Not Found", &[], b""),
        }
    })
}
