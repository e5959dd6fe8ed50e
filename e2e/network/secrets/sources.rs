//! Where a value comes from, each time its sandbox starts.

use super::{FLAGS, arrived, header, lasting, value, with_value};
use crate::testnet::{TestNet, TestUser};
use msb_e2e::{CmdOutput, ends};

fn sends(word: &str) -> String {
    format!(
        "curl -sS -o /dev/null -w '%{{http_code}}' https://api.example.com/{word} \
         -H \"x-api-key: $API_KEY\""
    )
}

#[test]
fn a_value_comes_from_a_file_or_a_command() {
    for user in TestNet::users() {
        let uid = user.msb.uid();
        let value = value(&user, "file");
        let file = user.msb.file("secret", format!("{value}\n"));
        let flag = format!("API_KEY={}@api.example.com", file.display());
        let word = format!("file-{uid}");
        assert_eq!(user.inside(&["--secret-file", &flag], &sends(&word)).line(), "200");
        assert_eq!(header(&arrived(&user, &word), "x-api-key"), [value.as_str()]);
        let flag = format!("API_KEY=cat {} | tr -d x@api.example.com", file.display());
        let word = format!("command-{uid}");
        assert_eq!(user.inside(&["--secret-command", &flag], &sends(&word)).line(), "200");
        assert_eq!(header(&arrived(&user, &word), "x-api-key"), [value.replace('x', "")]);
    }
}

#[test]
fn a_value_that_is_not_there_is_an_error() {
    for user in TestNet::users() {
        for flags in [
            &["--secret", "NO_SUCH_KEY@api.example.com"][..],
            &["--secret-file", "KEY=/no/such/file@api.example.com"],
            &["--secret-command", "KEY=false@api.example.com"],
            &["--secret", "KEY"],
            &["--secret", "KEY@"],
        ] {
            let gave = user.inside(flags, "echo ran");
            assert_ne!(gave.code, 0, "{flags:?}: {gave:#?}");
            assert!(!gave.stdout.contains("ran"), "{flags:?}: {gave:#?}");
            assert!(gave.stderr.contains("KEY"), "{flags:?}: {gave:#?}");
        }
    }
}

fn starts(user: &TestUser, value: Option<&str>) -> CmdOutput {
    let mut command = user.command(["start", "net"]);
    if let Some(value) = value {
        command.env("API_KEY", value);
    }
    ends(command.spawn().expect("msb can be executed"))
}

#[test]
fn a_start_reads_the_value_again() {
    for user in TestNet::users() {
        let uid = user.msb.uid();
        let first = value(&user, "first");
        lasting(&user, &first, "net", &FLAGS);
        let placeholder = user.within("net", "echo $API_KEY").line();
        user.run(["stop", "net"]).ok();
        let gave = starts(&user, None);
        assert_ne!(gave.code, 0, "{gave:#?}");
        assert!(gave.stderr.contains("API_KEY") && gave.stderr.contains("hint: "), "{gave:#?}");
        let second = value(&user, "second");
        starts(&user, Some(&second)).ok();
        // What was written inside meanwhile is still good.
        assert_eq!(user.within("net", "echo $API_KEY").line(), placeholder);
        let word = format!("again-{uid}");
        assert_eq!(user.within("net", &sends(&word)).line(), "200");
        assert_eq!(header(&arrived(&user, &word), "x-api-key"), [second]);
    }
}

#[test]
fn several_secrets_are_kept_separate() {
    for user in TestNet::users() {
        let uid = user.msb.uid();
        let value = value(&user, "several");
        let other = format!("{value}-other");
        let file = user.msb.file("other", &other);
        let flag = format!("OTHER={}@other.example.com", file.display());
        let flags = [&FLAGS[..], &["--secret-file", &flag]].concat();
        let script = format!(
            "curl='curl -s -o /dev/null -w %{{http_code}}\\n'; \
             $curl https://api.example.com/a-{uid}-apart -H \"x-api-key: $API_KEY\"; \
             $curl https://other.example.com/b-{uid}-apart -H \"x-api-key: $OTHER\"; \
             $curl https://other.example.com/c-{uid}-apart -H \"x-api-key: $API_KEY\"; \
             $curl https://api.example.com/d-{uid}-apart -H \"x-api-key: $OTHER\""
        );
        let gave = with_value(&user, &value, &flags, &script).ok();
        assert_eq!(gave.stdout, "200\n200\n403\n403\n");
        let first = arrived(&user, &format!("a-{uid}-apart"));
        let second = arrived(&user, &format!("b-{uid}-apart"));
        assert_eq!(header(&first, "x-api-key"), [value]);
        assert_eq!(header(&second, "x-api-key"), [other]);
        for refused in ["c", "d"] {
            assert!(user.net.requests(&format!("{refused}-{uid}-apart")).is_empty());
        }
    }
}
