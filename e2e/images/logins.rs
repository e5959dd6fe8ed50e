//! Registries that need a login, and where credentials are kept and shown.

use msb_e2e::images::Layout;
use msb_e2e::registry::{PASSWORD, Registry, USER};
use msb_e2e::tokens::base64;
use msb_e2e::{CmdOutput, Msb, Process, ends, gives};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

const PRIVATE: &str = "private/app:1";

fn login(msb: &Msb, registry: &Registry, password: &str) -> CmdOutput {
    let args = ["registry", "login", "-u", USER, "--password-stdin", registry.address()];
    msb.run_with(args, format!("{password}\n").as_bytes())
}

#[track_caller]
fn is_refused(gave: &CmdOutput) {
    assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{gave:?}");
    assert!(gave.stderr.contains("msb registry login"), "{gave:?}");
    assert!(!gave.stderr.contains(PASSWORD), "{gave:?}");
}

/// What files beneath a directory hold a text, in plain or in base64.
fn files_with_the_secret(directory: &Path) -> Vec<String> {
    let coded = base64(format!("{USER}:{PASSWORD}").as_bytes());
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let kind = entry.file_type().expect("a type");
        if kind.is_dir() {
            found.extend(files_with_the_secret(&entry.path()));
        } else if kind.is_file() {
            let content = fs::read(entry.path()).expect("a file");
            let holds =
                |text: &str| content.windows(text.len()).any(|part| part == text.as_bytes());
            if holds(PASSWORD) || holds(&coded) {
                found.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
    }
    found
}

#[test]
fn a_login_opens_a_registry_and_a_logout_closes_it() {
    for registry in [Registry::with_password(), Registry::with_tokens()] {
        let name = registry.push(Layout::busybox(), PRIVATE);
        for msb in Msb::each_with_own_layers() {
            is_refused(&msb.run(["pull", &name]));
            let gave = login(&msb, &registry, "wrong");
            assert_eq!(gave.code, 125, "{gave:?}");
            is_refused(&msb.run(["pull", &name]));
            assert_eq!(msb.json(["registry", "ls", "--json"]), json!([]));

            login(&msb, &registry, PASSWORD).ok();
            assert_eq!(msb.run(["run", &name, "--", "echo", "there"]).line(), "there");
            let listed = msb.json(["registry", "ls", "--json"]);
            assert_eq!(listed[0]["registry"], registry.address());
            assert_eq!(listed[0]["user"], USER);
            assert!(!msb.words("registry ls").line().contains(PASSWORD));

            msb.run(["registry", "logout", registry.address()]).ok();
            msb.run(["image", "rm", &name]).ok();
            msb.run(["image", "prune", "--all"]).ok();
            is_refused(&msb.run(["pull", &name]));
            assert_eq!(msb.json(["registry", "ls", "--json"]), json!([]));
        }
    }
}

#[test]
fn what_is_public_needs_a_token_and_no_login() {
    let registry = Registry::with_tokens();
    let name = registry.push(Layout::busybox(), "public/app:1");
    for msb in Msb::each_with_own_layers() {
        assert_eq!(msb.run(["run", &name, "--", "echo", "there"]).line(), "there");
    }
    let coming = registry.tokens().asked();
    assert!(coming.iter().any(|head| head.contains("scope=repository")), "{coming:#?}");
}

#[test]
fn a_secret_is_in_auth_json_and_nowhere_else() {
    let registry = Registry::with_password();
    let name = registry.push(Layout::busybox(), PRIVATE);
    for msb in Msb::each_with_own_layers() {
        let mut said = vec![login(&msb, &registry, PASSWORD).ok()];
        said.push(msb.run(["pull", &name]).ok());
        said.push(msb.run(["create", "-n", "box", &name]).ok());
        said.push(msb.run(["inspect", "box"]).ok());
        said.push(msb.run(["exec", "box", "--", "env"]).ok());
        said.push(msb.run(["image", "inspect", "--json", &name]).ok());
        said.push(msb.run(["run", "--dry-run", &name, "--", "true"]).ok());
        for gave in said {
            assert!(!format!("{gave:?}").contains(PASSWORD), "{gave:?}");
        }
        assert_eq!(files_with_the_secret(&msb.home()), ["auth.json"]);
        let auth = msb.home().join("auth.json");
        assert_eq!(fs::metadata(&auth).unwrap().permissions().mode() & 0o777, 0o600);
        let text: Value = serde_json::from_slice(&fs::read(auth).unwrap()).unwrap();
        let coded = base64(format!("{USER}:{PASSWORD}").as_bytes());
        assert_eq!(text["auths"][registry.address()]["auth"], coded);

        msb.run(["registry", "logout", registry.address()]).ok();
        assert_eq!(files_with_the_secret(&msb.home()), [""; 0]);
    }
}

/// All users of a machine can read all command lines.
#[test]
fn a_secret_is_never_on_a_command_line() {
    let msb = Msb::with_own_layers();
    let registry = Registry::with_password();
    registry.push(Layout::busybox(), PRIVATE);
    let mut child = msb
        .command(["registry", "login", "-u", USER, "--password-stdin", registry.address()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(PASSWORD.as_bytes()).unwrap();
    for process in Process::tree(child.id()) {
        for file in ["cmdline", "environ"] {
            let text = fs::read(format!("/proc/{}/{file}", process.pid)).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&text).contains(PASSWORD));
        }
    }
    drop(pipe);
    ends(child).ok();
    for flag in ["-p", "--password"] {
        let gave = msb.run(["registry", "login", "-u", USER, flag, PASSWORD, registry.address()]);
        assert_eq!(gave.code, 125, "there is no flag for it: {gave:?}");
    }
}

#[test]
fn dockers_own_login_is_used_where_there_is_none_of_ours() {
    let registry = Registry::with_password();
    let name = registry.push(Layout::busybox(), PRIVATE);
    let coded = base64(format!("{USER}:{PASSWORD}").as_bytes());
    let config = json!({"auths": {registry.address(): {"auth": coded}}}).to_string();
    for msb in Msb::each_with_own_layers() {
        msb.file(".docker/config.json", &config);
        assert_eq!(msb.run(["run", &name, "--", "echo", "there"]).line(), "there");
        fs::remove_dir_all(msb.scratch().join(".docker")).unwrap();
        msb.run(["image", "rm", &name]).ok();
        is_refused(&msb.run(["pull", "-q", &name]));
        msb.file("elsewhere/config.json", &config);
        let mut command = msb.command(["pull", &name]);
        command.env("DOCKER_CONFIG", msb.scratch().join("elsewhere"));
        gives(&mut command).ok();
        assert!(!msb.home().join("auth.json").exists(), "it stays Docker's");
    }
}

#[test]
fn a_credential_helper_is_asked_by_its_name() {
    let registry = Registry::with_tokens();
    let name = registry.push(Layout::busybox(), PRIVATE);
    for key in ["credHelpers", "credsStore"] {
        let config = match key {
            "credHelpers" => json!({key: {registry.address(): "tests"}}),
            _ => json!({key: "tests"}),
        };
        for msb in Msb::each_with_own_layers() {
            msb.file(".docker/config.json", config.to_string());
            let answer = json!({"ServerURL": "", "Username": USER, "Secret": PASSWORD});
            let said = msb.scratch().join("said");
            let helper = format!(
                "#!/bin/sh\n{{ echo \"$@\"; cat; echo; }} >>{}\necho '{answer}'\n",
                said.display()
            );
            let helper = msb.file("bin/docker-credential-tests", helper);
            fs::set_permissions(helper, Permissions::from_mode(0o755)).unwrap();
            let path = format!("{}/bin:/usr/bin:/bin", msb.scratch().display());
            let mut command = msb.command(["run", &name, "--", "echo", "there"]);
            assert_eq!(gives(command.env("PATH", path)).line(), "there");
            let said = fs::read_to_string(said).unwrap();
            let words: Vec<&str> = said.split_whitespace().collect();
            assert_eq!(words[..2], ["get", registry.address()], "{said}");
            assert_eq!(files_with_the_secret(&msb.home()), [""; 0]);
        }
    }
}

#[test]
fn a_credential_helper_that_fails_does_not_show_what_it_said() {
    let registry = Registry::with_password();
    let name = registry.push(Layout::busybox(), PRIVATE);
    for msb in Msb::each_with_own_layers() {
        let config = json!({"credHelpers": {registry.address(): "tests"}});
        msb.file(".docker/config.json", config.to_string());
        // The last one takes as long as we wait for it, which need not be seen twice.
        let scripts = ["echo 's3cret garbage'", "echo s3cret; exit 1", "exec sleep 600"];
        for script in &scripts[..if msb.is_root() { 2 } else { 3 }] {
            let helper = msb.file("bin/docker-credential-tests", format!("#!/bin/sh\n{script}\n"));
            fs::set_permissions(helper, Permissions::from_mode(0o755)).unwrap();
            let path = format!("{}/bin:/usr/bin:/bin", msb.scratch().display());
            let mut command = msb.command(["pull", &name]);
            command.env("PATH", path).stdout(Stdio::piped()).stderr(Stdio::piped());
            let child = command.spawn().unwrap();
            let gave = msb_e2e::ends_within(child, std::time::Duration::from_secs(120));
            assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{gave:?}");
            assert!(!gave.stderr.contains("s3cret"), "{gave:?}");
        }
    }
}

/// A registry may send us elsewhere; what we tell it is for it alone.
#[test]
fn credentials_of_one_registry_go_to_no_other() {
    let (ours, other) = (Registry::with_tokens(), Registry::with_tokens());
    ours.push(Layout::busybox(), PRIVATE);
    let name = other.push(Layout::busybox(), PRIVATE);
    for msb in Msb::each_with_own_layers() {
        login(&msb, &ours, PASSWORD).ok();
        let before = other.tokens().asked().len();
        is_refused(&msb.run(["pull", &name]));
        for head in &other.tokens().asked()[before..] {
            assert!(!head.to_ascii_lowercase().contains("authorization"), "{head}");
        }
    }
}

#[test]
fn logging_out_of_nothing_says_so() {
    for msb in Msb::each_with_own_layers() {
        let gave = msb.run(["registry", "logout", "registry.invalid"]);
        assert_eq!(gave.code, 125, "{gave:?}");
        assert!(gave.stderr.contains("registry.invalid"), "{gave:?}");
    }
}
