use super::*;

const SPOT: Spot<'_> =
    Spot { section: "mcpServers", name: "microsandbox", force: false, keep: true };

fn entry() -> Entry {
    vec![("command", Value::Text("msb".to_owned())), ("args", Value::List(vec!["mcp".to_owned()]))]
}

fn put_in(text: &str) -> String {
    put(text, SPOT, &entry()).unwrap()
}

#[test]
fn a_file_that_is_not_there_is_made() {
    let made = "{\n  \"mcpServers\": {\n    \"microsandbox\": {\n      \"command\": \"msb\",\n      \
                \"args\": [\"mcp\"]\n    }\n  }\n}\n";
    for nothing in ["", "\n", "  \n"] {
        assert_eq!(put_in(nothing).trim_start(), made, "{nothing:?}");
    }
    assert_eq!(put_in("{}\n"), made);
}

#[test]
fn what_goes_in_comes_out_and_all_else_stays() {
    for text in [
        "{\n  \"mcpServers\": {}\n}\n",
        "{\n  \"mcpServers\": {\n    \"other\": { \"command\": \"x\" }\n  }\n}\n",
        "{\n  // first\n  \"a\": 1, /* b */\n  \"mcpServers\": {\n    // before\n    \"other\": {}, \
         // after\n    // last\n  },\n  \"z\": [1, 2,],\n}\n// end\n",
        "{\r\n\t\"mcpServers\": {\r\n\t\t\"other\": {}\r\n\t},\r\n\t\"z\": null\r\n}",
        "{\"mcpServers\":{\"other\":{\"command\":\"x\"}},\"z\":\"\u{1F980}\"}",
        "{\"mcpServers\": {\"other\": {}, \"more\": []}, \"z\": 1}\n",
        "{ \"mcpServers\": { \"other\": {}, } }",
        "{\n  \"mcpServers\": { \"other\": {} /* why */ },\n  \"z\": 1\n}\n",
        "{\"mcpServers\":{}}",
        "\u{feff}{\n    \"mcpServers\": {\n        \"other\": {},\n    },\n}",
    ] {
        let with = put_in(text);
        assert_ne!(with, text);
        assert_eq!(put_in(&with), with, "twice is once");
        assert_eq!(take(&with, SPOT).unwrap().as_deref(), Some(text), "{with}");
    }
}

#[test]
fn others_keep_their_comments() {
    let text = "{\n  \"mcpServers\": {\n    \"other\": {} // mine\n    // kept\n  }\n}\n";
    let with = put_in(text);
    let without = take(&with, SPOT).unwrap().unwrap();
    for remark in ["// mine", "// kept"] {
        assert!(with.contains(remark) && without.contains(remark), "{with}{without}");
    }
    assert!(serde_json::from_str::<serde_json::Value>(&bare(&with)).is_ok(), "{with}");
}

/// Settings as JSON without comments.
fn bare(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_section_that_is_missing_is_made_where_strict_readers_take_it() {
    for text in ["{\"a\":1}", "{\n  \"a\": 1\n}\n", "{ }"] {
        let with = put_in(text);
        let value: serde_json::Value = serde_json::from_str(&with).unwrap();
        assert_eq!(value["mcpServers"]["microsandbox"]["args"][0], "mcp", "{with}");
    }
    let with =
        "{\"a\":1,\"mcpServers\":{\"microsandbox\":{\"command\":\"msb\",\"args\":[\"mcp\"]}}}";
    assert_eq!(put_in("{\"a\":1}"), with);
    let with = "{\"a\": 1, \"mcpServers\": {\"microsandbox\": {\"command\": \"msb\", \"args\": \
                [\"mcp\"]}}}";
    assert_eq!(put_in("{\"a\": 1}"), with);
}

#[test]
fn our_own_entry_is_renewed_and_keeps_what_was_added() {
    let text = "{\n  \"mcpServers\": {\n    \"microsandbox\": {\n      \"command\": \"/old/msb\", \
                // here\n      \"args\": [\"mcp\", \"--dialect\", \"core\"],\n      \"env\": { \
                \"MSB_HOME\": \"/x\" }\n    }\n  }\n}\n";
    let with = put_in(text);
    let expected = text
        .replace("\"/old/msb\"", "\"msb\"")
        .replace("[\"mcp\", \"--dialect\", \"core\"]", "[\"mcp\"]");
    assert_eq!(with, expected);
}

#[test]
fn nothing_that_a_repository_added_to_our_entry_stays() {
    let project = Spot { keep: false, ..SPOT };
    let clean = "{\"command\": \"msb\", \"args\": [\"mcp\"]}";
    for (theirs, gone) in [
        ("{\"command\": \"msb\", \"args\": [\"mcp\"], \"env\": {\"A\": \"b\"}}", &["env"][..]),
        ("{\"cwd\": \"/\", \"command\": \"x/msb\", \"args\": [\"mcp\", \"-x\"]}", &["cwd"]),
        (
            "{\"command\": \"msb\", \"args\": [\"mcp\"], \"alwaysAllow\": [\"*\"], \"envFile\": \"e\"}",
            &["alwaysAllow", "envFile"],
        ),
        ("{\"command\": \"msb\", \"args\": [\"mcp\"], \"command\": \"evil\"}", &[]),
        ("{\"command\": \"msb\", \"args\": [\"mcp\"], \"arg\\u0073\": [\"mcp\", \"-x\"]}", &[]),
        (clean, &[]),
    ] {
        let text = format!("{{\"mcpServers\": {{\"microsandbox\": {theirs}}}}}");
        let with = put(&text, project, &entry()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&with).unwrap();
        let wanted: serde_json::Value = serde_json::from_str(clean).unwrap();
        assert_eq!(value["mcpServers"]["microsandbox"], wanted, "{with}");
        assert_eq!(with.matches("command").count(), 1, "{with}");
        assert_eq!(dropped(&text, project, &entry()).unwrap(), gone, "{theirs}");
        assert_eq!(put(&with, project, &entry()).unwrap(), with);
    }
}

#[test]
fn the_entry_of_somebody_else_is_theirs() {
    for theirs in [
        "{\"command\": \"npx\", \"args\": [\"-y\", \"microsandbox-mcp\"]}",
        "{\"command\": \"msb\"}",
        "{\"command\": \"notmsb\", \"args\": [\"mcp\"]}",
        "{\"url\": \"http://127.0.0.1:5555/mcp\"}",
        "7",
    ] {
        let text = format!("{{\"mcpServers\": {{\"microsandbox\": {theirs}}}}}");
        assert_eq!(put(&text, SPOT, &entry()).unwrap_err().kind(), Kind::Exists, "{theirs}");
        assert_eq!(take(&text, SPOT).unwrap_err().kind(), Kind::Exists, "{theirs}");
        let force = Spot { force: true, ..SPOT };
        let with = put(&text, force, &entry()).unwrap();
        assert_eq!(put_in(&with), with);
        assert_eq!(take(&text, force).unwrap().unwrap(), "{\"mcpServers\": {}}");
    }
}

#[test]
fn nothing_is_taken_where_nothing_is() {
    for text in ["", "{}", "{\"mcpServers\": {}}", "{\"mcpServers\": {\"other\": {}}}", "// x\n"] {
        assert_eq!(take(text, SPOT).unwrap(), None, "{text}");
    }
}

#[test]
fn what_is_broken_is_told_by_line_and_column() {
    let error = put("{\n  \"a\": 1\n  \"b\": 2\n}", SPOT, &entry()).unwrap_err();
    assert_eq!(error.message(), "it is not JSON at line 2, column 9");
    for text in ["{", "{'a': 1}", "{a: 1}", "{\"a\": 0x1}", "{\"a\": }", "{} {}", "nonsense"] {
        assert!(put(text, SPOT, &entry()).is_err(), "{text}");
        assert!(take(text, SPOT).is_err(), "{text}");
    }
    let deep = "[".repeat(100_000);
    assert!(put(&deep, SPOT, &entry()).is_err());
    for text in [
        "[]",
        "7",
        "{\"mcpServers\": []}",
        "{\"mcpServers\": null}",
        "{\"mcpServers\": {}, \"mcpServers\": {}}",
        "{\"mcpServers\": {\"microsandbox\": {}, \"microsandbox\": {}}}",
    ] {
        assert_eq!(put(text, SPOT, &entry()).unwrap_err().kind(), Kind::Invalid, "{text}");
        assert_eq!(take(text, SPOT).unwrap_err().kind(), Kind::Invalid, "{text}");
    }
}

#[test]
fn keys_of_others_are_not_shown() {
    let text = "{\"t\": \"s3cret\", \"mcpServers\": {\"other\": {\"env\": {\"KEY\": \"s3cret\"}, \
                \"args\": [\"s3cret\"]}, \"microsandbox\": {\"command\": \"/bin/msb\"}}, \
                \"microsandbox\": \"s3cret\"}";
    let shown = masked(text, SPOT);
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(shown.contains("\"command\": \"/bin/msb\"") && shown.contains("\"KEY\": \"…\""));
}

#[test]
fn variables_that_were_added_stay_beside_ours() {
    let home = |path: &str| Value::Members(vec![("MSB_HOME", path.to_owned())]);
    let with = |path: &str| [entry(), vec![("env", home(path))]].concat();
    for text in ["{}", "{\"a\": 1}"] {
        let one = put(text, SPOT, &with("/a")).unwrap();
        assert_eq!(put(&one, SPOT, &with("/a")).unwrap(), one);
        let more = one.replace("\"/a\"", "\"/a\", \"MSB_LOG\": \"debug\"");
        let two: serde_json::Value =
            serde_json::from_str(&put(&more, SPOT, &with("/b")).unwrap()).unwrap();
        let env = serde_json::json!({"MSB_HOME": "/b", "MSB_LOG": "debug"});
        assert_eq!(two["mcpServers"]["microsandbox"]["env"], env);
        // Without the variable, what is there is not ours.
        assert_eq!(put(&more, SPOT, &entry()).unwrap(), more);
    }
}
