//! Instructions, one by one and together; what is done again and what is not.

use super::{Project, cached, steps_of};
use msb_e2e::images::own_architecture;
use msb_e2e::{Msb, skip};
use serde_json::json;

#[test]
fn settings_are_kept_in_the_image() {
    for msb in Msb::each() {
        let project = Project::new(&msb);
        project.build(
            "FROM base\nMAINTAINER me\nARG who=world\nENV A=1 B=\"hello $who\"\nENV C two words\n\
             LABEL a.b=\"c d\" e=$A\nEXPOSE 80 9000-9001/udp\nVOLUME /data /more\n\
             STOPSIGNAL SIGINT\n\
             HEALTHCHECK --interval=5s --retries=2 CMD true\nWORKDIR /w\nWORKDIR sub\n\
             SHELL [\"/bin/sh\", \"-ec\"]\nUSER web\nENTRYPOINT [\"echo\"]\nCMD [\"said\"]\n\
             ONBUILD RUN true\n",
        );
        assert_eq!(
            project.config(),
            json!({
                "env": ["PATH=/bin:/usr/bin", "A=1", "B=hello world", "C=two words"],
                "entrypoint": ["echo"],
                "cmd": ["said"],
                "workdir": "/w/sub",
                "user": "web",
                "labels": {"a.b": "c d", "e": "1"},
                "exposed_ports": ["80/tcp", "9000/udp", "9001/udp"],
                "volumes": ["/data", "/more"],
                "stop_signal": "SIGINT",
                "shell": ["/bin/sh", "-ec"],
                "healthcheck": {
                    "Test": ["CMD-SHELL", "true"],
                    "Interval": 5_000_000_000u64,
                    "Retries": 2,
                },
            })
        );
        assert_eq!(msb.run(["run", "built"]).line(), "said");
        assert_eq!(msb.run(["run", "built", "--", "other"]).line(), "other");
        assert_eq!(project.says("pwd; id -un"), "/w/sub\nweb");
    }
}

#[test]
fn run_has_every_form() {
    for msb in Msb::each() {
        let project = Project::new(&msb);
        let gave = project.build(
            "FROM base\n\
             RUN echo shell $((1 + 1)) > /a && \\\n    # between\n    echo more >> /a\n\
             RUN [\"/bin/sh\", \"-c\", \"echo $0 > /b\", \"exec\"]\n\
             RUN <<EOF\nset -e\necho one > /c\necho two >> /c\nEOF\n\
             RUN cat <<A > /d && cat <<'B' >> /d\nfirst $PATH\nA\nsecond $PATH\nB\n\
             RUN <<-END\n#!/bin/busybox sh\necho script $0 > /e\n\tEND\n\
             SHELL [\"/bin/busybox\", \"sh\", \"-c\"]\nRUN echo seen; echo $0 > /f\n",
        );
        assert_eq!(
            project.says("cat /a /b /c /d /e"),
            "shell 2\nmore\nexec\none\ntwo\nfirst /bin:/usr/bin\nsecond $PATH\n\
            script /.msb/build-step"
        );
        assert!(gave.stderr.lines().any(|line| line == "seen"), "{gave:#?}");
        assert_eq!(gave.stdout.lines().count(), 1, "{gave:#?}");
        // Nothing of the sandbox itself is in the image.
        assert_eq!(project.says("ls -a / | grep msb; true"), "");
    }
}

#[test]
fn run_sees_variables_user_and_directory() {
    for msb in Msb::each() {
        let project = Project::new(&msb);
        let text = "ARG v=1\nFROM base\nARG v\nARG own=default\nARG TARGETARCH\nENV e=$own\n\
                    RUN echo $v $own $TARGETARCH $e > /args; env > /env; hostname > /name\n\
                    WORKDIR /home/web\nUSER web\nRUN pwd > where; id -u > who; echo $HOME > home\n\
                    USER 7:8\nRUN id -u > /tmp/number; id -g >> /tmp/number\n";
        project.build_with(text, &["--build-arg", "own=given"]).ok();
        let arch = own_architecture();
        assert_eq!(project.says("cat /args"), format!("1 given {arch} given"));
        assert_eq!(
            project.says("cat /home/web/where /home/web/who /home/web/home"),
            "/home/web\n33\n/home/web"
        );
        assert_eq!(
            project.says("cat /tmp/number; stat -c %u:%g /tmp/number /home/web/who"),
            "7\n8\n7:8\n33:33"
        );
        // What differs from build to build is not told to a step.
        assert_eq!(project.says("grep -c MSB_ /env; cat /name"), "0\nbuild");
    }
}

#[test]
fn what_run_changes_is_the_layer() {
    for msb in Msb::each() {
        let project = Project::new(&msb);
        project.build(
            "FROM base\n\
             RUN mkdir -p /d/old /gone && echo 1 > /d/old/a && echo 2 > /gone/b && echo 3 > /file\n\
             RUN rm -r /gone /file /d/old && mkdir /d/old && echo new > /d/old/c\n\
             RUN ln -s /d /link && ln /d/old/c /d/hard && mkfifo /d/fifo && chmod 4755 /d/old/c\n\
             RUN chown 5:6 /d && chmod 1770 /d && mkdir /file && rm /bin/vi\n",
        );
        assert_eq!(
            project.says(
                "cd /; ls -d gone; ls d/old; cat d/hard; stat -c '%a %u:%g' d d/old/c; \
                 ls -d file; ls bin/vi; readlink link"
            ),
            "c\nnew\n1770 5:6\n4755 0:0\nfile\n/d"
        );
        assert_eq!(
            project.says("test -p /d/fifo && test /d/hard -ef /d/old/c && echo same"),
            "same"
        );
    }
}

#[test]
fn cached_steps_are_not_run_again() {
    for msb in Msb::each_with_own_layers() {
        let project = Project::new(&msb);
        project.file("a", "1");
        project.file("b", "1");
        let text = "FROM base\nCOPY a /a\n\
        RUN cat /a > /made; cat /proc/sys/kernel/random/uuid > /id\nCOPY b /b\nARG x\n\
        RUN echo $x > /x\n";
        let first = project.build(text);
        assert_eq!(cached(&first), 0);
        let again = project.build(text);
        assert_eq!(cached(&again), 4, "{again:#?}");
        assert_eq!(again.stdout, first.stdout);
        let id = project.says("cat /id");
        // A change counts from where it is on; a new time is none.
        project.file("b", "2");
        project.file("a", "1");
        assert_eq!(cached(&project.build(text)), 2);
        assert_eq!((project.says("cat /id"), project.says("cat /b")), (id.clone(), "2".to_owned()));
        assert_eq!(cached(&project.build_with(text, &["--build-arg", "x=y"]).ok()), 3);
        assert_eq!(project.says("cat /x"), "y");
        // What only describes the image makes nothing anew.
        assert_eq!(cached(&project.build(&text.replace("COPY a", "LABEL l=m\nCOPY a"))), 4);
        let fresh = project.build_with(text, &["--no-cache"]).ok();
        assert_eq!(cached(&fresh), 0);
        assert_ne!(project.says("cat /id"), id);
        // Without its layers a step is done again.
        msb.words("image rm built").ok();
        msb.words("image prune").ok();
        assert_eq!(cached(&project.build(text)), 0);
    }
}

#[test]
fn only_the_stages_that_are_needed_are_built() {
    for msb in Msb::each() {
        let project = Project::new(&msb);
        let text = "FROM base AS one\nRUN echo 1 > /one\nFROM base AS broken\nRUN false\n\
                    FROM one AS two\nRUN echo 2 > /two\n\
                    FROM scratch\nCOPY --from=base / /\nCOPY --from=two /one /two /from/\n\
                    COPY --from=0 /one /zero\n";
        let gave = project.build(text);
        assert!(steps_of(&gave).iter().all(|line| !line.contains("false")), "{gave:#?}");
        assert_eq!(project.says("cat /from/one /from/two /zero"), "1\n2\n1");
        project.build_with(text, &["--target", "one"]).ok();
        assert_eq!(
            project.says("ls /one /two 2>&1 | head -1"),
            "ls: /two: No such file or directory"
        );
        let gave = project.build_with(text, &["--target", "thre"]);
        assert_eq!(
            (gave.code, gave.stderr.lines().next()),
            (125, Some("error: no stage is called `thre`"))
        );
        let gave = project.build_with(text, &["--target", "broken"]);
        assert!(gave.stderr.contains("error: Containerfile:4: "), "{gave:#?}");
    }
}

#[test]
fn instructions_that_an_image_keeps_for_later_are_done() {
    for msb in Msb::each() {
        let project = Project::new(&msb);
        project.file("app", "mine");
        project.build("FROM base\nONBUILD COPY app /app\nONBUILD RUN cat /app > /seen\n");
        assert_eq!(project.says("ls /app 2>/dev/null; true"), "");
        let gave = msb
            .run_with(
                ["build", "-t", "built", "-f", "-", "./project"],
                b"FROM built\nRUN echo last\n",
            )
            .ok();
        assert_eq!(steps_of(&gave).len(), 4, "{gave:#?}");
        assert_eq!(project.says("cat /seen"), "mine");
        assert_eq!(project.config().get("on_build"), None);
    }
}

#[test]
fn the_same_build_at_another_time_is_the_same_image() {
    for msb in Msb::each() {
        let project = Project::new(&msb);
        project.file("dir/file", "x");
        let text = "FROM base\nWORKDIR /w\nCOPY dir /d/\nCOPY <<E /e\ntext\nE\n\
        RUN echo 1 > /made && rm /bin/vi\nLABEL a=b\n";
        project.file("Containerfile", text);
        let build = || {
            let args = ["build", "-q", "--no-cache", "-t", "built", "./project"];
            let output = msb.command(args).env("SOURCE_DATE_EPOCH", "1600000000").output().unwrap();
            msb_e2e::CmdOutput::from(output).line()
        };
        assert_eq!(build(), build());
        let inspected = msb.json(["image", "inspect", "built", "--json"]);
        assert_eq!(inspected["created"], "2020-09-13T12:26:40.000Z");
        assert_eq!(project.says("stat -c %Y /made /d/file /e | sort -u"), "1600000000");
        let gave = msb
            .command(["build", "-t", "x", "./project"])
            .env("SOURCE_DATE_EPOCH", "x")
            .output()
            .unwrap();
        assert_eq!(gave.status.code(), Some(125));
    }
}

#[test]
fn the_containerfile_is_found_where_it_may_be() {
    let msb = Msb::new();
    let project = Project::new(&msb);
    project.file("Dockerfile", "FROM base\nRUN echo docker > /which\n");
    msb.run(["build", "-q", "-t", "built", "./project"]).ok();
    assert_eq!(project.says("cat /which"), "docker");
    project.file("Containerfile", "FROM base\nRUN echo container > /which\n");
    msb.run(["build", "-q", "-t", "built", "./project"]).ok();
    assert_eq!(project.says("cat /which"), "container");
    msb.file("elsewhere", "FROM base\nRUN echo elsewhere > /which\n");
    let gave = msb
        .run(["build", "-q", "-t", "built", "-t", "again:2", "-f", "elsewhere", "./project"])
        .ok();
    assert_eq!(project.says("cat /which"), "elsewhere");
    let names: Vec<&str> =
        gave.stdout.lines().filter_map(|line| line.split_once('@')).map(|(name, _)| name).collect();
    assert_eq!(names, ["docker.io/library/built:latest", "docker.io/library/again:2"]);
    assert_eq!(gave.stderr, "", "quiet is quiet");
    msb.run_with(
        ["build", "-q", "-t", "built", "-f", "-", "./project"],
        b"FROM base\nRUN echo stdin > /which\n",
    )
    .ok();
    assert_eq!(project.says("cat /which"), "stdin");
}

#[test]
fn an_image_may_have_the_same_layer_twice() {
    for msb in Msb::each() {
        let project = Project::new(&msb);
        project.file("a", "1");
        project.file("b", "2");
        project.build("FROM base\nCOPY a /x\nCOPY b /x\nCOPY a /x\nRUN cat /x > /y\n");
        assert_eq!(project.says("cat /x /y"), "11");
    }
}

#[test]
fn with_one_id_everything_but_other_users_works() {
    let Some(msb) = Msb::with_one_id() else {
        return skip("only root can become a user without granted ids");
    };
    let project = Project::new(&msb);
    project.file("a", "1");
    project.build(
        "FROM base\nCOPY --chown=5:6 a /a\nRUN chown 7:8 /a && ls /a && echo 2 > /b && rm /bin/vi\n\
         FROM scratch\nCOPY --from=base / /\nCOPY --from=0 /a /b /\n",
    );
    assert_eq!(project.says("cat /a /b; stat -c %u:%g /a"), "12\n0:0");
    let gave = project.build_with("FROM base\nUSER web\nRUN true\n", &[]);
    assert!(gave.stderr.contains("error: Containerfile:3: only root can exist"), "{gave:#?}");
    // Owners are kept in the archive, for users with subordinate ids.
    project.build("FROM base\nCOPY --chown=5:6 a /a\n");
    msb.run(["save", "-o", "built.tar", "built"]).ok();
    let archive = std::fs::read(msb.scratch().join("built.tar")).unwrap();
    let Some(root) = Some(Msb::with_own_layers()).filter(Msb::is_root) else { return };
    root.run_with(["load", "-t", "built"], &archive).ok();
    assert_eq!(root.run(["run", "built", "--", "stat", "-c", "%u:%g", "/a"]).line(), "5:6");
}
