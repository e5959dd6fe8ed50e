//! `msb build`: RUN reaches the hosts that the build may reach, and no layer shows it.

use crate::testnet::{TestNet, TestUser, WITHOUT_TUN, changed};
use msb_e2e::debian;
use msb_e2e::images::{Image, Layer, Layout, Packing};
use msb_e2e::tar::{Entry, Tar};
use msb_e2e::{CmdOutput, ends, skip};
use std::fs;
use std::process::Command;

impl TestUser {
    /// Loads an image as `base`.
    #[track_caller]
    fn base(&self, layout: &Layout) {
        let path = layout.path().to_str().expect("a path of ours");
        self.run(["load", "-i", path, "-t", "base"]).ok();
    }

    fn build_command(&self, text: &str, flags: &[&str]) -> Command {
        self.msb.file("project/Containerfile", text);
        self.command(["build", "-t", "built"].iter().chain(flags).chain(&["./project"]))
    }

    /// Builds this text as `built`, with these flags.
    #[track_caller]
    fn build(&self, text: &str, flags: &[&str]) -> CmdOutput {
        ends(self.build_command(text, flags).spawn().expect("msb can be executed"))
    }

    /// What a script says in what was built, without a network.
    #[track_caller]
    fn built(&self, script: &str) -> String {
        self.run(["run", "-q", "--no-net", "built", "--", "sh", "-c", script]).line()
    }
}

const FETCHES: &str = "FROM base\nRUN wget -q -O /page http://web.example.com/\n";
const FROM_WITHIN: &str = "FROM base\nRUN wget -q -O /page http://10.9.9.10/\n";

#[test]
fn a_build_reaches_the_internet_and_nothing_else() {
    for user in TestNet::users() {
        user.base(Layout::busybox());
        user.build(FETCHES, &[]).ok();
        assert_eq!(user.built("cat /page"), "hello from the web");
        user.build(&FETCHES.replace("RUN", "RUN --network=default"), &["--no-cache"]).ok();
        assert_ne!(user.build(FROM_WITHIN, &[]).code, 0);
        for flags in [["--net", "private"], ["--net-rule", "allow@10.9.9.10:tcp:80"]] {
            user.build(FROM_WITHIN, &[&flags[..], &["--no-cache"]].concat()).ok();
            assert_eq!(user.built("cat /page"), "hello from the web");
        }
        let rules = user.msb.file("rules.toml", "rules = [\"deny@web.example.com\"]\n");
        let rules = ["--no-cache", "--net-rules", rules.to_str().unwrap()];
        assert_ne!(user.build(FETCHES, &rules).code, 0);
        assert_ne!(user.build(FETCHES, &["--no-cache", "--net-default", "deny"]).code, 0);
        // A server that is asked and knows nothing.
        assert_ne!(user.build(FETCHES, &["--no-cache", "--dns", "203.0.113.10:9"]).code, 0);
    }
}

#[test]
fn a_build_without_a_network_has_none() {
    for user in TestNet::users() {
        user.base(Layout::busybox());
        let closed = |text: &str, flags: &[&str], hint: &str| {
            let gave = user.build(text, flags);
            assert_eq!(gave.code, 125, "{gave:#?}");
            assert!(gave.stderr.contains("wget: bad address"), "{gave:#?}");
            assert!(gave.stderr.contains("Containerfile:2: the command ended with"), "{gave:#?}");
            assert!(gave.stderr.contains(&format!("hint: {hint}")), "{gave:#?}");
        };
        closed(FETCHES, &["--no-net"], "it had no network: ");
        closed(FETCHES, &["--net", "none"], "it had no network: ");
        let alone = FETCHES.replace("RUN", "RUN --network=none");
        closed(&alone, &[], "`RUN --network=none` has no network; ");
        closed(&alone, &["--net", "all"], "`RUN --network=none` has no network; ");
        let mut command = user.build_command(FETCHES, &[]);
        let gave = ends(command.env("MSB_NET", "none").spawn().unwrap());
        assert_eq!(gave.code, 125, "the variable says the same: {gave:#?}");
        let gave = user.build("FROM base\n", &["--no-net", "--net-rule", "allow@any"]);
        assert!(gave.stderr.contains("has no use for network rules"), "{gave:#?}");
        // A cached step needs no network.
        user.build(FETCHES, &[]).ok();
        let gave = user.build(FETCHES, &["--no-net"]).ok();
        assert!(gave.stderr.contains("web.example.com/  (cached)"), "{gave:#?}");
    }
}

#[test]
fn a_build_on_a_host_without_a_tun_device_has_a_network() {
    for user in TestNet::users() {
        user.base(Layout::busybox());
        let text = "FROM base\nRUN wget -qO /dev/null http://web.example.com/ && echo ran\n";
        let command = user.build_command(text, &["--no-cache"]);
        for change in WITHOUT_TUN {
            let Some(mut wrapped) = changed(&command, change) else {
                return skip("msb is not run in the test network");
            };
            let gave = ends(wrapped.spawn().unwrap()).ok();
            assert!(gave.stderr.lines().any(|line| line == "ran"), "{gave:#?}");
        }
    }
}

/// Also by a name that is looked into: the step trusts the gateway as every sandbox does.
#[test]
fn pip_installs_in_a_build() {
    for user in TestNet::users() {
        user.base(debian::python());
        let install = "python3 -m pip install -q --disable-pip-version-check --target /got \
                       --root-user-action=ignore --no-cache-dir --no-compile \
                       --index-url https://pypi.example.com/simple/";
        fs::create_dir_all(user.scratch().join("project")).unwrap();
        fs::copy(user.net.authority(), user.scratch().join("project/ca.pem")).unwrap();
        let plain = format!(
            "FROM base\nCOPY --chmod=644 ca.pem /ca.pem\nRUN {install} --cert /ca.pem tiny-world\n"
        );
        let trusting = format!("FROM base\nRUN {install} tiny-world\n");
        for (text, flags) in
            [(&plain, vec![]), (&trusting, vec!["--net-rule", "allow@pypi.example.com:http"])]
        {
            user.build(text, &flags).ok();
            let script = "PYTHONPATH=/got python3 -c 'import tiny_world; print(tiny_world.WORDS)'";
            assert_eq!(user.built(script), "hello from the index");
            // A CA that was trusted for a step is in no image.
            assert_eq!(
                user.built("echo \"${SSL_CERT_FILE-none}\"; ls -d /.msb* | wc -l"),
                "none\n0"
            );
        }
    }
}

/// The program of [`Image::busybox`] and nothing else.
fn bare(entries: impl IntoIterator<Item = Entry>) -> Image {
    let busybox = fs::read("/bin/busybox").expect("busybox-static is installed");
    let links = ["sh", "true", "touch", "cat", "readlink", "ls", "mkdir"]
        .map(|applet| Entry::symlink(&format!("bin/{applet}"), "busybox"));
    let tar = Tar::default()
        .with([Entry::directory("bin"), Entry::program("bin/busybox", busybox)])
        .with(links)
        .with(entries);
    Image::new()
        .layer(&Layer::new(&tar, Packing::Gzip))
        .config(&serde_json::json!({"Env": ["PATH=/bin"], "Cmd": ["sh"]}))
}

/// Images that have what a network is told by, and those that have not, in every way.
fn bases() -> Vec<(&'static str, Image)> {
    let etc = || Entry::directory("etc").mode(0o751).modified(1000);
    let file = |path: &str| Entry::file(path, "1\n").modified(1000);
    let lost = || Entry::symlink("etc/resolv.conf", "../run/resolved/resolv.conf");
    vec![
        ("both", bare([etc(), file("etc/hosts"), file("etc/resolv.conf"), file("etc/passwd")])),
        ("empty", bare([etc(), Entry::file("etc/hosts", "").modified(1000)])),
        ("neither", bare([etc(), file("etc/passwd")])),
        ("no directory", bare([])),
        ("a link to nowhere", bare([etc(), lost()])),
        ("a link", bare([etc(), Entry::symlink("etc/hosts", "known"), file("etc/known")])),
        (
            "linked",
            bare([Entry::directory("usr/etc").modified(1000), Entry::symlink("etc", "usr/etc")]),
        ),
        (
            "removed",
            bare([etc(), file("etc/hosts"), file("etc/passwd")])
                .entries([etc(), Entry::whiteout("etc/hosts")]),
        ),
        (
            "hidden",
            bare([etc(), file("etc/hosts")]).entries([etc(), Entry::opaque("etc"), file("etc/a")]),
        ),
        ("removed whole", bare([etc(), file("etc/hosts")]).entries([Entry::whiteout("etc")])),
    ]
}

/// A build with a network, one that is looked into and one without give the same, to the byte.
#[test]
fn a_layer_does_not_show_that_there_was_a_network() {
    for user in TestNet::users_and_one_id() {
        for (which, image) in bases() {
            user.base(&image.layout());
            let text = "FROM base\nRUN true\nRUN touch -d @5 /a\n\
                        RUN mkdir -p /etc; touch -d @5 /etc/passwd\n";
            let build = |flags: &[&str]| {
                let mut command = user.build_command(text, flags);
                // Older than what anybody makes now, newer than what the image has.
                command.env("SOURCE_DATE_EPOCH", "1600000000");
                ends(command.arg("--no-cache").spawn().unwrap()).line()
            };
            let without = build(&["--no-net"]);
            assert_eq!(build(&[]), without, "{which}");
            assert_eq!(build(&["--net-rule", "allow@api.example.com:http"]), without, "{which}");
            let before = user.json(["image", "inspect", "base", "--json"]);
            let after = user.json(["image", "inspect", "built", "--json"]);
            let layers = |of: &serde_json::Value| of["layers"].as_array().expect("layers").len();
            assert_eq!(layers(&after), layers(&before) + 2, "{which}: {after}");
        }
    }
}

#[test]
fn a_step_that_changes_nothing_gives_no_layer() {
    for user in TestNet::users_and_one_id() {
        for (which, image) in bases() {
            user.base(&image.layout());
            user.build("FROM base\nRUN true\n", &[]).ok();
            let before = user.json(["image", "inspect", "base", "--json"]);
            let after = user.json(["image", "inspect", "built", "--json"]);
            let layers = |of: &serde_json::Value| -> Vec<String> {
                let layers = of["layers"].as_array().expect("layers").iter();
                layers.map(|layer| layer["diff_id"].to_string()).collect()
            };
            assert_eq!(layers(&after), layers(&before), "{which}");
            if which == "a link to nowhere" {
                user.build("FROM base\nRUN touch /etc/other; cat /etc/resolv.conf\n", &[]).ok();
                let link = "../run/resolved/resolv.conf";
                assert_eq!(user.built("readlink /etc/resolv.conf"), link);
                assert_eq!(user.built("ls -A /etc"), "other\nresolv.conf");
            }
        }
    }
}
