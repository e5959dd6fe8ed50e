//! `msb registry`: logins, against a real registry.

use msb_e2e::images::Layout;
use msb_e2e::registry::{PASSWORD, Registry, USER};
use msb_e2e::terminal::Terminal;
use msb_e2e::{CmdOutput, Msb, ends};
use serde_json::json;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// A password that is not the right one, and must not be seen either.
const WRONG: &str = "hunter2";

#[track_caller]
fn login(msb: &Msb, host: &str, password: &str) -> CmdOutput {
    msb.run_with(["registry", "login", "-u", USER, "--password-stdin", host], password.as_bytes())
}

/// Everything that a command gave, to look for secrets in.
fn all(gave: &CmdOutput) -> String {
    format!("{}{}", gave.stdout, gave.stderr)
}

#[test]
fn a_login_is_verified_kept_and_forgotten() {
    let registry = Registry::with_password();
    for msb in Msb::each() {
        let host = registry.address();
        let gave = login(&msb, host, &format!("{PASSWORD}\n")).ok();
        assert_eq!(gave.stdout, "");
        assert!(gave.stderr.contains(&format!("logged in to `{host}` as `{USER}`")), "{gave:?}");
        assert!(!all(&gave).contains(PASSWORD));
        let file = msb.home().join("auth.json");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

        let listed = msb.json(["registry", "ls", "--json"]);
        let login = json!({ "registry": host, "user": USER, "program": null, "file": file });
        assert_eq!(listed, json!([login]));
        let table = msb.words("registry ls").ok();
        assert!(table.stdout.contains(host) && table.stdout.contains(USER), "{table:?}");

        assert_eq!(msb.run(["registry", "logout", host]).ok().stdout, "");
        assert_eq!(msb.json(["registry", "ls", "--json"]), json!([]));
        let gave = msb.run(["registry", "logout", host]);
        assert_eq!(gave.code, 125);
        assert!(gave.stderr.starts_with(&format!("error: not logged in to `{host}`")), "{gave:?}");
    }
}

#[test]
fn a_wrong_password_is_not_kept() {
    for registry in [Registry::with_password(), Registry::with_tokens()] {
        let msb = Msb::new();
        let gave = login(&msb, registry.address(), WRONG);
        assert_eq!(gave.code, 125);
        let told: Vec<&str> = gave.stderr.lines().collect();
        assert_eq!(told[0], format!("error: cannot log in to `{}`", registry.address()));
        assert!(told[1].contains("denied access"), "{gave:?}");
        assert!(told.last().unwrap().starts_with("hint: check the user"), "{gave:?}");
        assert!(!all(&gave).contains(WRONG));
        assert!(!msb.home().join("auth.json").exists());
        login(&msb, registry.address(), PASSWORD).ok();
        assert_eq!(login(&msb, registry.address(), WRONG).code, 125);
        let kept = msb.json(["registry", "ls", "--json"]);
        assert_eq!(kept[0]["user"], USER, "the login that worked is still there");
    }
}

#[test]
fn tls_is_trusted_by_flag_or_by_settings_only() {
    let registry = Registry::with_tls();
    let msb = Msb::new();
    let host = registry.address();
    let args = ["registry", "login", "-u", USER, "--password-stdin", host];
    assert_eq!(msb.run_with(args, b"any").code, 125);
    let ca = registry.ca().display().to_string();
    for flag in [vec!["--ca", &ca], vec!["--insecure"]] {
        msb.run_with(args.iter().chain(&flag), b"any").ok();
    }
    msb.file("home/config.toml", format!("[registries.'{host}']\nca = '{ca}'\n"));
    msb.run_with(args, b"any").ok();
}

#[test]
fn an_unreachable_registry_is_reported_and_no_login_is_kept() {
    let msb = Msb::new();
    // Nothing listens on this port: the registry that had it is gone.
    let host = Registry::plain().address().to_owned();
    let gave = login(&msb, &host, PASSWORD);
    assert_eq!(gave.code, 125);
    assert!(gave.stderr.contains("cannot reach"), "{gave:?}");
    assert!(!msb.home().join("auth.json").exists());
}

#[test]
fn a_password_on_the_command_line_is_refused_with_the_reason() {
    let msb = Msb::new();
    for flags in
        [&["-p", WRONG][..], &["-phunter2"], &["--password", WRONG], &["--password=hunter2"]]
    {
        let gave = msb.run([&["registry", "login", "-u", USER, "r.io"], flags].concat());
        assert_eq!(gave.code, 125);
        assert!(gave.stderr.starts_with("error: a password on the command line"), "{gave:?}");
        assert!(gave.stderr.contains("--password-stdin"), "{gave:?}");
        assert!(!all(&gave).contains(WRONG), "{gave:?}");
    }
    for line in ["registry login --help", "--tree", "completion bash"] {
        let shown = msb.words(line).ok().stdout;
        assert!(!shown.contains("--password "), "{line} offers it");
    }
}

#[test]
fn incomplete_logins_are_reported() {
    let msb = Msb::new();
    for (line, told) in [
        ("registry login r.io", "no user to log in as"),
        ("registry login -u me r.io", "no terminal to ask for a password at"),
        ("registry login -u me --password-stdin r.io", "the password is empty"),
        ("registry login -u me --password-stdin https://r.io", "not the name of a registry"),
        ("registry login -u me --password-stdin word", "not the name of a registry"),
        ("registry logout r.io/a", "not the name of a registry"),
    ] {
        let gave = msb.words(line);
        assert_eq!(gave.code, 125, "{line}");
        assert!(gave.stderr.starts_with(&format!("error: {told}")), "{line}: {gave:?}");
    }
    let gave = login(&msb, "r.io", "two\nlines\n");
    assert!(gave.stderr.contains("more than a line"), "{gave:?}");
}

#[test]
fn at_a_terminal_the_password_is_asked_for_and_not_shown() {
    let registry = Registry::with_password();
    let msb = Msb::new();
    let command = msb.command(["registry", "login", registry.address()]);
    let mut terminal = Terminal::start(&command, 24, 80);
    terminal.shows("User: ");
    terminal.types(&format!("{USER}\r"));
    terminal.shows("Password: ");
    terminal.types(&format!("{PASSWORD}x\x7f\r"));
    let (code, shown) = terminal.ends();
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("logged in to") && !shown.contains(PASSWORD), "{shown}");
    // An interrupt leaves the terminal as it was.
    let script = r#""$0" registry login -u x r.io; stty -a | grep -o ' -*echo\b'"#;
    let mut command = msb.user_command("sh");
    command.args(["-c", script]).arg(msb.binary());
    let mut terminal = Terminal::start(&command, 24, 80);
    terminal.shows("Password: ");
    terminal.types("abc\x03");
    let (_, shown) = terminal.ends();
    assert!(shown.contains("nothing was typed") && shown.ends_with(" echo\n"), "{shown:?}");
}

#[test]
fn logins_of_docker_are_listed_without_their_secrets() {
    let msb = Msb::new();
    // `agent:correct horse`
    let config = json!({
        "auths": { "r.io": { "auth": "YWdlbnQ6Y29ycmVjdCBob3JzZQ==" }, "k.io": {} },
        "credHelpers": { "k.io": "keeper" },
    });
    let path = msb.file(".docker/config.json", config.to_string());
    let listed = msb.json(["registry", "ls", "--json"]);
    assert_eq!(
        listed,
        json!([
            { "registry": "k.io", "user": null, "program": "docker-credential-keeper", "file": path },
            { "registry": "r.io", "user": USER, "program": null, "file": path },
        ])
    );
    let gave = msb.words("registry ls").ok();
    assert!(!all(&gave).contains(PASSWORD) && !all(&gave).contains("YWdlbnQ6"), "{gave:?}");
    let gave = msb.words("registry logout r.io");
    assert_eq!(gave.code, 125);
    assert!(gave.stderr.contains(".docker/config.json"), "{gave:?}");
}

#[test]
fn a_file_of_logins_that_others_may_read_is_refused() {
    let msb = Msb::new();
    let path = msb.file("home/auth.json", r#"{"auths": {}}"#);
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let gave = msb.words("registry ls");
    assert_eq!(gave.code, 125);
    assert!(gave.stderr.contains("others may read it") && gave.stderr.contains("chmod 600"));
}

/// Makes a credential helper and gives its directory. Another process writes it: a test that
/// forks while this one had it open for writing would keep it from being executed.
fn keeper(msb: &Msb, script: &str) -> String {
    let text = msb.file("keeper.sh", script);
    let program = msb.file("bin/docker-credential-keeper", "");
    let status = Command::new("install").args(["-m755"]).args([&text, &program]).status();
    assert!(status.is_ok_and(|status| status.success()));
    program.parent().expect("a directory").display().to_string()
}

#[test]
fn private_images_come_with_a_login_wherever_it_is_kept() {
    for registry in [Registry::with_password(), Registry::with_tokens()] {
        let host = registry.address();
        let image = registry.push(Layout::busybox(), "private/busybox:1");
        for msb in Msb::each() {
            let pull = |change: &dyn Fn(&mut Command)| {
                let mut command = msb.command(["pull", &image]);
                change(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
                ends(command.spawn().unwrap())
            };
            let refused = |gave: CmdOutput| {
                assert_eq!(gave.code, 125, "{gave:?}");
                assert!(gave.stderr.contains(&format!("`msb registry login {host}`")), "{gave:?}");
            };
            refused(pull(&|_| {}));

            login(&msb, host, PASSWORD).ok();
            pull(&|_| {}).ok();
            msb.run(["registry", "logout", host]).ok();
            refused(pull(&|_| {}));

            // `agent:correct horse`
            let auths = json!({ "auths": { host: { "auth": "YWdlbnQ6Y29ycmVjdCBob3JzZQ==" } } });
            let file = msb.file("docker/config.json", auths.to_string());
            let directory = file.parent().unwrap();
            for (name, value) in [("DOCKER_CONFIG", directory), ("REGISTRY_AUTH_FILE", &file)] {
                pull(&|command| {
                    command.env(name, value);
                })
                .ok();
            }

            let answer = json!({ "ServerURL": host, "Username": USER, "Secret": PASSWORD });
            let script = format!("#!/bin/sh\n[ \"$(cat)\" = {host} ] && echo '{answer}'\n");
            let directory_of_programs = keeper(&msb, &script);
            let kept = json!({ "credHelpers": { host: "keeper" } });
            msb.file("docker/config.json", kept.to_string());
            let path = format!("{directory_of_programs}:/usr/bin:/bin");
            let with_keeper = |command: &mut Command| {
                command.env("DOCKER_CONFIG", directory).env("PATH", &path);
            };
            pull(&with_keeper).ok();
            keeper(&msb, &format!("#!/bin/sh\necho {WRONG}; exit 1\n"));
            let gave = pull(&with_keeper);
            assert_eq!(gave.code, 125);
            assert!(gave.stderr.contains("`docker-credential-keeper`"), "{gave:?}");
            assert!(!all(&gave).contains(WRONG), "{gave:?}");
        }
    }
}
