//! What we build is what other builders build, and other tools read it.

use super::Project;
use msb_e2e::images::{lister, unpack};
use msb_e2e::{CmdOutput, Msb, skip};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn run(program: &str, args: &[&str]) -> CmdOutput {
    Command::new(program).args(args).output().expect("it is installed").into()
}

/// The config of an image, as skopeo reads it.
fn config(image: &str) -> Value {
    let text = run("skopeo", &["inspect", "--config", image]).ok().stdout;
    serde_json::from_str(&text).expect("JSON")
}

/// Every entry of a tree in a line, without its time, without what matches.
fn listed(root: &Path, without: &[&str]) -> Vec<String> {
    let gave = Command::new(lister()).arg(".").current_dir(root).output().expect("just compiled");
    let gave = CmdOutput::from(gave).ok();
    let untimed = |line: &str| -> String {
        line.split(' ').filter(|word| !word.starts_with("modified=")).collect::<Vec<_>>().join(" ")
    };
    let other = |line: &&str| {
        let path = line.split(' ').next().unwrap_or_default();
        !without.iter().any(|top| path == *top || path.starts_with(&format!("{top}/")))
    };
    gave.stdout.lines().filter(other).map(untimed).collect()
}

const TEXT: &str = "FROM scratch\n\
    COPY busybox /bin/busybox\n\
    RUN [\"/bin/busybox\", \"--install\", \"-s\", \"/bin\"]\n\
    ENV A=1 B=\"x $A\"\n\
    LABEL l=\"a b\" m=n\n\
    WORKDIR /w/x\n\
    COPY hello d /w/y/\n\
    COPY --chown=7:8 --chmod=640 hello own\n\
    ADD packed.tar /unpacked/\n\
    RUN echo $A > file && ln -s file link && ln file hard && mkdir -m 700 dir && rm /w/y/e/x && chown 3:4 dir\n\
    EXPOSE 80 90/udp\n\
    VOLUME /vol\n\
    STOPSIGNAL SIGINT\n\
    USER 5\n\
    ENTRYPOINT [\"/bin/sh\"]\n\
    CMD [\"-c\", \"true\"]\n";

fn project(msb: &Msb) -> Project<'_> {
    let project = Project::new(msb);
    project.file("busybox", std::fs::read("/bin/busybox").expect("busybox-static is installed"));
    let busybox = msb.scratch().join("project/busybox");
    std::fs::set_permissions(busybox, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("a file of ours");
    project.file("hello", "hello");
    project.file("d/e/x", "x");
    project.file("d/z", "z");
    let entries = [msb_e2e::tar::Entry::file("t/f", "f").owner(9, 10).mode(0o600)];
    project.file("packed.tar", msb_e2e::tar::Tar::default().with(entries).bytes());
    project
}

#[test]
fn buildah_makes_the_same_of_the_same() {
    let msb = Msb::new();
    if !msb.is_root() {
        return skip("buildah needs ids that only root can give away");
    }
    let project = project(&msb);
    project.build(TEXT);
    let scratch = msb.scratch().to_str().unwrap();
    let (ours, theirs) = (format!("{scratch}/ours"), format!("{scratch}/theirs"));
    let archive = format!("{scratch}/built.tar");
    msb.run(["save", "-o", &archive, "built"]).ok();
    run("skopeo", &["copy", "-q", &format!("oci-archive:{archive}"), &format!("oci:{ours}:built")])
        .ok();
    let store = [format!("{scratch}/store/root"), format!("{scratch}/store/run")];
    let buildah = |args: &[&str]| {
        let place = ["--root", &store[0], "--runroot", &store[1], "--storage-driver", "vfs"];
        run("buildah", &[&place, args].concat())
    };
    let (file, directory) =
        (format!("{scratch}/project/Containerfile"), format!("{scratch}/project"));
    let gave = buildah(&[
        "build",
        "--isolation",
        "chroot",
        "--format",
        "oci",
        "-q",
        "-t",
        "built",
        "-f",
        &file,
        &directory,
    ]);
    if gave.code != 0 {
        return skip(&format!("buildah does not build here: {}", gave.stderr));
    }
    buildah(&["push", "-q", "built", &format!("oci:{theirs}:built")]).ok();
    let (own, other) =
        (config(&format!("oci:{ours}:built")), config(&format!("oci:{theirs}:built")));
    let mut labels = other["config"]["Labels"].clone();
    labels.as_object_mut().unwrap().remove("io.buildah.version");
    assert_eq!(own["config"]["Labels"], labels);
    for word in
        ["Env", "Entrypoint", "Cmd", "WorkingDir", "User", "ExposedPorts", "Volumes", "StopSignal"]
    {
        assert_eq!(own["config"][word], other["config"][word], "{word}");
    }
    // What its own runtime leaves behind.
    let runtime = ["./dev", "./etc", "./proc", "./run", "./sys"];
    let trees =
        [&ours, &theirs].map(|layout| listed(&unpack(Path::new(layout), "built"), &runtime));
    let [own, other] = trees;
    assert!(own.len() > 200, "{}", own.len());
    assert_eq!(own, other);
    buildah(&["rmi", "-a", "-f"]).ok();
}

#[test]
fn other_tools_read_what_is_built() {
    for msb in Msb::each() {
        let project = project(&msb);
        project.build(TEXT);
        let scratch = msb.scratch().to_str().unwrap();
        msb.run(["save", "-o", "built.tar", "built"]).ok();
        let archive = format!("oci-archive:{scratch}/built.tar");
        let found = config(&archive);
        let history = found["history"].as_array().unwrap();
        let layers = history.iter().filter(|one| one["empty_layer"] != true).count();
        assert_eq!(layers, found["rootfs"]["diff_ids"].as_array().unwrap().len());
        assert_eq!(history[0]["created_by"], "COPY busybox /bin/busybox");
        run("skopeo", &["copy", "-q", &archive, &format!("oci:{scratch}/layout:built")]).ok();
        let store = format!("{scratch}/podman");
        let (root, state) = (format!("{store}/root"), format!("{store}/run"));
        let podman = |args: &[&str]| {
            let place = ["--root", &root, "--runroot", &state, "--storage-driver", "vfs"];
            run("podman", &[&place, args].concat())
        };
        podman(&["load", "-q", "-i", &format!("{scratch}/built.tar")]).ok();
        let format = "{{.Config.User}} {{.Config.WorkingDir}} {{.Config.StopSignal}}";
        let inspected =
            podman(&["image", "inspect", "--format", format, "docker.io/library/built:latest"]);
        assert_eq!(inspected.line(), "5 /w/x SIGINT");
        podman(&["rmi", "-a", "-f"]).ok();
        if msb.is_root() {
            let tree = listed(&unpack(Path::new(&format!("{scratch}/layout")), "built"), &[]);
            let line = |path: &str| {
                let found = tree.iter().find(|line| line.starts_with(&format!("{path} ")));
                found.unwrap_or_else(|| panic!("no {path}")).clone()
            };
            assert!(line("./w/x/own").contains("mode=100640 owner=7:8"), "{}", line("./w/x/own"));
            assert!(line("./w/x/dir").contains("mode=040700 owner=3:4"), "{}", line("./w/x/dir"));
            assert!(line("./unpacked/t/f").contains("mode=100600 owner=9:10"));
        }
    }
}
