//! What people type who know other tools: flags, verbs and lines without `--`.

use msb_e2e::terminal::Terminal;
use msb_e2e::{CmdOutput, Msb};

/// The exit code, and what was told on stderr without its line end.
#[expect(clippy::needless_pass_by_value, reason = "callers have no other use for it")]
fn told(gave: CmdOutput) -> (i32, String) {
    (gave.code, gave.stderr.trim_end().to_owned())
}

#[test]
fn a_command_needs_no_dashes_behind_an_image_or_a_sandbox() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        assert_eq!(msb.words("run host echo -n -e one").line(), "one");
        assert_eq!(msb.words("run -q host --pids 99 echo -d two").line(), "-d two");
        assert_eq!(msb.words("exec box echo -d three").line(), "-d three");
        assert_eq!(msb.words("exec box -w /tmp pwd").line(), "/tmp");
        assert_eq!(msb.words("exec box -- echo -- four").line(), "-- four");
        let help = msb.words("exec box ls --help").ok();
        assert!(help.stdout.contains("--almost-all"), "{help:?}");
    }
}

#[test]
fn a_flag_that_could_be_meant_for_msb_is_refused_with_the_lines_to_type() {
    let msb = Msb::new();
    let gave = told(msb.words("run host server --no-net"));
    let expected = "error: this could be meant for msb or for the command: `--no-net`\n\
                    hint: for the command: `msb run host -- server … --no-net`; for msb: \
                    `msb run --no-net … host -- server …`";
    assert_eq!(gave, (125, expected.to_owned()));
    let gave = msb.words("run host curl --env=TOKEN=hunter2");
    assert_eq!(gave.code, 125);
    assert!(!gave.stderr.contains("hunter2"), "{gave:?}");
    let gave = told(msb.words("exec box git log -- file"));
    let expected = "error: the command could start at `git` or behind `--`\n\
                    hint: write `msb exec box -- git …`";
    assert_eq!(gave, (125, expected.to_owned()));
}

#[test]
fn interactive_flags_are_taken() {
    for msb in Msb::each() {
        assert_eq!(msb.run_with(["run", "-i", "--", "cat"], b"typed").line(), "typed");
        let gave = msb.words("create -it -n box").ok();
        assert_eq!(gave.stdout, "box\n");
        assert!(gave.stderr.contains("`msb exec box` opens a shell"), "{gave:?}");
        assert_eq!(msb.run_with(["exec", "-i", "box", "cat"], b"typed").line(), "typed");
        let script = "test -t 0 && test -t 1 && echo terminal";
        let run = msb.command(["run", "-it", "host", "sh", "-c", script]);
        assert_eq!(Terminal::start(&run, 24, 80).ends(), (0, "terminal\n".to_owned()));
        for line in ["run -dit host", "exec -dit box true"] {
            let gave = msb.words(line);
            assert_eq!(gave.code, 125, "{line}");
            assert!(gave.stderr.contains("has no stdin and no terminal: `-it`"), "{gave:?}");
        }
        assert_eq!(msb.words("run -i --no-stdin -- true").code, 125);
    }
}

#[test]
fn attach_takes_interactive_flags_and_refuses_a_missing_terminal() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let id = msb.words("exec -d box sleep 1000").line();
        let gave = msb.run(["attach", "-it", "box", &id]);
        assert_eq!(gave.code, 125);
        assert!(gave.stderr.starts_with(&format!("error: command {id} has no terminal\n")));
        let mut terminal = Terminal::start(&msb.command(["exec", "box", "cat"]), 24, 80);
        terminal.types("one\r");
        terminal.shows("one\none\n");
        terminal.types("\x10\x11");
        let (code, shown) = terminal.ends();
        assert_eq!(code, 0);
        assert!(shown.contains("detached; `msb attach box 2`\n"), "{shown}");
        let mut terminal = Terminal::start(&msb.command(["attach", "-it", "box", "2"]), 24, 80);
        terminal.types("two\r");
        terminal.shows("two\ntwo\n");
        terminal.types("\x04");
        assert_eq!(terminal.ends().0, 0);
    }
}

#[test]
fn exec_without_a_command_opens_a_shell_at_a_terminal() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        for verb in ["exec", "shell"] {
            let mut terminal = Terminal::start(&msb.command([verb, "box"]), 24, 80);
            terminal.types("printf '%s-%s\\n' an swer\r");
            terminal.shows("an-swer");
            terminal.types("exit 7\r");
            assert_eq!(terminal.ends().0, 7);
        }
        assert_eq!(msb.run_with(["exec", "-i", "box"], b"echo from-stdin\n").line(), "from-stdin");
        let gave = told(msb.words("exec box"));
        let expected = "error: there is no command to run\n\
                        hint: `msb exec box -- COMMAND` runs one; at a terminal or with `-i`, \
                        `msb exec box` opens a shell";
        assert_eq!(gave, (125, expected.to_owned()));
    }
}

#[test]
fn verbs_of_other_tools_do_what_ours_do() {
    let msb = Msb::new();
    msb.words("create -n box").ok();
    assert_eq!(msb.words("list -q").line(), "box");
    msb.file("file", "text");
    msb.words("copy file box:/tmp/file").ok();
    assert_eq!(msb.words("exec box cat /tmp/file").line(), "text");
    assert_eq!(msb.words("images").ok(), msb.words("image ls").ok());
    assert_eq!(msb.words("volumes").ok(), msb.words("volume ls").ok());
    assert_eq!(msb.words("rmi nosuch"), msb.words("image rm nosuch"));
    for verb in ["stats", "top"] {
        assert_eq!(msb.run([verb, "--help"]), msb.words("metrics --help"));
    }
    assert_eq!(msb.words("help list"), msb.words("ls --help"));
    msb.words("remove -f box").ok();
    assert_eq!(msb.words("ls -q").line(), "");
}

#[test]
fn other_words_are_answered_with_the_line_to_type() {
    let msb = Msb::new();
    for (typed, hint) in [
        ("status", "`msb ls` lists sandboxes with their status"),
        ("info", "`msb doctor` tells what this host can do"),
        ("fork box", "`msb clone NAME NEW`"),
        ("up", "`msb create --name NAME`"),
        ("rum", "did you mean `msb run`?"),
        ("rmm", "`msb --help` lists the commands"),
        ("stopp", "`msb --help` lists the commands"),
        ("image prun", "`msb image --help` lists the commands"),
        ("ps -a", "`msb ls` lists stopped sandboxes, too"),
    ] {
        let gave = msb.words(typed);
        assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{typed}");
        assert!(gave.stderr.contains(&format!("hint: {hint}")), "{typed}: {gave:?}");
    }
}

#[test]
fn the_value_of_a_secret_is_never_repeated() {
    let msb = Msb::new();
    let gave = told(msb.words("run --secret FOO=hunter2@api.example -- true"));
    let expected = "error: the value of a secret is not given on the command line: `FOO`\n\
                    hint: export FOO, then `--secret FOO@api.example`";
    assert_eq!(gave, (125, expected.to_owned()));
    msb.file("env", "A=1\nhunter2-second-line\n");
    for line in [
        "run --secret FOO=hunter2 -- true",
        "run --secret FOO@api.example=hunter2 -- true",
        "run --secret FOO=hunter2@@h -- true",
        "run --secret-file FOO=hunter2 -- true",
        "run --secret-command FOO=hunter2@ -- true",
        "run --env-file env -- true",
        "mcp --secret-env FOO=hunter2@api.example",
    ] {
        let gave = msb.words(line);
        assert_eq!(gave.code, 125, "{line}: {gave:?}");
        assert!(!gave.stderr.contains("hunter2"), "{line}: {gave:?}");
    }
}

#[test]
fn a_command_of_the_users_home_is_explained() {
    let msb = Msb::new();
    let program = msb.file("bin/mytool", "#!/bin/sh\n");
    let run = |words: &[&str]| {
        let mut command = msb.command(words);
        command.env("PATH", format!("{}:/usr/bin:/bin", msb.scratch().join("bin").display()));
        msb_e2e::gives(&mut command)
    };
    msb.words("create -n box").ok();
    for words in [&["run", "--", "mytool"][..], &["exec", "box", "mytool"]] {
        let gave = run(words);
        assert_eq!(gave.code, 127, "{gave:?}");
        let hint = format!(
            "hint: it is in your home on this host, which sandboxes do not see: `{}`;",
            program.display()
        );
        assert!(gave.stderr.contains(&hint), "{gave:?}");
    }
    let gave = run(&["run", "--pull", "never", "mytool", "--version"]);
    assert!(!gave.stderr.contains("msb run -- mytool"), "a flag was meant: {gave:?}");
    let gave = run(&["run", "--pull", "never", "mytool", "x"]);
    assert!(
        gave.stderr.contains("`msb run -- mytool …` runs the program of this host"),
        "{gave:?}"
    );
}

#[test]
fn errors_name_what_to_do() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let clone = told(msb.words("clone box box"));
        let expected =
            "error: sandbox `box` already exists\nhint: choose another name for the copy";
        assert_eq!(clone, (125, expected.to_owned()));
        let volume = told(msb.words("volume rm nosuch"));
        let expected =
            "error: no volume `nosuch`\nhint: `msb volume ls` lists the volumes there are";
        assert_eq!(volume, (125, expected.to_owned()));
        let name = told(msb.words("volume create ../x"));
        assert!(name.1.starts_with("error: not a volume name: `../x`"), "{}", name.1);
        let build = told(msb.words("build -t x ."));
        assert!(build.1.starts_with("error: no Containerfile or Dockerfile in `.`"), "{}", build.1);
        msb.words("exec -d box sleep 1000").ok();
        msb.words("drain box").ok();
        let drained = told(msb.words("exec box true"));
        let expected = "error: sandbox `box` is draining and takes no new commands";
        assert_eq!(drained, (125, expected.to_owned()));
    }
}
