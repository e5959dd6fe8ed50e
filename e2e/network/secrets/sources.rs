//! Where a value comes from, each time its sandbox starts.

use super::{FLAGS, arrived, header, lasting, value, with_value};
use crate::world::{Person, World};
use msb_e2e::{Gave, ends};

fn sends(word: &str) -> String {
    format!(
        "curl -sS -o /dev/null -w '%{{http_code}}' https://api.example.com/{word} \
         -H \"x-api-key: $API_KEY\""
    )
}

#[test]
fn a_value_comes_from_a_file_or_a_command() {
    for person in World::people() {
        let uid = person.msb.uid();
        let value = value(&person, "file");
        let file = person.msb.file("secret", format!("{value}\n"));
        let flag = format!("API_KEY={}@api.example.com", file.display());
        let word = format!("file-{uid}");
        assert_eq!(person.inside(&["--secret-file", &flag], &sends(&word)).line(), "200");
        assert_eq!(header(&arrived(&person, &word), "x-api-key"), [value.as_str()]);
        let flag = format!("API_KEY=cat {} | tr -d x@api.example.com", file.display());
        let word = format!("command-{uid}");
        assert_eq!(person.inside(&["--secret-command", &flag], &sends(&word)).line(), "200");
        assert_eq!(header(&arrived(&person, &word), "x-api-key"), [value.replace('x', "")]);
    }
}

#[test]
fn a_value_that_is_not_there_is_an_error() {
    for person in World::people() {
        for flags in [
            &["--secret", "NO_SUCH_KEY@api.example.com"][..],
            &["--secret-file", "KEY=/no/such/file@api.example.com"],
            &["--secret-command", "KEY=false@api.example.com"],
            &["--secret", "KEY"],
            &["--secret", "KEY@"],
        ] {
            let gave = person.inside(flags, "echo ran");
            assert_ne!(gave.code, 0, "{flags:?}: {gave:#?}");
            assert!(!gave.stdout.contains("ran"), "{flags:?}: {gave:#?}");
            assert!(gave.stderr.contains("KEY"), "{flags:?}: {gave:#?}");
        }
    }
}

fn starts(person: &Person, value: Option<&str>) -> Gave {
    let mut command = person.command(["start", "net"]);
    if let Some(value) = value {
        command.env("API_KEY", value);
    }
    ends(command.spawn().expect("msb can be executed"))
}

#[test]
fn a_start_reads_the_value_again() {
    for person in World::people() {
        let uid = person.msb.uid();
        let first = value(&person, "first");
        lasting(&person, &first, "net", &FLAGS);
        let placeholder = person.within("net", "echo $API_KEY").line();
        person.run(["stop", "net"]).ok();
        let gave = starts(&person, None);
        assert_ne!(gave.code, 0, "{gave:#?}");
        assert!(gave.stderr.contains("API_KEY") && gave.stderr.contains("hint: "), "{gave:#?}");
        let second = value(&person, "second");
        starts(&person, Some(&second)).ok();
        // What was written inside meanwhile is still good.
        assert_eq!(person.within("net", "echo $API_KEY").line(), placeholder);
        let word = format!("again-{uid}");
        assert_eq!(person.within("net", &sends(&word)).line(), "200");
        assert_eq!(header(&arrived(&person, &word), "x-api-key"), [second]);
    }
}

#[test]
fn several_secrets_are_kept_apart() {
    for person in World::people() {
        let uid = person.msb.uid();
        let value = value(&person, "several");
        let other = format!("{value}-other");
        let file = person.msb.file("other", &other);
        let flag = format!("OTHER={}@other.example.com", file.display());
        let flags = [&FLAGS[..], &["--secret-file", &flag]].concat();
        let script = format!(
            "curl='curl -s -o /dev/null -w %{{http_code}}\\n'; \
             $curl https://api.example.com/a-{uid}-apart -H \"x-api-key: $API_KEY\"; \
             $curl https://other.example.com/b-{uid}-apart -H \"x-api-key: $OTHER\"; \
             $curl https://other.example.com/c-{uid}-apart -H \"x-api-key: $API_KEY\"; \
             $curl https://api.example.com/d-{uid}-apart -H \"x-api-key: $OTHER\""
        );
        let gave = with_value(&person, &value, &flags, &script).ok();
        assert_eq!(gave.stdout, "200\n200\n403\n403\n");
        let first = arrived(&person, &format!("a-{uid}-apart"));
        let second = arrived(&person, &format!("b-{uid}-apart"));
        assert_eq!(header(&first, "x-api-key"), [value]);
        assert_eq!(header(&second, "x-api-key"), [other]);
        for refused in ["c", "d"] {
            assert!(person.world.requests(&format!("{refused}-{uid}-apart")).is_empty());
        }
    }
}
