//! Logins in files and from credential helpers, in a directory for each test.

use super::*;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A state directory, files of Docker and podman, and a directory with credential helpers.
struct Scratch {
    root: PathBuf,
    credentials: Credentials,
}

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = format!("msb-credentials-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(root);
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("bin")).unwrap();
        let credentials = Credentials {
            stored: true,
            home: root.clone(),
            other_files: vec![root.join("docker.json"), root.join("podman.json")],
            path: format!("{}:/usr/bin:/bin", root.join("bin").display()).into(),
            given: None,
        };
        Self { root, credentials }
    }

    fn file(&self, name: &str, mode: u32, text: &str) {
        let path = self.root.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }

    /// Creates a credential helper. Another process writes it: this one may fork for other tests
    /// while the file is open for writing, and execve(2) would fail with ETXTBSY.
    fn program(&self, name: &str, script: &str) {
        let path = self.root.join("bin").join(format!("docker-credential-{name}"));
        let mut install = Command::new("install")
            .args(["-m", "755", "/dev/stdin"])
            .arg(path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let text = format!("#!/bin/sh\n{script}\n");
        install.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(install.wait().unwrap().success());
    }

    fn found(&self, registry: &str) -> Option<Credential> {
        self.credentials.find(registry).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn password(user: &str, secret: &str) -> Option<Credential> {
    Some(Credential::Password { user: user.to_owned(), secret: Secret::new(secret.to_owned()) })
}

#[test]
fn a_login_is_kept_closed_and_found_again() {
    let scratch = Scratch::new();
    let credentials = &scratch.credentials;
    assert_eq!(scratch.found("r.io"), None);
    let secret = Secret::new("p:ä ß\"".to_owned());
    credentials.login("r.io", "ann", &secret).unwrap();
    credentials.login("docker.io", "bob", &Secret::new("x".to_owned())).unwrap();
    credentials.login("docker.io", "eve", &Secret::new("y".to_owned())).unwrap();
    assert_eq!(scratch.found("r.io"), password("ann", "p:ä ß\""));
    assert_eq!(scratch.found("docker.io"), password("eve", "y"));
    let path = scratch.root.join("auth.json");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("\"https://index.docker.io/v1/\""), "{text}");
    let listed = credentials.list().unwrap();
    let login = |registry: &str, user: &str| Login {
        registry: registry.to_owned(),
        user: Some(user.to_owned()),
        program: None,
        file: path.clone(),
    };
    assert_eq!(listed, [login("docker.io", "eve"), login("r.io", "ann")]);
    assert!(credentials.logout("docker.io").unwrap());
    assert!(!credentials.logout("docker.io").unwrap());
    assert_eq!(scratch.found("docker.io"), None);
    assert_eq!(scratch.found("r.io"), password("ann", "p:ä ß\""));
}

#[test]
fn what_is_given_is_tried_before_what_is_kept() {
    let scratch = Scratch::new();
    scratch.credentials.login("r.io", "old", &Secret::new("x".to_owned())).unwrap();
    let trying = scratch.credentials.giving("r.io", password("new", "y").unwrap());
    assert_eq!(trying.find("r.io").unwrap(), password("new", "y"));
    assert_eq!(trying.find("other.io").unwrap(), None);
    assert_eq!(scratch.found("r.io"), password("old", "x"));
}

#[test]
fn what_we_do_not_know_in_our_file_stays() {
    let scratch = Scratch::new();
    scratch.file(
        "auth.json",
        0o600,
        r#"{"more": 1, "auths": {"https://r.io/v1/": {"auth": "YTpi"}}}"#,
    );
    assert_eq!(scratch.found("r.io"), password("a", "b"));
    scratch.credentials.login("r.io", "c", &Secret::new("d".to_owned())).unwrap();
    let text = fs::read_to_string(scratch.root.join("auth.json")).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value, serde_json::json!({ "more": 1, "auths": { "r.io": { "auth": "Yzpk" } } }));
}

#[test]
fn logins_at_the_same_time_are_all_kept() {
    let scratch = Scratch::new();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let credentials = &scratch.credentials;
            scope.spawn(move || {
                let secret = Secret::new(format!("p{number}"));
                credentials.login(&format!("r{number}.io"), "u", &secret).unwrap();
            });
        }
    });
    assert_eq!(scratch.credentials.list().unwrap().len(), 8);
}

#[test]
fn a_file_that_others_may_read_is_refused() {
    let scratch = Scratch::new();
    for mode in [0o640, 0o604, 0o644] {
        scratch.file("auth.json", mode, r#"{"auths": {"r.io": {"auth": "YTpi"}}}"#);
        let errors = [
            scratch.credentials.find("r.io").map(drop).unwrap_err(),
            scratch.credentials.logout("r.io").map(drop).unwrap_err(),
            scratch.credentials.list().map(drop).unwrap_err(),
        ];
        for error in errors {
            assert!(error.causes()[0].starts_with("others may read it"), "{error}");
            assert!(error.advice().unwrap().contains("chmod 600"), "{error:?}");
        }
    }
}

#[test]
fn dockers_and_podmans_logins_are_used_in_order() {
    let scratch = Scratch::new();
    scratch.file(
        "docker.json",
        0o644,
        r#"{"HttpHeaders": {}, "credHelpers": null, "credsStore": "", "auths": {
            "https://index.docker.io/v1/": {"auth": "aHViOmh1YnB3"},
            "https://old.io/v1/": {"username": "old", "password": "pw"},
            "token.io": {"auth": "dTp4", "identitytoken": "refresh"},
            "mark.io": {}, "own.io": {"auth": "ZG9ja2VyOng="}, "zeros.io": {"auth": "YTpiAAA="}
        }}"#,
    );
    scratch.file(
        "podman.json",
        0o600,
        r#"{"auths": {"mark.io": {"auth": "YTpi"}, "quay.io/team": {"auth": "YTpi"}, "old.io": {"auth": "YTpi"}}}"#,
    );
    scratch.credentials.login("own.io", "me", &Secret::new("mine".to_owned())).unwrap();
    assert_eq!(scratch.found("docker.io"), password("hub", "hubpw"));
    assert_eq!(scratch.found("old.io"), password("old", "pw"));
    assert_eq!(scratch.found("own.io"), password("me", "mine"));
    assert_eq!(scratch.found("zeros.io"), password("a", "b"));
    let token = Credential::IdentityToken(Secret::new("refresh".to_owned()));
    assert_eq!(scratch.found("token.io"), Some(token));
    assert_eq!(scratch.found("mark.io"), password("a", "b"));
    assert_eq!(scratch.found("quay.io"), None, "a login for some repositories is not for all");
    let listed = scratch.credentials.list().unwrap();
    let listed: Vec<(&str, Option<&str>, &str)> = listed
        .iter()
        .map(|login| {
            let file = login.file.file_name().unwrap().to_str().unwrap();
            (login.registry.as_str(), login.user.as_deref(), file)
        })
        .collect();
    assert_eq!(
        listed,
        [
            ("docker.io", Some("hub"), "docker.json"),
            ("mark.io", Some("a"), "podman.json"),
            ("old.io", Some("old"), "docker.json"),
            ("own.io", Some("me"), "auth.json"),
            ("token.io", None, "docker.json"),
            ("zeros.io", Some("a"), "docker.json"),
        ]
    );
}

#[test]
fn a_program_that_keeps_credentials_is_asked_on_its_stdin() {
    let scratch = Scratch::new();
    scratch.file(
        "docker.json",
        0o600,
        r#"{"credHelpers": {"a.io": "one", "none.io": "none", "token.io": "token"}, "credsStore": "store",
            "auths": {"store.io": {}, "none.io": {"auth": "YTpi"}}}"#,
    );
    let answer = r#"printf '{"ServerURL":"","Username":"%s","Secret":"%s"}' "#;
    scratch.program("one", &format!(r#"{answer} "$1 $#" "one $(cat)""#));
    scratch.program("store", &format!(r#"{answer} store "store $(cat)""#));
    scratch.program("token", &format!(r#"cat >/dev/null; {answer} '<token>' refresh"#));
    scratch.program("none", "echo credentials not found in native keychain; exit 1");
    assert_eq!(scratch.found("a.io"), password("get 1", "one a.io"));
    assert_eq!(scratch.found("store.io"), password("store", "store store.io"));
    assert_eq!(scratch.found("docker.io"), password("store", "store https://index.docker.io/v1/"));
    assert_eq!(scratch.found("none.io"), password("a", "b"), "what the file has is left");
    let token = Credential::IdentityToken(Secret::new("refresh".to_owned()));
    assert_eq!(scratch.found("token.io"), Some(token));
    let listed = scratch.credentials.list().unwrap();
    let programs: Vec<(&str, Option<&str>)> =
        listed.iter().map(|login| (login.registry.as_str(), login.program.as_deref())).collect();
    assert_eq!(
        programs,
        [
            ("a.io", Some("docker-credential-one")),
            ("none.io", Some("docker-credential-none")),
            ("store.io", Some("docker-credential-store")),
            ("token.io", Some("docker-credential-token")),
        ]
    );
}

#[test]
fn what_a_program_says_when_it_fails_is_not_repeated() {
    let scratch = Scratch::new();
    for (script, told) in [
        ("echo hunter2; echo hunter2 >&2; exit 3", "it failed: exit status: 3"),
        ("echo hunter2", "its output cannot be parsed"),
        (r#"echo '{"Username": "hunter2"}'"#, "its output cannot be parsed"),
        ("kill -9 $$", "it failed: signal: 9 (SIGKILL)"),
        (
            "while :; do echo hunter2hunter2hunter2; done",
            "it cannot be communicated with: its output is larger than 64K",
        ),
    ] {
        scratch.program("bad", script);
        scratch.file("docker.json", 0o600, r#"{"credsStore": "bad"}"#);
        let error = scratch.credentials.find("r.io").unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "cannot use the login for `r.io`: \
                 cannot ask the credential helper `docker-credential-bad`: {told}"
            )
        );
        assert!(!format!("{error:?}").contains("hunter2"));
    }
}

#[test]
fn a_program_that_is_missing_slow_or_badly_named_is_an_error() {
    let scratch = Scratch::new();
    let path = scratch.credentials.path.clone();
    let short = Duration::from_millis(50);
    let error =
        credential_helper::get("missing", "r.io", &path, credential_helper::LIMIT).unwrap_err();
    assert_eq!(error.causes(), ["it cannot be run", "no such file or directory"]);
    scratch.program("slow", "exec sleep 1000");
    let error = credential_helper::get("slow", "r.io", &path, short).unwrap_err();
    assert_eq!(error.kind(), msb_spec::Kind::Timeout);
    assert_eq!(error.causes(), ["no response within 50ms"]);
    for name in ["", "../x", "/bin/sh", "a b", "a\n", "ä"] {
        let error =
            credential_helper::get(name, "r.io", &path, credential_helper::LIMIT).unwrap_err();
        assert!(error.to_string().starts_with("not the name of a credential helper"), "{error}");
    }
}

#[test]
fn an_agent_that_a_program_leaves_behind_is_not_waited_for() {
    let scratch = Scratch::new();
    // The agent keeps the pipe open until the test is over.
    let over = scratch.root.join("over");
    assert!(Command::new("mkfifo").arg(&over).status().unwrap().success());
    let answer = r#"echo '{"Username":"u","Secret":"s"}'"#;
    scratch.program("agent", &format!("cat <{} & {answer}", over.display()));
    let found = credential_helper::get(
        "agent",
        "r.io",
        &scratch.credentials.path,
        credential_helper::LIMIT,
    )
    .unwrap();
    fs::write(&over, "").unwrap();
    assert_eq!(found, password("u", "s"));
}

#[test]
fn a_broken_file_is_named_and_not_quoted() {
    let scratch = Scratch::new();
    for (text, line) in [
        ("hunter2", "line 1"),
        ("{\n\"auths\": {\"r.io\": \"hunter2\"}}", "line 2"),
        ("{\"credsStore\": {\"hunter2\": 1}}", "line 1"),
    ] {
        scratch.file("docker.json", 0o600, text);
        let error = scratch.credentials.find("r.io").unwrap_err().to_string();
        assert!(error.contains("docker.json") && error.contains(line), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    for auth in ["!", "aHVudGVyMg==", "/w=="] {
        scratch.file(
            "docker.json",
            0o600,
            &format!(r#"{{"auths": {{"r.io": {{"auth": "{auth}"}}}}}}"#),
        );
        let error = scratch.credentials.find("r.io").unwrap_err().to_string();
        assert!(error.contains("docker.json") && !error.contains("hunter2"), "{error}");
    }
    scratch.file("docker.json", 0o600, &" ".repeat(2 << 20));
    assert!(scratch.credentials.find("r.io").unwrap_err().to_string().ends_with("larger than 1M"));
    scratch.file("docker.json", 0o600, "");
    assert_eq!(scratch.found("r.io"), None);
}

#[test]
fn a_secret_does_not_show_itself() {
    let shown = format!("{:?}", password("ann", "hunter2"));
    assert!(shown.contains("ann") && !shown.contains("hunter2"), "{shown}");
}

#[test]
fn a_name_that_cannot_be_a_user_is_refused() {
    let scratch = Scratch::new();
    for user in ["", "a:b"] {
        assert!(scratch.credentials.login("r.io", user, &Secret::new("x".to_owned())).is_err());
    }
    assert!(!scratch.root.join("auth.json").exists());
}

#[test]
fn files_of_others_are_where_the_environment_says() {
    let set = |pairs: &'static [(&str, &str)]| {
        let value = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, v)| v.into());
        docker_and_podman_files(value)
            .iter()
            .map(|path| path.display().to_string())
            .collect::<Vec<_>>()
    };
    assert!(set(&[]).is_empty());
    assert_eq!(
        set(&[("HOME", "/h"), ("XDG_RUNTIME_DIR", "/run/u")]),
        [
            "/h/.docker/config.json",
            "/run/u/containers/auth.json",
            "/h/.config/containers/auth.json"
        ]
    );
    assert_eq!(
        set(&[("HOME", "/h"), ("DOCKER_CONFIG", "/d"), ("REGISTRY_AUTH_FILE", "/a.json")]),
        ["/d/config.json", "/a.json"]
    );
}
