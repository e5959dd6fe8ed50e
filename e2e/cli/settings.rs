//! `config.toml`: what names mean and where images come from, against a real registry.

use msb_e2e::Msb;
use msb_e2e::images::{Image, Layer, Layout, Packing};
use msb_e2e::registry::Registry;
use msb_e2e::tar::{Entry, Tar};

#[test]
fn an_alias_is_another_image_for_every_verb() {
    let registry = Registry::shared();
    let image = registry.push(Layout::busybox(), "aliased/box:1");
    for msb in Msb::each() {
        msb.file("home/config.toml", format!("[aliases]\nmybox = '{image}'\n"));
        let digest = &Layout::busybox().manifests[0];
        assert_eq!(msb.words("pull mybox").line(), format!("{image}@{digest}"));
        assert_eq!(msb.words("run mybox -- echo runs").line(), "runs");
        assert_eq!(msb.words("run mybox:latest -- echo runs").line(), "runs");
        msb.words("install mybox").ok();
        let other = msb.words("run --pull never mybox:2 -- true");
        assert!(other.stderr.contains("`mybox:2`"), "{other:?}");
    }
}

#[test]
fn a_limit_from_the_config_is_named() {
    // A layer that no other test has unpacked: what is here already is not unpacked again.
    let files = ["a", "b", "c", "d"].map(|name| Entry::file(name, vec![b'x'; 32 << 10]));
    let layer = Layer::new(&Tar::default().with(files), Packing::Gzip);
    let image = Registry::shared().push(&Image::new().layer(&layer).layout(), "limited:1");
    for (limit, told) in
        [("bytes = '64K'", "image_limits.bytes"), ("entries = 3", "image_limits.entries")]
    {
        let msb = Msb::new();
        msb.file("home/config.toml", format!("[image_limits]\n{limit}\n"));
        let gave = msb.run(["pull", &image]);
        assert_eq!(gave.code, 125);
        assert!(gave.stderr.contains(told), "{gave:?}");
    }
}

#[test]
fn a_mistake_is_reported_with_file_and_line_by_every_reader() {
    let msb = Msb::new();
    let path = msb.file("home/config.toml", "[aliases]\nbox = 'No Such'\n");
    for line in ["pull box", "run box -- true", "run host -- true", "image ls", "install box"] {
        let gave = msb.words(line);
        assert_eq!(gave.code, 125, "{line}");
        let told: Vec<&str> = gave.stderr.lines().collect();
        assert_eq!(told[0], format!("error: cannot use `{}`", path.display()), "{line}");
        assert_eq!(told[1], "  cause: line 2: not the name of an image: `No Such`", "{line}");
    }
    // What makes no sandboxes and needs no images goes on.
    msb.words("ls").ok();
}
