//! Pulling: what comes, when something is fetched, and for which platform.

use msb_e2e::images::{Image, Layer, Layout, Packing, own_architecture};
use msb_e2e::registry::{Registry, skopeo};
use msb_e2e::tar::{Entry, Tar};
use msb_e2e::{Msb, gives};

/// An image that says which one it is.
fn saying(word: &str) -> Layout {
    Image::busybox().entries([Entry::file("word", format!("{word}\n"))]).layout()
}

fn other_architecture() -> &'static str {
    if own_architecture() == "arm64" { "amd64" } else { "arm64" }
}

#[test]
fn a_pulled_image_runs() {
    let name = Registry::shared().push(Layout::busybox(), "pulled:1");
    let digest = &Layout::busybox().manifests[0];
    for msb in Msb::each_with_own_layers() {
        let gave = msb.run(["pull", &name]).ok();
        assert_eq!((gave.stdout, gave.stderr), (format!("{name}@{digest}\n"), String::new()));
        let script = "id -u; cat /etc/passwd | wc -l; echo new > /etc/passwd; cat /etc/passwd";
        let gave = msb.run(["run", "--pull", "never", &name, "--", "sh", "-c", script]);
        assert_eq!(gave.line(), "0\n2\nnew");
        let gave = msb.run(["run", "--pull", "never", &name, "--", "wc", "-l", "/etc/passwd"]);
        assert_eq!(gave.line(), "2 /etc/passwd", "what a sandbox writes is its own");
    }
}

#[test]
fn a_terminal_sees_how_far_each_layer_is() {
    let name = Registry::shared().push(&saying("progress"), "progress:1");
    for msb in Msb::each_with_own_layers() {
        let gave = msb.on_terminal(&format!("pull {name}")).ok();
        let layer = &Layer::busybox().digest()["sha256:".len()..][..12];
        assert!(gave.stdout.contains(layer), "{gave:?}");
        assert!(gave.stdout.contains("/s"), "a rate: {gave:?}");
        assert!(gave.stdout.lines().any(|line| line.contains(&format!("{name}@sha256:"))));
        msb.run(["image", "rm", &name]).ok();
        let quiet = msb.on_terminal(&format!("pull -q {name}")).ok();
        assert!(!quiet.stdout.contains(layer), "{quiet:?}");
    }
}

#[test]
fn run_and_create_pull_what_is_missing() {
    let name = Registry::shared().push(Layout::busybox(), "missing:1");
    for msb in Msb::each_with_own_layers() {
        assert_eq!(msb.run(["run", &name, "--", "echo", "there"]).line(), "there");
        assert_eq!(msb.run(["image", "rm", &name]).ok().stdout.trim_end(), name);
        msb.run(["create", "-n", "box", &name]).ok();
        assert_eq!(msb.run(["exec", "box", "--", "echo", "there"]).line(), "there");
    }
}

#[test]
fn several_images_are_pulled_by_one_command() {
    let registry = Registry::shared();
    let names = ["one", "two"].map(|word| registry.push(&saying(word), &format!("{word}:1")));
    for msb in Msb::each_with_own_layers() {
        let records = msb.json(["pull", "--json", &names[0], &names[1]]);
        let references: Vec<&str> = records
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["reference"].as_str().unwrap())
            .collect();
        assert_eq!(references, names);
        let inspected = msb.json(["image", "inspect", "--json", &names[1]]);
        assert_eq!(records[1]["digest"], inspected["digest"]);
    }
}

#[test]
fn every_kind_of_layer_gives_the_same_files() {
    let entries =
        || (0..200).map(|n| Entry::file(&format!("many/{n}"), format!("{n}\n").repeat(n)));
    let sum = "cd /many && cat $(ls | sort -n) | sha256sum; ls | wc -l";
    let mut sums = Vec::new();
    for (packing, word) in
        [(Packing::Gzip, "gzip"), (Packing::Zstd, "zstd"), (Packing::Plain, "plain")]
    {
        let layer = Layer::new(&Tar::default().with(entries()), packing);
        let layout = Image::busybox().layer(&layer).layout();
        let name = Registry::shared().push(&layout, &format!("packed:{word}"));
        for msb in Msb::each_with_own_layers() {
            let inspected = msb.json(["pull", "--json", &name]);
            assert_eq!(inspected[0]["layers"][1]["media_type"], layer.descriptor["mediaType"]);
            assert_eq!(inspected[0]["layers"][1]["diff_id"], layer.diff_id.as_str());
            sums.push(msb.run(["run", &name, "--", "sh", "-c", sum]).line());
        }
    }
    assert!(sums[0].ends_with("\n200"), "{sums:?}");
    assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
}

/// Docker's own manifests are older than OCI's and still the most common.
#[test]
fn dockers_manifests_are_understood() {
    let name = Registry::shared().name("docker-format:1");
    let mut command = skopeo("copy");
    command.args(["--format", "v2s2", "--dest-tls-verify=false", &Layout::busybox().skopeo()]);
    command.arg(format!("docker://{name}"));
    gives(&mut command).ok();
    for msb in Msb::each_with_own_layers() {
        assert_eq!(msb.run(["run", &name, "--", "echo", "there"]).line(), "there");
        let inspected = msb.json(["image", "inspect", "--json", &name]);
        let media_type = "application/vnd.docker.image.rootfs.diff.tar.gzip";
        assert_eq!(inspected["layers"][0]["media_type"], media_type);
    }
}

#[test]
fn pull_says_when_the_registry_is_asked() {
    for msb in Msb::each_with_own_layers() {
        let registry = Registry::plain();
        let name = registry.push(&saying("old"), "changing:1");
        let word = |when: &str| msb.run(["run", "--pull", when, &name, "--", "cat", "/word"]);
        let never = word("never");
        assert_eq!((never.code, never.stdout.as_str()), (125, ""), "{never:?}");
        assert!(never.stderr.contains(&name), "{never:?}");
        assert_eq!(word("if-missing").line(), "old");

        registry.push(&saying("new"), "changing:1");
        let asked = registry.requests().len();
        assert_eq!(word("if-missing").line(), "old");
        assert_eq!(word("never").line(), "old");
        assert_eq!(msb.run(["run", &name, "--", "cat", "/word"]).line(), "old");
        assert_eq!(registry.requests().len(), asked, "what is there needs no registry");
        assert_eq!(word("always").line(), "new");
        assert_eq!(word("never").line(), "new");

        drop(registry);
        assert_eq!(word("if-missing").line(), "new");
        assert_eq!(word("always").code, 125);
        let wrong = word("sometimes");
        assert_eq!(wrong.code, 125, "{wrong:?}");
    }
}

#[test]
fn pulling_again_fetches_nothing_that_is_there() {
    let registry = Registry::plain();
    let layout = saying("again");
    let name = registry.push(&layout, "again:1");
    for msb in Msb::each_with_own_layers() {
        let before = registry.requests().len();
        let first = msb.run(["pull", &name]).line();
        assert_eq!(msb.run(["pull", &name]).line(), first);
        let asked = registry.requests().split_off(before);
        let blobs = asked.iter().filter(|one| one.path.contains("/blobs/") && one.method == "GET");
        assert_eq!(blobs.count(), 3, "config and two layers: {asked:#?}");
    }
}

#[test]
fn an_index_gives_the_image_for_this_machine() {
    let others = [("linux", "arm", Some("v7")), ("linux", other_architecture(), None)];
    let mut images: Vec<Image> =
        others.map(|(os, arch, variant)| Image::busybox().platform(os, arch, variant)).into();
    images.push(Image::busybox().entries([Entry::file("ours", "")]));
    let layout = Layout::index(&images);
    let name = Registry::shared().push(&layout, "platforms:1");
    for msb in Msb::each_with_own_layers() {
        assert_eq!(msb.run(["pull", &name]).line(), format!("{name}@{}", layout.manifests[2]));
        let inspected = msb.json(["image", "inspect", "--json", &name]);
        assert_eq!(inspected["index"], layout.digest.as_str());
        assert_eq!(inspected["platform"], format!("linux/{}", own_architecture()));
        msb.run(["run", &name, "--", "test", "-e", "/ours"]).ok();
    }
}

#[test]
fn another_platform_is_pulled_if_asked_for_and_not_run() {
    let other = other_architecture();
    let images = [
        Image::busybox(),
        Image::busybox().platform("linux", other, None),
        Image::busybox().platform("linux", "arm", Some("v7")),
    ];
    let layout = Layout::index(&images);
    let name = Registry::shared().push(&layout, "asked:1");
    for msb in Msb::each_with_own_layers() {
        let pulled = msb.run(["pull", "--platform", "linux/arm/v7", &name]).line();
        assert_eq!(pulled, format!("{name}@{}", layout.manifests[2]));
        let listed = msb.json(["image", "ls", "--json"]);
        assert_eq!(listed[0]["platform"], "linux/arm/v7");
        let platform = format!("linux/{other}");
        let gave = msb.run(["run", "--platform", &platform, &name, "--", "true"]);
        assert_eq!(gave.code, 125, "{gave:?}");
        assert!(gave.stderr.contains(&platform), "{gave:?}");
        assert!(gave.stderr.contains(own_architecture()), "it says what would run: {gave:?}");
        let gave = msb.run(["pull", "--platform", "linux/s390x", &name]);
        assert_eq!(gave.code, 125, "{gave:?}");
        assert!(gave.stderr.contains("linux/arm/v7"), "it says what there is: {gave:?}");
    }
}

#[test]
fn an_image_for_another_machine_is_refused_with_the_reason() {
    let other = other_architecture();
    let layout = Image::busybox().platform("linux", other, None).layout();
    let name = Registry::shared().push(&layout, "foreign:1");
    for msb in Msb::each_with_own_layers() {
        let gave = msb.run(["run", &name, "--", "true"]);
        assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{gave:?}");
        assert!(gave.stderr.contains(other), "{gave:?}");
    }
}

#[test]
fn fifty_sandboxes_of_one_image_start_at_once_from_nothing() {
    const MANY: usize = 50;
    for msb in Msb::each_with_own_layers() {
        let registry = Registry::plain();
        let name = registry.push(&saying("one of many"), "crowd:1");
        let children: Vec<_> = (0..MANY)
            .map(|number| {
                let script = format!("cat /word; echo {number} > /word; cat /word");
                msb.spawn(["run", &name, "--", "sh", "-c", &script])
            })
            .collect();
        for (number, child) in children.into_iter().enumerate() {
            assert_eq!(msb_e2e::ends(child).line(), format!("one of many\n{number}"));
        }
        let digest = Layer::busybox().digest();
        assert_eq!(registry.fetched(digest).len(), 1, "{:?}", registry.fetched(digest));
    }
}
