//! Image configs that try to reach the host: Entrypoint, WorkingDir, User, Env.

use super::fixture::{ImageFixture, Transfer, busybox, is_printable};
use msb_e2e::CmdOutput;
use msb_e2e::raw_image::{Blob, RawImage, RawLayer};
use serde_json::{Value, json};
use std::fs;

/// What a command may say that has come out.
const SECRET: &str = "host-secret-of-images";

/// An image that can run a shell, with more in its config and its top layer.
fn runnable(config: &Value, top: &RawLayer) -> RawImage {
    let mut whole = json!({ "Env": ["PATH=/bin"], "Cmd": ["sh", "-c", "echo ran"] });
    for (key, value) in config.as_object().expect("an object") {
        whole[key] = value.clone();
    }
    RawImage::with([busybox(), Blob::plain(top)], &whole)
}

/// Runs an image's own command, and another that looks for the host; nothing of it comes out.
#[track_caller]
fn runs(fixture: &ImageFixture, what: &str, image: &RawImage) -> Option<CmdOutput> {
    let what = format!("{what} as {}", fixture.msb.uid());
    let (name, gave) = fixture.bring(image, Transfer::DockerArchive);
    if gave.code != 0 {
        fixture.is_refused(&what, &name, &gave);
        return None;
    }
    let own = fixture.msb.run(["run", &name]);
    let canary = fixture.msb.file("secret", SECRET);
    let path = canary.display();
    let script = format!(
        "cat secret ../secret ../../secret ../../../secret ../../../../secret {path} .{path} \
         ../..{path} /proc/self/cwd{path} /proc/1/root{path} 2>/dev/null; \
         touch by-image ../by-image ../../by-image 2>/dev/null; ls -d . > /dev/null; true"
    );
    let looked = fixture.msb.run(["run", "--entrypoint", "/bin/sh", &name, "--", "-c", &script]);
    for gave in [&own, &looked] {
        assert!(!gave.stdout.contains(SECRET), "{what}: {gave:#?}");
        assert!(!gave.stderr.contains("panicked"), "{what}: {gave:#?}");
        if gave.code == 125 {
            assert!(gave.stderr.starts_with("error: "), "{what}: {gave:#?}");
            assert!(is_printable(&gave.stderr), "{what}: {gave:#?}");
        }
    }
    fs::remove_file(canary).expect("the secret is still there");
    fixture.is_idle(&what);
    fixture.is_unharmed(&what);
    fixture.forget(&what, &name);
    Some(own)
}

/// Attack 11.
#[test]
fn a_working_directory_does_not_lead_to_the_host() {
    for fixture in ImageFixture::each_runnable() {
        let scratch = fixture.msb.scratch().display().to_string();
        let top = RawLayer::new()
            .symlink("to-proc", "/proc/self/cwd")
            .symlink("to-root", "/proc/1/root")
            .symlink("to-host", &scratch)
            .symlink("to-dots", "../../../../../..")
            .symlink("to-fd", "/proc/self/fd")
            .symlink("loop", "loop")
            .file("file", "content");
        let long = "/d".repeat(3000);
        for workdir in [
            "/proc/1/cwd",
            "/proc/1/root",
            "/proc/self/cwd",
            "/proc/self/root/../..",
            "/proc/self/fd",
            "/proc/self/task/1/cwd",
            "/proc/self/ns",
            "/dev/fd/3",
            "../..",
            "../../../../../..",
            "/../../..",
            "relative",
            "a/../../..",
            &scratch,
            "/to-proc",
            "/to-proc/../../..",
            "/to-root",
            "/to-host",
            "/to-host/new",
            "/to-dots",
            "/to-fd/7",
            "/loop",
            "/file",
            "/file/below",
            "/sys/fs/cgroup",
            "/new/directory",
            "/line\nend",
            "/escape\u{1b}[2J",
            "/nul\0byte",
            "",
            ".",
            &long,
        ] {
            let image = runnable(&json!({ "WorkingDir": workdir }), &top);
            let shown: String = workdir.escape_debug().take(40).collect();
            runs(&fixture, &format!("the directory {shown}"), &image);
        }
    }
}

/// Attack 11: descriptors that are open while a sandbox starts lead nowhere.
#[test]
fn no_descriptor_is_a_working_directory() {
    for fixture in ImageFixture::each_runnable() {
        let canary = fixture.msb.file("secret", SECRET);
        let path = canary.display();
        for number in 3..40 {
            let workdir = format!("/proc/self/fd/{number}");
            let image = runnable(&json!({ "WorkingDir": workdir }), &RawLayer::new());
            let (name, gave) = fixture.bring(&image, Transfer::OciArchive);
            gave.ok();
            let script = format!("cat secret ../secret ../../secret ../../..{path} ..{path}; pwd");
            for user in ["0", "33"] {
                let gave = fixture.msb.run(["run", "-u", user, &name, "--", "sh", "-c", &script]);
                assert!(!gave.stdout.contains(SECRET), "{workdir}: {gave:#?}");
                assert!(!gave.stdout.contains("home"), "{workdir}: {gave:#?}");
            }
            fixture.is_idle(&workdir);
            fixture.forget(&workdir, &name);
        }
        fixture.is_unharmed("descriptors");
    }
}

/// Attack 11.
#[test]
fn a_user_is_one_of_the_image_or_an_error() {
    for fixture in ImageFixture::each_runnable() {
        let huge = "x".repeat(1 << 20);
        let passwd = "root:x:0:0:root:/root:/bin/sh\nevil:x:4294967295:4294967295::/:/bin/sh\n\
                      minus:x:-1:-1::/:/bin/sh\nover:x:99999999999:0::/:/bin/sh\n\
                      dots:x:7:7::../../../..:/bin/sh\nescape\u{1b}[2J:x:8:8::/:/bin/sh\n";
        let top = RawLayer::new().file("etc/passwd", passwd);
        for user in [
            "0:0",
            "0",
            "root",
            "root:root",
            "root; rm -rf /",
            "$(touch /by-image)",
            "-1",
            "4294967295",
            "4294967296",
            "99999999999999999999",
            "0x0",
            "+0",
            "00",
            " 0",
            ":",
            ":0",
            "0:",
            "0:0:0",
            "evil",
            "minus",
            "over",
            "dots",
            "nobody-of-this-name",
            "../../etc/passwd",
            "line\nend",
            "escape\u{1b}[2J",
            "nul\0byte",
            "1000:4294967295",
            &huge,
        ] {
            let image =
                runnable(&json!({ "User": user, "Cmd": ["sh", "-c", "id -u; id -g"] }), &top);
            let shown: String = user.escape_debug().take(40).collect();
            let Some(own) = runs(&fixture, &format!("the user {shown}"), &image) else { continue };
            let ids: Vec<&str> = own.stdout.lines().collect();
            match user {
                "0:0" | "0" | "root" | "root:root" => {
                    assert_eq!(ids, ["0", "0"], "{user}: {own:#?}")
                }
                "00" | "dots" | "+0" => {}
                _ => assert_eq!(own.code, 125, "{shown}: {own:#?}"),
            }
        }
    }
}

/// Attack 11: lists of users that are no lists.
#[test]
fn hostile_lists_of_users_break_nothing() {
    for fixture in ImageFixture::each_runnable() {
        let long = "root:x:0:0:".to_owned() + &"x".repeat(3 << 20);
        let many: String = (1..20_000).map(|n| format!("u{n}:x:{n}:{n}::/:/bin/sh\n")).collect();
        let groups: String = (1..20_000).map(|n| format!("g{n}:x:{n}:web\n")).collect();
        for (what, top) in [
            ("a link to the host's", RawLayer::new().symlink("etc/passwd", "/etc/passwd")),
            ("a link to nowhere", RawLayer::new().symlink("etc/passwd", "/nowhere")),
            ("a link to proc", RawLayer::new().symlink("etc/passwd", "/proc/self/environ")),
            ("a link to an endless file", RawLayer::new().symlink("etc/passwd", "/dev/zero")),
            ("a link to a terminal", RawLayer::new().symlink("etc/passwd", "/dev/tty")),
            ("a directory", RawLayer::new().directory("etc/passwd/")),
            ("one long line", RawLayer::new().file("etc/passwd", &long)),
            ("noise", RawLayer::new().file("etc/passwd", vec![0xff; 100_000])),
            ("many users", RawLayer::new().file("etc/passwd", &many)),
            ("many groups", RawLayer::new().file("etc/group", &groups)),
            (
                "a home that is no path",
                RawLayer::new().file("etc/passwd", "web:x:33:33::\u{1b}[2J\0:/bin/sh\n"),
            ),
            (
                "a shell that is none",
                RawLayer::new().file("etc/passwd", "web:x:33:33::/:/proc/1/exe\n"),
            ),
            ("none", RawLayer::new().file("etc/.wh.passwd", "").file("etc/.wh.group", "")),
            (
                "etc as a link",
                RawLayer::new().file(".wh.etc", "").symlink("etc", "/proc/1/root/etc"),
            ),
            ("etc as a file", RawLayer::new().file(".wh.etc", "").file("etc", "x")),
            ("proc as a link", RawLayer::new().file(".wh.proc", "").symlink("proc", "/etc")),
            ("dev as a link", RawLayer::new().file(".wh.dev", "").symlink("dev", "/etc")),
            ("sys as a file", RawLayer::new().file(".wh.sys", "").file("sys", "x")),
            (
                "tmp as a link",
                RawLayer::new()
                    .file(".wh.tmp", "")
                    .symlink("tmp", fixture.outside().to_str().unwrap()),
            ),
            (
                "a root with mode 0",
                RawLayer::new().header(
                    &msb_e2e::raw_image::TarHeader::new(msb_e2e::raw_image::kind::DIRECTORY, "./")
                        .mode(0),
                ),
            ),
        ] {
            runs(&fixture, what, &runnable(&json!({ "User": "web" }), &top));
            runs(&fixture, what, &runnable(&json!({}), &top));
        }
    }
}

/// Attack 11.
#[test]
fn an_environment_reaches_the_command_alone() {
    for fixture in ImageFixture::each_runnable() {
        let library =
            RawLayer::new().file("evil.so", "not a library").file("evil.sh", "echo sourced");
        for (what, env) in [
            ("a zero byte", json!(["A=1\u{0}B=2"])),
            ("no equals sign", json!(["JUST_A_NAME"])),
            ("no name", json!(["=value"])),
            ("nothing", json!([""])),
            ("a line end", json!(["A=1\nB=2", "C\nD=1"])),
            ("many equals signs", json!(["A====", "B=="])),
            ("escapes", json!(["A=\u{1b}[2J", "\u{1b}[2J=1"])),
            (
                "a library to load",
                json!(["LD_PRELOAD=/evil.so", "LD_AUDIT=/evil.so", "LD_LIBRARY_PATH=/"]),
            ),
            ("a shell's file", json!(["ENV=/evil.sh", "BASH_ENV=/evil.sh", "PROMPT_COMMAND=x"])),
            (
                "our own names",
                json!([
                    "MSB_HOME=/by-image",
                    "MSB_SANDBOX=other",
                    "MSB_ISOLATION=vm",
                    "MSB_PATH=/evil.sh"
                ]),
            ),
            (
                "a loader's settings",
                json!([
                    "GLIBC_TUNABLES=glibc.malloc.check=3",
                    "GCONV_PATH=/",
                    "MALLOC_TRACE=/by-image"
                ]),
            ),
            ("Rust's settings", json!(["RUST_BACKTRACE=full", "RUST_LOG=trace"])),
            ("no PATH", json!(["PATH="])),
            ("a PATH of dots", json!(["PATH=.:..:../../../bin:/bin"])),
            ("a home elsewhere", json!([format!("HOME={}", fixture.outside().display())])),
            ("the same name often", json!(vec!["A=1"; 10_000])),
            ("many names", json!((0..2_000).map(|n| format!("A{n}=1")).collect::<Vec<_>>())),
            ("3 MB", json!([format!("A={}", "x".repeat(3_000_000))])),
            ("10 MB", json!([format!("A={}", "x".repeat(10_000_000))])),
            ("a name of 3 MB", json!([format!("{}=1", "x".repeat(3_000_000))])),
            ("numbers", json!([1, 2])),
            ("text", json!("A=1")),
        ] {
            runs(&fixture, what, &runnable(&json!({ "Env": env }), &library));
        }
        // What an image sets is not what msb itself lives by.
        assert!(!fixture.msb.home().join("by-image").exists());
    }
}

/// Attack 11.
#[test]
fn commands_that_cannot_be_are_clean_errors() {
    for fixture in ImageFixture::each_runnable() {
        for (what, config) in [
            ("nothing", json!({ "Cmd": null, "Entrypoint": null })),
            ("no words", json!({ "Cmd": [], "Entrypoint": [] })),
            ("an empty word", json!({ "Cmd": [""] })),
            ("empty words", json!({ "Entrypoint": [""], "Cmd": ["", ""] })),
            ("a zero byte", json!({ "Cmd": ["sh\u{0}", "-c"] })),
            ("a zero byte later", json!({ "Cmd": ["sh", "-c", "echo \u{0}"] })),
            ("text", json!({ "Cmd": "sh -c true" })),
            ("numbers", json!({ "Cmd": [1] })),
            ("3 MB", json!({ "Cmd": ["echo", "x".repeat(3_000_000)] })),
            ("10 MB", json!({ "Cmd": ["echo", "x".repeat(10_000_000)] })),
            ("many words", json!({ "Cmd": vec!["true"; 300_000] })),
            ("a program of the host", json!({ "Cmd": ["/proc/1/exe", "--help"] })),
            ("a program by a descriptor", json!({ "Cmd": ["/proc/self/fd/3"] })),
            ("dots", json!({ "Cmd": ["../../../../bin/sh"] })),
            ("an option of ours", json!({ "Cmd": ["--privileged", "-v", "/:/host"] })),
            ("an entrypoint that is an option", json!({ "Entrypoint": ["--help"] })),
            ("escapes", json!({ "Cmd": ["\u{1b}[2J\u{7}"] })),
            ("a directory", json!({ "Cmd": ["/etc"] })),
            ("a loop", json!({ "Entrypoint": ["/bin/sh", "/bin/sh"], "Cmd": ["/bin/sh"] })),
            ("a signal that is none", json!({ "StopSignal": "SIGKILL; rm -rf /" })),
            ("a signal beyond", json!({ "StopSignal": "999999" })),
            ("a signal below", json!({ "StopSignal": "-9" })),
            (
                "volumes of the host",
                json!({ "Volumes": { "/": {}, "/etc": {}, "../../..": {}, "/proc": {}, "\u{1b}": {} } }),
            ),
            (
                "ports that are none",
                json!({ "ExposedPorts": { "99999/tcp": {}, "-1": {}, "\u{1b}[2J/udp": {} } }),
            ),
            (
                "a check that runs",
                json!({ "Healthcheck": { "Test": ["CMD-SHELL", "touch /by-image"], "Interval": -1 } }),
            ),
            ("instructions for builders", json!({ "OnBuild": ["RUN touch /by-image"] })),
            ("a shell", json!({ "Shell": ["/proc/1/exe"] })),
            ("a host name", json!({ "Hostname": "\u{1b}[2J", "Domainname": "../.." })),
            (
                "words of Docker",
                json!({ "Privileged": true, "NetworkMode": "host", "Binds": ["/:/host"], "AttachStdin": true }),
            ),
        ] {
            runs(&fixture, what, &runnable(&config, &RawLayer::new()));
        }
    }
}

/// Attack 11: what the image is for is text from anybody.
#[test]
fn a_platform_of_an_image_is_only_text() {
    for fixture in ImageFixture::each_runnable() {
        for (os, architecture, variant) in [
            ("windows", "amd64", ""),
            ("linux", "no-such-processor", ""),
            ("linux", "\u{1b}[2J", "\u{1b}[2J"),
            ("../../..", "../../..", "../.."),
            ("", "", ""),
            ("linux", "amd64", "\n"),
        ] {
            let blob = busybox();
            let config = json!({
                "os": os,
                "architecture": architecture,
                "variant": variant,
                "rootfs": { "type": "layers", "diff_ids": [blob.diff_id] },
            });
            let image = RawImage::with_config([blob], config.to_string());
            let (name, gave) = fixture.bring(&image, Transfer::DockerArchive);
            let what = format!("{os:?} {architecture:?} as {}", fixture.msb.uid());
            assert!(is_printable(&gave.stderr) && is_printable(&gave.stdout), "{what}: {gave:#?}");
            if gave.code == 0 {
                for words in [
                    vec!["image", "ls"],
                    vec!["image", "inspect", &name],
                    vec!["run", &name, "--", "true"],
                ] {
                    let gave = fixture.msb.run(words);
                    let printable = is_printable(&gave.stderr) && is_printable(&gave.stdout);
                    assert!(printable, "{what}: {gave:#?}");
                }
                fixture.forget(&what, &name);
            }
            fixture.is_unharmed(&what);
        }
    }
}
