use super::*;
use msb_spec::Kind;

fn parse(text: &str) -> Containerfile {
    Containerfile::parse("Containerfile", text).unwrap()
}

fn refused(text: &str) -> Error {
    Containerfile::parse("Containerfile", text).unwrap_err()
}

fn only(text: &str) -> Instruction {
    let file = parse(&format!("FROM scratch\n{text}"));
    assert_eq!(file.stages[0].steps.len(), 1, "{text}");
    file.stages[0].steps[0].instruction.clone()
}

fn shell(text: &str) -> Instruction {
    runs(RunProgram::Command(CommandForm::Shell(text.to_owned())))
}

fn runs(program: RunProgram) -> Instruction {
    Instruction::Run(RunInstruction { program, network: true })
}

#[test]
fn stages_and_what_stands_before_them_are_found() {
    let file = parse(
        "# syntax=docker/dockerfile:1\n\nARG A=1 B\nFROM --platform=$X alpine:$A AS Build\n\
         RUN true\nFROM build\nFROM scratch as last\n",
    );
    assert_eq!(file.arguments.len(), 2);
    assert_eq!((file.arguments[0].default.as_deref(), file.arguments[0].line), (Some("1"), 3));
    let names: Vec<_> = file.stages.iter().map(|stage| stage.name.as_deref()).collect();
    assert_eq!(names, [Some("build"), None, Some("last")]);
    assert_eq!(file.stages[0].platform.as_deref(), Some("$X"));
    assert_eq!((file.stages[0].from.as_str(), file.stages[0].line), ("alpine:$A", 4));
}

#[test]
fn run_has_three_forms() {
    assert_eq!(only("RUN echo a && \\\n  # why\n\n  echo b\n"), shell("echo a &&   echo b"));
    let words = vec!["echo".to_owned(), "a b".to_owned()];
    assert_eq!(
        only("RUN [\"echo\", \"a b\"]"),
        runs(RunProgram::Command(CommandForm::Exec(words)))
    );
    // Invalid JSON is a shell form.
    assert_eq!(only("RUN [ -e /x ]"), shell("[ -e /x ]"));
    assert_eq!(only("RUN <<EOF\necho $a\necho b\nEOF\n"), shell("echo $a\necho b\n"));
    assert_eq!(only("RUN <<-EOF\n\techo a\n\tEOF\n"), shell("echo a\n"));
    let script = "#!/usr/bin/env python3\nprint(1)\n".to_owned();
    assert_eq!(only(&format!("RUN <<EOF\n{script}EOF\n")), runs(RunProgram::Script(script)));
    assert_eq!(
        only("RUN cat <<A <<'B' > /x\n1\nA\n2\nB\n"),
        shell("cat <<A <<'B' > /x\n1\nA\n2\nB\n")
    );
    assert_eq!(only("RUN --network=default --security=sandbox true"), shell("true"));
    let program = RunProgram::Command(CommandForm::Shell("true".to_owned()));
    let closed = Instruction::Run(RunInstruction { program, network: false });
    assert_eq!(only("RUN --network=none true"), closed);
}

#[test]
fn flags_that_are_not_supported_are_named() {
    for (text, flag) in [
        ("RUN --mount=type=cache,target=/x true", "--mount=type=cache,target=/x"),
        ("RUN --network=host true", "--network=host"),
        ("RUN --security=insecure true", "--security=insecure"),
        ("COPY --parents a b", "--parents"),
        ("ADD --checksum=sha256:0 a b", "--checksum"),
        ("ADD https://example.com/x /x", "https://example.com/x"),
    ] {
        let error = refused(&format!("FROM a\n\n{text}\n"));
        assert_eq!(error.kind(), Kind::Unsupported, "{text}");
        assert!(error.message().starts_with("Containerfile:3: "), "{error}");
        assert!(error.message().ends_with(&format!("`{flag}`")), "{error}");
    }
}

#[test]
fn errors_name_the_line() {
    for (text, line, part) in [
        ("FROM a\nFORM b\n", 2, "FORM"),
        ("RUN x\nFROM a\n", 1, "FROM"),
        ("FROM a\nCOPY x\n", 2, "two"),
        ("FROM a\nENV a\n", 2, "`a`"),
        ("FROM a\nENV a=1 b\n", 2, "`b`"),
        ("FROM a\nRUN --nope x\n", 2, "--nope"),
        ("FROM a\nRUN\n", 2, "command"),
        ("FROM a\nHEALTHCHECK --interval=x CMD y\n", 2, "`x`"),
        ("FROM a\nHEALTHCHECK CMD\n", 2, "command"),
        ("FROM a\nCOPY <<E /x\n", 2, "`E`"),
        ("FROM a\nONBUILD FROM b\n", 2, "ONBUILD"),
        ("FROM a\nSHELL sh\n", 2, "JSON"),
        ("FROM a AS 1x\n", 1, "`1x`"),
        ("FROM a AS x\nFROM b AS x\n", 2, "x"),
        ("# nothing\n", 1, "FROM"),
        ("", 1, "FROM"),
    ] {
        let error = refused(text);
        let place = format!("Containerfile:{line}: ");
        assert!(error.message().starts_with(&place), "{text}: {error}");
        assert!(error.message().contains(part), "{text}: {error}");
    }
}

#[test]
fn copies_have_flags_sources_and_a_target() {
    let copy = |text: &str| match only(text) {
        Instruction::Copy(copy) => copy,
        other => panic!("{other:?}"),
    };
    let found = copy("COPY --chown=1:2 --chmod=755 --from=build --link a* \"b\" /to/\n");
    let paths = |copy: &CopyInstruction| -> Vec<String> {
        let path = |source: &CopySource| match source {
            CopySource::Path(path) => path.clone(),
            CopySource::Document { name, .. } => format!("<<{name}"),
        };
        copy.sources.iter().map(path).collect()
    };
    assert_eq!(paths(&found), ["a*", "\"b\""]);
    assert_eq!(found.owner.as_deref(), Some("1:2"));
    assert_eq!(found.mode.as_deref(), Some("755"));
    assert_eq!(found.from.as_deref(), Some("build"));
    assert_eq!(found.target, "/to/");
    assert!(!found.add && copy("ADD x y").add);
    assert_eq!(paths(&copy("COPY [\"a b\", \"c\"]")), ["a b"]);
    let files = copy("COPY <<one x <<\"two\" /d/\n1 $v\none\n2\ntwo\n");
    assert_eq!(paths(&files), ["<<one", "x", "<<two"]);
    let document = |name: &str, body: &str, expand| CopySource::Document {
        name: name.to_owned(),
        body: body.to_owned(),
        expand,
    };
    assert_eq!(files.sources[0], document("one", "1 $v\n", true));
    assert_eq!(files.sources[2], document("two", "2\n", false));
}

#[test]
fn env_and_label_have_two_forms() {
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    };
    assert_eq!(
        only("ENV a=1 b=\"x y\" \\\n  c=d\\ e"),
        Instruction::Env(pairs(&[("a", "1"), ("b", "\"x y\""), ("c", "d\\ e")]))
    );
    assert_eq!(only("ENV a  b  c= d"), Instruction::Env(pairs(&[("a", "b  c= d")])));
    assert_eq!(only("LABEL \"a.b\"=c"), Instruction::Label(pairs(&[("\"a.b\"", "c")])));
    assert_eq!(only("ENV a="), Instruction::Env(pairs(&[("a", "")])));
}

#[test]
fn another_escape_is_taken() {
    let file = parse("# escape=`\nFROM a\nRUN dir `\n  c:\\\nRUN x\n");
    assert_eq!(file.escape, '`');
    assert_eq!(file.stages[0].steps.len(), 2);
    assert_eq!(file.stages[0].steps[0].instruction, shell("dir   c:\\"));
    assert_eq!(file.stages[0].steps[1].line, 5);
}

#[test]
fn health_checks_are_read_with_their_times() {
    let found =
        only("HEALTHCHECK --interval=1m30s --timeout=1.5s --retries=3 CMD curl x || exit 1");
    let Instruction::Healthcheck(Healthcheck::Test { command, interval, timeout, retries, .. }) =
        found
    else {
        panic!("{found:?}")
    };
    assert_eq!(command, CommandForm::Shell("curl x || exit 1".to_owned()));
    assert_eq!((interval, timeout), (Some(90_000_000_000), Some(1_500_000_000)));
    assert_eq!(retries, Some(3));
    assert_eq!(only("HEALTHCHECK NONE"), Instruction::Healthcheck(Healthcheck::None));
}

#[test]
fn triggers_are_kept_and_can_be_read_again() {
    let found = only("ONBUILD RUN a \\\n && b");
    assert_eq!(found, Instruction::Onbuild("RUN a && b".to_owned()));
    let steps = Containerfile::parse_trigger("x", "RUN a && b").unwrap();
    assert_eq!(steps[0].instruction, shell("a && b"));
    assert!(Containerfile::parse_trigger("x", "RUN a\nFROM y").is_err());
}

#[test]
fn steps_are_shown_on_one_line() {
    let file = parse("FROM a\n\nRUN  echo   a && \\\n    # no\n    echo b\nRUN cat <<E\nx\nE\n");
    assert_eq!(file.stages[0].steps[0].text, "RUN echo a && echo b");
    assert_eq!((file.stages[0].steps[1].line, &*file.stages[0].steps[1].text), (6, "RUN cat <<E"));
}

#[test]
fn windows_line_ends_and_marks_are_understood() {
    let file = parse("\u{feff}FROM a\r\nRUN x && \\\r\n  y\r\nENV a=b\r\n");
    assert_eq!(file.stages[0].steps[0].instruction, shell("x &&   y"));
    let pair = ("a".to_owned(), "b".to_owned());
    assert_eq!(file.stages[0].steps[1].instruction, Instruction::Env(vec![pair]));
}

#[test]
fn nothing_that_can_be_typed_panics() {
    let parts = [
        "FROM a",
        "RUN ",
        "<<E",
        "\n",
        "\\",
        "\r",
        "[\"",
        "]",
        "\"",
        "'",
        "${",
        "é",
        "#",
        "COPY a b",
        "--x",
        "=",
        "\t",
        "ONBUILD ",
        "E\n",
        "HEALTHCHECK ",
        "ENV ",
        "\u{feff}",
        "`",
    ];
    let mut seed = 1u64;
    for _ in 0..20_000 {
        let mut text = String::from("FROM a\n");
        for _ in 0..8 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text.push_str(parts[(seed >> 33) as usize % parts.len()]);
        }
        let _ = Containerfile::parse("f", &text);
    }
}
