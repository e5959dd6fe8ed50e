use super::super::step::Containerfile;
use super::*;
use std::collections::BTreeMap;

fn image() -> ImageConfig {
    serde_json::from_str(
        r#"{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":[]},
            "config":{"Env":["PATH=/bin","HOME=/r"],"Cmd":["old"],"WorkingDir":"/w",
            "OnBuild":["RUN x"]}}"#,
    )
    .unwrap()
}

/// Every step of the only stage, on top of `image`.
fn assembled(text: &str) -> (StageBuilder, Vec<StepAction>) {
    let file = Containerfile::parse("f", &format!("FROM a\n{text}")).unwrap();
    let given = BTreeMap::from([("given".to_owned(), "g".to_owned())]);
    let globals = Globals::new(&file, given, "linux/amd64", "linux/amd64").unwrap();
    let mut assembly = StageBuilder::new(image(), "f", file.escape);
    let work = file.stages[0].steps.iter().map(|step| assembly.step(&globals, step).unwrap());
    let work = work.collect();
    (assembly, work)
}

fn refused(text: &str) -> Error {
    let file = Containerfile::parse("f", &format!("FROM a\n{text}")).unwrap();
    let globals = Globals::new(&file, BTreeMap::new(), "linux/amd64", "linux/amd64").unwrap();
    let mut assembly = StageBuilder::new(image(), "f", file.escape);
    assembly.step(&globals, &file.stages[0].steps[0]).unwrap_err()
}

#[test]
fn settings_are_kept_in_the_image() {
    let (assembly, work) = assembled(
        "ENV a=1 HOME=/h\nENV b=$a$HOME c=${nope:-x}\nLABEL l=\"$b d\"\nUSER 1:2\n\
        EXPOSE 80 $a-2/udp\n\
         VOLUME /v [\nVOLUME [\"/a b\"]\nSTOPSIGNAL SIGINT\nMAINTAINER me\nONBUILD RUN y\n\
         HEALTHCHECK CMD [\"x\"]\nSHELL [\"/bin/bash\", \"-ec\"]\nCMD echo\nENTRYPOINT [\"/e\"]\n",
    );
    assert!(work.iter().all(|work| *work == StepAction::Settings));
    let written = serde_json::to_value(&assembly.image).unwrap();
    assert_eq!(
        written["config"],
        serde_json::json!({
            "Env": ["PATH=/bin", "HOME=/h", "a=1", "b=1/h", "c=x"],
            "Labels": {"l": "1/h d"},
            "User": "1:2",
            "ExposedPorts": {"80/tcp": {}, "1/udp": {}, "2/udp": {}},
            "Volumes": {"/v": {}, "[": {}, "/a b": {}},
            "StopSignal": "SIGINT",
            "WorkingDir": "/w",
            "OnBuild": ["RUN x", "RUN y"],
            "Healthcheck": {"Test": ["CMD", "x"]},
            "Shell": ["/bin/bash", "-ec"],
            "Cmd": ["/bin/bash", "-ec", "echo"],
            "Entrypoint": ["/e"],
        })
    );
    assert_eq!(written["author"], "me");
}

#[test]
fn variables_of_one_line_see_what_was_before_it() {
    let (assembly, _) = assembled("ENV abc=hello\nENV abc=bye def=$abc\nENV ghi=$abc\n");
    assert_eq!(assembly.environment()[2..], ["abc=bye", "def=hello", "ghi=bye"]);
}

#[test]
fn an_entrypoint_drops_what_the_image_below_would_run() {
    assert_eq!(assembled("ENTRYPOINT [\"/e\"]\n").0.image.config.cmd, None);
    let kept = assembled("CMD [\"new\"]\nENTRYPOINT [\"/e\"]\n").0.image.config.cmd;
    assert_eq!(kept, Some(vec!["new".to_owned()]));
}

#[test]
fn run_sees_variables_of_image_and_build() {
    let (_, work) =
        assembled("ARG given\nARG d=1\nARG HOME=/no\nUSER u\nWORKDIR x/../y\nRUN echo\n");
    assert_eq!(work[4], StepAction::Directory("/w/y".to_owned()));
    let StepAction::Run(job) = &work[5] else { panic!("{work:?}") };
    let env: Vec<_> = job.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(env, ["HOME=/no", "d=1", "given=g", "PATH=/bin", "HOME=/r"]);
    assert_eq!((job.workdir.as_str(), job.user.as_ref().unwrap().user()), ("/w/y", "u"));
    let words = ["/bin/sh", "-c", "echo"].map(str::to_owned).to_vec();
    assert_eq!(job.command, RunCommand::Words(words));
}

#[test]
fn copies_are_expanded_and_made_absolute() {
    let (_, work) = assembled("ARG d=1\nCOPY --chown=$d:$d --chmod=0755 a$d ../t/\nCOPY b c\n");
    let StepAction::Copy(copying) = &work[1] else { panic!("{work:?}") };
    assert_eq!(copying.sources, [CopySource::Path("a1".to_owned())]);
    assert_eq!((copying.target.as_str(), copying.into), ("/t", true));
    assert_eq!(copying.mode, Some(0o755));
    assert_eq!(copying.owner.as_ref().unwrap().to_string(), "1:1");
    let StepAction::Copy(copying) = &work[2] else { panic!("{work:?}") };
    assert_eq!((copying.target.as_str(), copying.into), ("/w/c", false));
}

#[test]
fn what_is_wrong_names_its_line() {
    for text in [
        "EXPOSE x\n",
        "EXPOSE 5-1\n",
        "EXPOSE 80/icmp\n",
        "ENV a=${b\n",
        "STOPSIGNAL no such\n",
        "COPY --chmod=u+x a b\n",
        "COPY --chown=a:b:c a b\n",
        "WORKDIR \"/a\n",
    ] {
        let error = refused(text);
        assert!(error.message().starts_with("f:2: "), "{text}: {error}");
    }
}
