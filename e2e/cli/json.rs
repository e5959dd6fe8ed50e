//! `--json`: results, errors and notes for programs.

use msb_e2e::{CmdOutput, Msb};
use serde_json::{Value, json};

/// Verbs whose output is a text for another program, or a protocol.
const TEXT_ONLY: [&str; 8] =
    ["api", "completion", "docs", "mcp", "skill show", "ssh config", "ssh serve", "volume cat"];

/// The values of the lines, one each.
fn lines(text: &str) -> Vec<Value> {
    let value = |line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}"));
    text.lines().map(value).collect()
}

#[test]
fn every_verb_that_prints_has_the_flag() {
    let tree = Msb::new().words("--tree").ok().stdout;
    let mut verbs: Vec<(&str, bool)> = Vec::new();
    for line in tree.lines().skip(1) {
        match line.strip_prefix("    ") {
            None => verbs.push((line.trim().split("  ").next().expect("a verb"), false)),
            Some(flag) if flag.starts_with("--json ") => {
                verbs.last_mut().expect("a verb").1 = true;
            }
            Some(_) => {}
        }
    }
    for (verb, has_flag) in verbs {
        assert_eq!(has_flag, !TEXT_ONLY.contains(&verb), "{verb}");
    }
}

#[test]
fn results_are_an_object_a_line() {
    let msb = Msb::new();
    for (line, expected) in [
        ("create -n one --json", vec![json!({"name": "one"})]),
        ("run -d -n two --json -- sleep 600", vec![json!({"name": "two"})]),
        ("exec -d --json one -- sleep 600", vec![json!({"id": 1})]),
        ("pause one --json", vec![json!({"name": "one"})]),
        ("resume one --json", vec![json!({"name": "one"})]),
        ("stop -f --json one two", vec![json!({"name": "one"}), json!({"name": "two"})]),
        ("rename --json one three", vec![json!({"name": "three"})]),
        ("volume create --json vol", vec![json!({"name": "vol"})]),
        ("volume rm --json vol", vec![json!({"name": "vol"})]),
        ("rm --json three", vec![json!({"name": "three"})]),
    ] {
        let gave = msb.words(line).ok();
        assert_eq!(lines(&gave.stdout), expected, "{line}");
        assert_eq!(gave.stderr, "", "{line}");
    }
    let again = msb.words("create -n four --json").ok();
    assert_eq!(lines(&again.stdout), [json!({"name": "four"})]);
    let gave = msb.words("start --json four").ok();
    assert_eq!(gave.stdout, "");
    assert_eq!(lines(&gave.stderr), [json!({"note": "sandbox `four` runs already"})]);
}

#[test]
fn errors_are_an_object_on_stderr_and_codes_stay() {
    let msb = Msb::new();
    msb.words("create -n web").ok();
    for (line, code, kind) in [
        ("stop nobody --json", 125, "not_found"),
        ("inspect --json nobody", 125, "not_found"),
        ("ls --json --nonsense", 125, "invalid"),
        ("run --json --memory many -- true", 125, "invalid"),
        ("rnu --json", 125, "invalid"),
        ("exec --json web -- no-such-program", 127, "command_not_found"),
        ("exec --json web -- /etc/passwd", 126, "not_executable"),
    ] {
        let CmdOutput { code: found, stdout, stderr } = msb.words(line);
        assert_eq!((found, stdout.as_str()), (code, ""), "{line}: {stderr}");
        let told = lines(&stderr);
        let [told] = told.as_slice() else { panic!("{line}: {stderr}") };
        let error = &told["error"];
        assert_eq!(error["kind"], kind, "{line}: {stderr}");
        assert!(error["message"].as_str().is_some_and(|it| !it.is_empty()), "{line}: {stderr}");
        assert!(error["causes"].is_array(), "{line}: {stderr}");
        assert!(error["hint"].is_string() || error["hint"].is_null(), "{line}: {stderr}");
        // The same without the flag, for people.
        let plain = msb.words(&line.replace(" --json", ""));
        assert_eq!(plain.code, code, "{line}");
        assert!(plain.stderr.starts_with("error: "), "{line}: {}", plain.stderr);
    }
    // Several sandboxes: one line for each that failed.
    let gave = msb.words("stop --json web nobody");
    assert_eq!(gave.code, 125);
    assert_eq!(lines(&gave.stdout), [json!({"name": "web"})]);
    assert_eq!(lines(&gave.stderr).len(), 1, "{}", gave.stderr);
    // A flag of the command inside is not ours.
    let gave = msb.run(["run", "--", "sh", "-c", "exit 3", "--json"]);
    assert_eq!((gave.code, gave.stderr.as_str()), (3, ""));
}
