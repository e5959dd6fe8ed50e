//! What goes wrong is told with its line, and leaves nothing behind.

use super::Project;
use msb_e2e::{Msb, Process, ends, eventually, signal_pid};
use std::fs;

#[test]
fn failures_name_the_line_and_the_reason() {
    for msb in Msb::each() {
        let project = Project::new(&msb);
        for (text, error) in [
            ("FROM base\n\nFOO bar\n", "Containerfile:3: unknown instruction 'FOO'"),
            ("RUN x\n", "Containerfile:1: expected FROM"),
            (
                "FROM base\nRUN exit 3\n",
                "Containerfile:2: the command ended with exit code 3: `RUN exit 3`",
            ),
            (
                "FROM base\nRUN kill -9 $$\n",
                "Containerfile:2: the command ended with signal 9: `RUN kill -9 $$`",
            ),
            ("FROM base\nRUN [\"/nope\"]\n", "Containerfile:2: command not found: `/nope`"),
            (
                "FROM base\nRUN --mount=type=cache,target=/x true\n",
                "Containerfile:2: this flag of RUN is not supported: `--mount=type=cache,target=/x`",
            ),
            (
                "FROM base\nRUN --network=host true\n",
                "Containerfile:2: this flag of RUN is not supported: `--network=host`",
            ),
            (
                "FROM base\nADD https://x.example/y /z\n",
                "Containerfile:2: ADD from the network: `https://x.example/y`",
            ),
            ("FROM base\nCOPY nope /x\n", "Containerfile:2: nothing to copy at `nope`"),
            (
                "FROM base\nCOPY --chown=ghost Containerfile /x\n",
                "Containerfile:2: the image has no user or group `ghost`",
            ),
            ("FROM base\nUSER ghost\nRUN id\n", "Containerfile:3: no such user inside: `ghost`"),
            ("FROM base\nENV a=\"${b:?say b}\"\n", "Containerfile:2: `b`: say b"),
            (
                "FROM base\nCOPY <<E /x\n",
                "Containerfile:2: the here-document is not terminated: `E`",
            ),
            ("FROM host\n", "Containerfile:1: nothing can be built on `host`"),
            ("FROM ./dir\n", "Containerfile:1: not the name of an image: `./dir`"),
            (
                "FROM scratch\nRUN true\n",
                "Containerfile:2: there is nothing to run in an image without files",
            ),
            ("FROM scratch\nLABEL a=b\n", "the image would hold no files"),
        ] {
            let gave = project.build_with(text, &[]);
            let told = gave.stderr.lines().find_map(|line| line.strip_prefix("error: "));
            assert_eq!((gave.code, told), (125, Some(error)), "{text}{gave:#?}");
        }
        let gave = project.build_with("FROM base\nRUN wget http://x.example/\n", &["-q"]);
        assert!(gave.stderr.contains("bad address"), "what a command said is told: {gave:#?}");
        assert!(
            gave.stderr.contains("hint: it had no network: `--net` gives it one, or"),
            "{gave:#?}"
        );
        let images = msb.json(["image", "ls", "--json"]);
        assert_eq!(images.as_array().unwrap().len(), 1, "{images}");
        eventually("nothing is left", || leftovers(&msb).is_empty());
        let gave = msb.run([
            "build",
            "-t",
            "a@sha256:0123456789012345678901234567890123456789012345678901234567890123",
            "./project",
        ]);
        assert_eq!(gave.code, 125, "{gave:#?}");
        for args in [["build", "-t", "x", "./none"], ["build", "-t", "x", "./home"]] {
            assert!(msb.run(args).stderr.starts_with("error: no "), "{args:?}");
        }
    }
}

#[test]
fn an_argument_that_nothing_uses_is_noted() {
    let msb = Msb::new();
    let project = Project::new(&msb);
    let gave = project
        .build_with(
            "FROM base\nARG used\nRUN true\n",
            &["--build-arg", "used=1", "--build-arg", "lost=2"],
        )
        .ok();
    let notes: Vec<&str> = gave.stderr.lines().filter(|line| line.starts_with("note:")).collect();
    assert_eq!(notes, ["note: nothing uses the build argument `lost`: no ARG declares it"]);
}

#[test]
fn a_build_that_is_killed_leaves_nothing() {
    for msb in Msb::each() {
        let project = Project::new(&msb);
        let text = "FROM base\n\
        RUN mkdir /d && chown 33:33 /d && chmod 700 /d && echo x > /d/f && sleep 1000\n";
        project.file("Containerfile", text);
        for signal in ["KILL", "INT"] {
            let build = msb.spawn(["build", "-t", "built", "./project"]);
            let running = || {
                let list = msb.json(["ls", "--json"]);
                let names: Vec<String> = list
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|one| one["name"].as_str().unwrap().to_owned())
                    .collect();
                names.first().cloned()
            };
            eventually("its sandbox runs", || running().is_some());
            let name = running().unwrap();
            assert!(name.starts_with("build-"), "{name}");
            eventually("the command runs", || {
                msb.processes(&name).iter().any(|one| one.name == "sleep")
            });
            let processes: Vec<Process> = msb.processes(&name);
            signal_pid(build.id(), signal);
            assert_ne!(ends(build).code, 0);
            eventually("all of it has ended", || processes.iter().all(|one| !one.is_alive()));
            // The next command clears up.
            msb.words("ls").ok();
            eventually("nothing is left", || leftovers(&msb).is_empty());
            let images = msb.json(["image", "ls", "--json"]);
            assert_eq!(images.as_array().unwrap().len(), 1, "{images}");
        }
        project.build("FROM base\nRUN true\n");
    }
}

/// What is left of sandboxes and of what they wrote.
fn leftovers(msb: &Msb) -> Vec<String> {
    let names = |directory: &str| -> Vec<String> {
        let entries = fs::read_dir(msb.home().join(directory)).into_iter().flatten().flatten();
        let names =
            entries.map(|entry| format!("{directory}/{}", entry.file_name().to_string_lossy()));
        names.filter(|name| !name.ends_with(".json")).collect()
    };
    [names("sandboxes"), names("build"), names("partial")].concat()
}
