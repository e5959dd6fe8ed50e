//! Tests with interpreters of this host, driven as they are in a sandbox.

use super::*;
use crate::recorder::{FakeSandboxes, name};

struct TestRepl {
    api: Arc<dyn Api>,
    interpreters: Interpreters,
    language: Language,
}

impl TestRepl {
    /// None if the host has no such interpreter; the e2e tests require one.
    fn new(language: Language) -> Option<Self> {
        let program = if language == Language::Python { "python3" } else { "node" };
        if std::process::Command::new(program).arg("--version").output().is_err() {
            return None;
        }
        let api = FakeSandboxes::new(&["web"]).with_commands().api();
        Some(Self { api, interpreters: Interpreters::default(), language })
    }

    fn ask(&self, code: &str, limit: Option<Duration>, cancel: &Cancel) -> Result<CodeResult> {
        let sandbox = name("web");
        let language = self.language;
        let scope = &scope("*", None);
        let origin = &CallOrigin::cli();
        let ask = CodeRequest { scope, sandbox: &sandbox, language, code, limit, cancel, origin };
        self.interpreters.run(&self.api, &ask)
    }

    fn run(&self, code: &str) -> CodeResult {
        self.ask(code, None, &Cancel::default()).expect("an interpreter")
    }

    /// The output lines, each after a letter for its stream.
    fn output(&self, code: &str) -> Vec<String> {
        output(&self.run(code))
    }
}

fn scope(caller: &str, namespace: Option<&str>) -> ReplScope {
    let namespace = namespace.map(|text| Namespace::parse(text).unwrap());
    ReplScope::new(Scope::parse(caller).unwrap(), namespace)
}

fn output(ran: &CodeResult) -> Vec<String> {
    let letter = |stream| if stream == OutputStream::Stdout { 'o' } else { 'e' };
    ran.lines.iter().map(|line| format!("{} {}", letter(line.stream), line.text)).collect()
}

#[test]
fn python_keeps_what_was_defined_and_shows_the_last_value() {
    let Some(here) = TestRepl::new(Language::Python) else { return };
    assert_eq!(here.output("x = 20"), [""; 0]);
    assert_eq!(here.output("def twice(n): return 2 * n\ntwice(x) + 2"), ["o 42"]);
    assert_eq!(here.output("print('a'); None"), ["o a"]);
}

#[test]
fn node_keeps_what_was_defined_and_shows_the_last_value() {
    let Some(here) = TestRepl::new(Language::Node) else { return };
    assert_eq!(here.output("const x = 20"), [""; 0]);
    assert_eq!(here.output("function twice(n) { return 2 * n }\ntwice(x) + 2"), ["o 42"]);
    assert_eq!(here.output("console.log('a')"), ["o a"]);
    assert_eq!(here.output("(async () => { await null; console.log('later') })()"), ["o later"]);
    assert_eq!(here.output("const y = await Promise.resolve(x); y"), ["o 20"]);
}

#[test]
fn streams_stay_in_order_for_every_writer() {
    if let Some(here) = TestRepl::new(Language::Python) {
        let code = "import subprocess, sys\nprint('1', end='')\nprint('2', file=sys.stderr)\n\
            subprocess.run('echo 3; echo 4 >&2', shell=True)\nprint('5')";
        assert_eq!(here.output(code), ["o 13", "e 2", "e 4", "o 5"]);
    }
    if let Some(here) = TestRepl::new(Language::Node) {
        let code = "console.log('1'); console.error('2');\n\
            require('child_process').spawnSync('echo', ['3'], { stdio: 'inherit' });\n\
            console.log('4')";
        assert_eq!(here.output(code), ["o 1", "e 2", "o 3", "o 4"]);
    }
}

#[test]
fn exceptions_are_reported_and_the_state_stays() {
    if let Some(here) = TestRepl::new(Language::Python) {
        here.run("x = 1");
        let ran = here.run("1 / 0");
        assert_eq!(ran.ended, CodeEnd::Thrown);
        assert_eq!(output(&ran).last().unwrap(), "e ZeroDivisionError: division by zero");
        assert_eq!(here.run("import sys; sys.exit(3)").ended, CodeEnd::Thrown);
        assert_eq!(here.output("x"), ["o 1"]);
    }
    if let Some(here) = TestRepl::new(Language::Node) {
        here.run("let x = 1");
        let ran = here.run("throw new TypeError('no')");
        assert_eq!(ran.ended, CodeEnd::Thrown);
        assert_eq!(output(&ran)[0], "e Uncaught TypeError: no");
        assert_eq!(here.output("x"), ["o 1"]);
    }
}

#[test]
fn frames_that_code_prints_are_text() {
    if let Some(here) = TestRepl::new(Language::Python) {
        let code = "import os\nprint('d00000009\\n\\0\\0\\0\\0\\0\\0\\0\\x01+')\n\
            os.write(1, b'r00000000\\n'); None";
        assert_eq!(here.output(code), ["o d00000009", "o \0\0\0\0\0\0\0\x01+", "o r00000000"]);
        assert_eq!(here.output("'still'"), ["o 'still'"]);
    }
    if let Some(here) = TestRepl::new(Language::Node) {
        let code = "require('fs').writeSync(1, 'r00000000\\n'); console.log('o00000001')";
        assert_eq!(here.output(code), ["o r00000000", "o o00000001"]);
    }
}

#[test]
fn code_that_takes_too_long_is_interrupted_and_the_state_stays() {
    for (language, set, forever, get) in [
        (Language::Python, "x = 1", "print('on')\nwhile True: pass", "x"),
        (Language::Node, "let x = 1", "console.log('on'); while (true) {}", "x"),
        (Language::Node, "let x = 1", "console.log('on'); new Promise(() => {})", "x"),
        (Language::Python, "x = 1", "print('on')\nwhile True: print('y' * 1000)", "x"),
    ] {
        let Some(here) = TestRepl::new(language) else { continue };
        here.run(set);
        let limit = Duration::from_millis(500);
        let ran = here.ask(forever, Some(limit), &Cancel::default()).unwrap();
        assert_eq!(ran.ended, CodeEnd::Interrupted(InterruptReason::Timeout(limit)), "{forever}");
        assert_eq!(output(&ran)[0], "o on");
        assert_eq!(here.output(get), ["o 1"]);
    }
}

#[test]
fn node_interrupted_while_writing_never_sends_half_a_frame() {
    let Some(here) = TestRepl::new(Language::Node) else { return };
    let limit = Duration::from_millis(300);
    let talk = "while (true) console.log('y'.repeat(100))";
    let ran = here.ask(talk, Some(limit), &Cancel::default()).unwrap();
    let why = InterruptReason::Timeout(limit);
    assert!(
        [CodeEnd::Interrupted(why), CodeEnd::Killed(why)].contains(&ran.ended),
        "{:?}",
        ran.ended
    );
    assert_eq!(here.output("1 + 1").last().unwrap(), "o 2");
}

#[test]
fn code_that_ignores_interrupts_is_killed_and_reported() {
    let Some(here) = TestRepl::new(Language::Python) else { return };
    here.run("x = 1");
    let deaf = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass";
    let limit = Duration::from_millis(200);
    let ran = here.ask(deaf, Some(limit), &Cancel::default()).unwrap();
    assert_eq!(ran.ended, CodeEnd::Killed(InterruptReason::Timeout(limit)));
    let ran = here.run("x");
    assert_eq!(output(&ran).last().unwrap(), "e NameError: name 'x' is not defined");
}

#[test]
fn a_crash_is_reported_and_the_next_call_starts_a_new_interpreter() {
    for (language, crash, check) in [
        (Language::Python, "import os\nprint('last words')\nos._exit(7)", "1 + 1"),
        (Language::Node, "console.log('last words'); process.exit(7)", "1 + 1"),
    ] {
        let Some(here) = TestRepl::new(language) else { continue };
        let ran = here.run(crash);
        assert_eq!(ran.ended, CodeEnd::Crashed("the interpreter exited with 7".to_owned()));
        assert_eq!(output(&ran), ["o last words"]);
        assert_eq!(here.output(check), ["o 2"]);
    }
}

#[test]
fn an_exit_between_two_calls_is_reported_by_the_next() {
    let Some(here) = TestRepl::new(Language::Python) else { return };
    here.run("import os, threading\nthreading.Timer(0.05, lambda: os._exit(3)).start()");
    // Until the timer has ended it, the interpreter answers.
    let told = loop {
        let ran = here.run("1");
        match (output(&ran).first(), &ran.ended) {
            (Some(line), _) if line.starts_with("e note:") => break line.clone(),
            (_, CodeEnd::Crashed(_)) => return,
            _ => {}
        }
    };
    assert!(told.contains("what was defined before is gone"), "{told}");
}

#[test]
fn garbage_in_the_frames_ends_only_that_interpreter() {
    let Some(here) = TestRepl::new(Language::Python) else { return };
    let code = "import os\nfor fd in range(3, 16):\n    try: os.write(fd, b'garbage, garbage')\n    \
        except OSError: pass\nimport time; time.sleep(600)";
    let ran = here.run(code);
    assert!(matches!(ran.ended, CodeEnd::Crashed(_)), "{ran:?}");
    assert_eq!(here.output("2"), ["o 2"]);
}

#[test]
fn calls_at_the_same_time_do_not_mix() {
    let Some(here) = TestRepl::new(Language::Python) else { return };
    here.run("total = 0");
    std::thread::scope(|scope| {
        for number in 0..8 {
            let here = &here;
            scope.spawn(move || {
                let code = format!("total += 1\nfor _ in range(50): print('line {number}')");
                let all = here.output(&code);
                assert_eq!(all, vec![format!("o line {number}"); 50]);
            });
        }
    });
    assert_eq!(here.output("total"), ["o 8"]);
}

#[test]
fn cancelled_code_is_interrupted() {
    let Some(here) = TestRepl::new(Language::Python) else { return };
    here.run("x = 1");
    let cancel = Cancel::default();
    let pipe = std::env::temp_dir().join(format!("msb-repl-{}", std::process::id()));
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, 0o600.into(), 0).unwrap();
    let endless = format!("open({:?}, 'w').close()\nwhile True: pass", pipe.display());
    std::thread::scope(|scope| {
        let running = scope.spawn(|| here.ask(&endless, None, &cancel));
        // The pipe opens when the code runs, so the next call has to wait for it.
        std::fs::File::open(&pipe).unwrap();
        let waiting = scope.spawn(|| here.ask("x = 2", None, &cancel));
        cancel.cancel();
        for ended in [running.join().unwrap(), waiting.join().unwrap()] {
            match ended {
                Ok(ran) => assert_eq!(ran.ended, CodeEnd::Interrupted(InterruptReason::Cancelled)),
                Err(error) => assert_eq!(error.message(), "the call was cancelled"),
            }
        }
    });
    std::fs::remove_file(pipe).unwrap();
    assert_eq!(here.output("x"), ["o 1"]);
}

#[test]
fn a_forked_copy_cannot_write_frames() {
    let Some(here) = TestRepl::new(Language::Python) else { return };
    let code = "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nelse: print('child')";
    assert_eq!(here.output(code), ["o child"]);
    assert_eq!(here.output("os.getpid() == pid"), ["o False"]);
}

#[test]
fn interpreters_end_with_their_sandbox() {
    let Some(here) = TestRepl::new(Language::Python) else { return };
    here.run("x = 1");
    here.interpreters.end(&scope("default", None), &name("web"));
    here.interpreters.end(&scope("*", None), &name("other"));
    assert_eq!(here.output("x"), ["o 1"]);
    here.interpreters.end(&scope("*", None), &name("web"));
    assert_eq!(here.run("x").ended, CodeEnd::Thrown);
}

#[test]
fn scopes_and_languages_have_interpreters_of_their_own() {
    let Some(here) = TestRepl::new(Language::Python) else { return };
    here.run("x = 1");
    let (sandbox, cancel) = (name("web"), Cancel::default());
    // Callers of the same sandbox under the same name are separated by the scopes of their keys.
    for other in
        [scope("default", Some("default")), scope("team", Some("team")), scope("*", Some("team"))]
    {
        let ask = CodeRequest {
            scope: &other,
            sandbox: &sandbox,
            language: Language::Python,
            code: "x",
            limit: None,
            cancel: &cancel,
            origin: &CallOrigin::cli(),
        };
        assert_eq!(
            here.interpreters.run(&here.api, &ask).unwrap().ended,
            CodeEnd::Thrown,
            "{other:?}"
        );
    }
    assert_eq!(scope("*", Some("default")), scope("*", None));
}
