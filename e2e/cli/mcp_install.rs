//! `msb mcp install`: an entry in the settings of a client, and nothing else.

use msb_e2e::terminal::Terminal;
use msb_e2e::{CmdOutput, Msb, ends, shared};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A client, its file below the home directory, its file in a project, its section, its mark.
type ClientFiles =
    (&'static str, &'static str, Option<&'static str>, &'static str, Option<[&'static str; 2]>);

const STDIO: Option<[&str; 2]> = Some(["type", "stdio"]);

const CLIENTS: [ClientFiles; 6] = [
    ("claude-code", ".claude.json", Some(".mcp.json"), "mcpServers", STDIO),
    ("claude-desktop", ".config/Claude/claude_desktop_config.json", None, "mcpServers", None),
    ("cursor", ".cursor/mcp.json", Some(".cursor/mcp.json"), "mcpServers", STDIO),
    ("vscode", ".config/Code/User/mcp.json", Some(".vscode/mcp.json"), "servers", STDIO),
    ("windsurf", ".codeium/windsurf/mcp_config.json", None, "mcpServers", None),
    (
        "zed",
        ".config/zed/settings.json",
        Some(".zed/settings.json"),
        "context_servers",
        Some(["source", "custom"]),
    ),
];

/// What is written for a client.
fn entry(mark: Option<[&str; 2]>, words: &[&str]) -> Value {
    let mut entry = json!({"command": program(), "args": words});
    if let Some([name, value]) = mark {
        entry[name] = json!(value);
    }
    entry
}

fn program() -> String {
    shared().join("msb").to_str().expect("text").to_owned()
}

fn copies(file: &Path) -> Vec<PathBuf> {
    let beside = fs::read_dir(file.parent().expect("a directory"))
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path());
    let name = format!("{}.bak-", file.file_name().expect("a name").to_str().expect("text"));
    let is_copy = |path: &PathBuf| {
        path.file_name().expect("a name").to_str().expect("text").starts_with(&name)
    };
    let mut copies: Vec<PathBuf> = beside.filter(is_copy).collect();
    copies.sort();
    copies
}

/// With a home directory of its own, so that nothing lies in it but what a test puts there.
fn begin(msb: &Msb) -> PathBuf {
    let home = msb.file("user/.keep", "").parent().expect("a directory").to_owned();
    msb.chown(&home);
    home
}

fn command(msb: &Msb, line: &str) -> Command {
    let mut command = msb.command(line.split_whitespace());
    let home = msb.scratch().join("user");
    command.env("HOME", &home).env_remove("MSB_HOME").current_dir(&home);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[track_caller]
fn words(msb: &Msb, line: &str) -> CmdOutput {
    ends(command(msb, line).spawn().expect("msb can be executed"))
}

#[test]
fn every_client_gets_its_own_file_in_its_own_form() {
    for msb in Msb::each() {
        let home = begin(&msb);
        for (client, file, _, section, mark) in CLIENTS {
            let gave = words(&msb, &format!("mcp install {client} -y")).ok();
            assert!(gave.stdout.contains("+    \"microsandbox\": {\n"), "{gave:?}");
            let file = home.join(file);
            let written = fs::read_to_string(&file).unwrap();
            let value: Value = serde_json::from_str(&written).unwrap();
            let expected = json!({section: {"microsandbox": entry(mark, &["mcp"])}});
            assert_eq!(value, expected, "{client}");
            assert!(written.ends_with("}\n"), "{written:?}");
            assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);

            // Once more is nothing more.
            let gave = words(&msb, &format!("mcp install {client}")).ok();
            assert_eq!(gave.stdout, "");
            assert!(gave.stderr.contains("has it already"), "{gave:?}");
            assert_eq!(copies(&file), [] as [PathBuf; 0]);

            // Another dialect, another name.
            words(&msb, &format!("mcp install {client} -y --dialect core")).ok();
            words(&msb, &format!("mcp install {client} -y --name two --dialect server")).ok();
            let value: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            let core = entry(mark, &["mcp", "--dialect", "core"]);
            let server = entry(mark, &["mcp", "--dialect", "server"]);
            assert_eq!(value, json!({section: {"microsandbox": core, "two": server}}));
            let copies = copies(&file);
            assert_eq!(copies.len(), 2);
            assert_eq!(fs::read_to_string(&copies[0]).unwrap(), written);
            assert_eq!(copies[0].metadata().unwrap().mode() & 0o777, 0o600);

            words(&msb, &format!("mcp uninstall {client} -y")).ok();
            words(&msb, &format!("mcp uninstall {client} -y --name two")).ok();
            assert_eq!(
                fs::read_to_string(&file).unwrap(),
                format!("{{\n  \"{section}\": {{}}\n}}\n")
            );
            let gave = words(&msb, &format!("mcp uninstall {client} -y"));
            assert_eq!(gave.code, 125);
            assert!(gave.stderr.starts_with("error: no `microsandbox` in `"), "{gave:?}");
        }
    }
}

#[test]
fn the_state_directory_of_the_shell_is_that_of_the_server() {
    let msb = Msb::new();
    let home = begin(&msb);
    for (client, file, project, section, mark) in CLIENTS {
        let install = |flags: &str| {
            let mut command = command(&msb, &format!("mcp install {client} -y {flags}"));
            ends(command.env("MSB_HOME", "state").spawn().unwrap()).ok()
        };
        install("");
        let value: Value = serde_json::from_slice(&fs::read(home.join(file)).unwrap()).unwrap();
        let mut expected = entry(mark, &["mcp"]);
        expected["env"] = json!({"MSB_HOME": home.join("state").to_str().unwrap()});
        assert_eq!(value[section]["microsandbox"], expected, "{client}");
        if project.is_some() {
            let gave = install("--project --name shared");
            assert!(gave.stderr.contains("MSB_HOME is not written"), "{gave:?}");
            assert!(!gave.stdout.contains("+        \"MSB_HOME"), "{gave:?}");
        }
    }
}

#[test]
fn comments_order_and_form_of_the_rest_stay() {
    for msb in Msb::each() {
        let home = begin(&msb);
        for (client, file, _, section, _) in CLIENTS {
            let text = format!(
                "// mine\r\n{{\r\n\t\"z\": [1,2 , 3],\r\n\t\"{section}\": {{\r\n\t\t/* about it */\r\n\t\t\
                 \"other\": {{ \"command\": \"x\", \"env\": {{ \"KEY\": \"s3cret\" }} }}, // trailing\r\n\
                 \t}},\r\n\t\"a\": \"s3cret\" // last\r\n}}\r\n"
            );
            let file = msb.file(&format!("user/{file}"), &text);
            fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
            let gave = words(&msb, &format!("mcp install {client} -y")).ok();
            // The output does not show keys of other servers.
            assert!(!format!("{gave:?}").contains("s3cret"), "{gave:?}");
            let with = fs::read_to_string(&file).unwrap();
            for line in text.split_inclusive("\r\n") {
                assert!(with.contains(line), "{line:?} in {with}");
            }
            let meta = file.metadata().unwrap();
            assert_eq!(meta.mode() & 0o777, 0o640);
            assert_eq!(meta.uid(), home.metadata().unwrap().uid());
            let kept = copies(&file);
            assert_eq!(fs::read_to_string(&kept[0]).unwrap(), text);
            assert_eq!(kept[0].metadata().unwrap().mode() & 0o777, 0o640);
            words(&msb, &format!("mcp uninstall {client} -y")).ok();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
    }
}

#[test]
fn nothing_is_written_dry_or_without_an_answer() {
    let msb = Msb::new();
    let home = begin(&msb);
    for (client, file, ..) in CLIENTS {
        let gave = words(&msb, &format!("mcp install {client} --dry-run")).ok();
        assert!(gave.stdout.contains("\"microsandbox\""), "{gave:?}");
        let gave = words(&msb, &format!("mcp install {client}"));
        assert_eq!(gave.code, 125);
        assert!(gave.stderr.contains("no terminal to ask at"), "{gave:?}");
        assert!(gave.stderr.contains("hint: `--yes`"), "{gave:?}");
        assert!(!home.join(file).exists());
    }
    let lying: Vec<_> =
        fs::read_dir(&home).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(lying, [".keep"]);

    for (key, written) in [("n\n", false), ("\n", false), ("y\n", true)] {
        let mut terminal = Terminal::start(&command(&msb, "mcp install cursor"), 24, 80);
        terminal.shows("[y/N]");
        terminal.types(key);
        let (code, shown) = terminal.ends();
        assert_eq!(code, 0, "{shown}");
        assert_eq!(home.join(".cursor/mcp.json").exists(), written, "{shown}");
    }
}

#[test]
fn a_broken_file_stays_and_is_reported_by_line_and_column() {
    let msb = Msb::new();
    begin(&msb);
    for (client, file, _, section, _) in CLIENTS {
        for (text, told) in [
            (format!("{{\n  \"{section}\": {{}}\n  \"x\": 1\n}}\n"), "line 2, column"),
            (format!("{{\n  \"{section}\": {{\n"), "line "),
            (format!("{{\"{section}\": []}}"), "is not an object"),
            ("[]".to_owned(), "holds no JSON object"),
        ] {
            let file = msb.file(&format!("user/{file}"), &text);
            for verb in ["install", "uninstall"] {
                let gave = words(&msb, &format!("mcp {verb} {client} -y"));
                assert_eq!(gave.code, 125, "{gave:?}");
                let name = file.canonicalize().unwrap();
                let first = format!("error: cannot change `{}`\n", name.display());
                assert!(gave.stderr.starts_with(&first), "{gave:?}");
                assert!(gave.stderr.contains(told), "{told}: {gave:?}");
                assert!(gave.stderr.contains("hint: nothing was written"), "{gave:?}");
            }
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
            assert_eq!(copies(&file), [] as [PathBuf; 0]);
        }
    }
    let file = msb.file("user/.claude.json", b"{\"x\": \"\xff\"}");
    assert!(words(&msb, "mcp install claude-code -y").stderr.contains("it is not text at byte 7"));
    fs::remove_file(&file).unwrap();
    let made = Command::new("mkfifo").arg(&file).status().unwrap();
    assert!(made.success());
    assert!(words(&msb, "mcp install claude-code -y").stderr.contains("not a file: `"));
}

#[test]
fn a_link_into_dotfiles_stays_one() {
    for msb in Msb::each() {
        let home = begin(&msb);
        for (client, file, ..) in CLIENTS {
            let link = msb.file(&format!("user/{file}"), "");
            fs::remove_file(&link).unwrap();
            let real = msb.file(&format!("dotfiles/{client}.json"), "{}\n");
            symlink(&real, &link).unwrap();
            words(&msb, &format!("mcp install {client} -y")).ok();
            assert!(link.is_symlink());
            assert!(fs::read_to_string(&real).unwrap().contains("microsandbox"));
            assert_eq!(copies(&real).len(), 1);
            assert_eq!(copies(&link).len(), 0);
        }
        // One that leads to a file which is not there yet, by a directory that is a link.
        let file = home.join(".codeium/windsurf");
        fs::remove_dir_all(&file).unwrap();
        let dotfiles = msb.file("dotfiles/windsurf/.keep", "").parent().unwrap().to_owned();
        symlink("../../dotfiles/windsurf", &file).unwrap();
        symlink("real.json", dotfiles.join("mcp_config.json")).unwrap();
        words(&msb, "mcp install windsurf -y").ok();
        assert!(dotfiles.join("mcp_config.json").is_symlink());
        assert!(fs::read_to_string(dotfiles.join("real.json")).unwrap().contains("microsandbox"));
    }
}

#[test]
fn a_project_has_its_own_file_and_nothing_leads_out_of_it() {
    let msb = Msb::new();
    let home = begin(&msb);
    for (client, _, file, section, mark) in CLIENTS {
        let Some(file) = file else {
            let gave = words(&msb, &format!("mcp install {client} --project -y"));
            assert_eq!(gave.code, 125);
            assert!(gave.stderr.contains("has no settings of a project"), "{gave:?}");
            continue;
        };
        let project = msb.file(&format!("{client}/.keep"), "").parent().unwrap().to_owned();
        let run = |line: &str| ends(command(&msb, line).current_dir(&project).spawn().unwrap());
        run(&format!("mcp install {client} --project -y")).ok();
        let written: Value =
            serde_json::from_slice(&fs::read(project.join(file)).unwrap()).unwrap();
        assert_eq!(written, json!({section: {"microsandbox": entry(mark, &["mcp"])}}));
        run(&format!("mcp uninstall {client} --project -y")).ok();

        fs::remove_file(project.join(file)).unwrap();
        let outside = msb.file("user/outside.json", "{}");
        symlink(&outside, project.join(file)).unwrap();
        let gave = run(&format!("mcp install {client} --project -y"));
        assert_eq!(gave.code, 125);
        assert!(gave.stderr.contains("leads out of this project"), "{gave:?}");
        assert_eq!(fs::read_to_string(&outside).unwrap(), "{}");
        assert_eq!(copies(&outside), [] as [PathBuf; 0]);
    }
    assert!(!home.join(".mcp.json").exists());
}

/// A repository brings an entry by our name, with variables that would expose the whole host.
#[test]
fn nothing_that_a_repository_added_to_the_entry_stays() {
    let msb = Msb::new();
    begin(&msb);
    let theirs = json!({"mcpServers": {"microsandbox": {
        "command": "./msb", "args": ["mcp", "--host-path", "/"], "cwd": "/",
        "env": {
            "MICROSANDBOX_MCP_HOST_PATH_POLICY": "unrestricted",
            "MICROSANDBOX_MCP_ENABLE_DANGEROUS": "1",
        },
    }, "other": {"command": "x"}}});
    let file = msb.file("project/.cursor/mcp.json", theirs.to_string());
    let project = msb.scratch().join("project");
    let run = |line: &str| ends(command(&msb, line).current_dir(&project).spawn().unwrap());
    let gave = run("mcp install cursor --project -y");
    assert!(gave.stderr.contains("`env`") && gave.stderr.contains("`cwd`"), "{gave:?}");
    let value: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let wanted = json!({"mcpServers": {
        "microsandbox": entry(STDIO, &["mcp"]), "other": {"command": "x"},
    }});
    assert_eq!(value, wanted);
}

#[test]
fn entries_of_other_servers_stay() {
    let msb = Msb::new();
    begin(&msb);
    let text = "{\"mcpServers\": {\"microsandbox\": {\"command\": \"npx\", \"args\": [\"x\"]}}}";
    let file = msb.file("user/.cursor/mcp.json", text);
    for verb in ["install", "uninstall"] {
        let gave = words(&msb, &format!("mcp {verb} cursor -y"));
        assert_eq!(gave.code, 125);
        assert!(gave.stderr.contains("a `microsandbox` that does not start msb"), "{gave:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
    words(&msb, "mcp install cursor -y --force").ok();
    let value: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(value["mcpServers"]["microsandbox"], entry(STDIO, &["mcp"]));
    for name in ["", "a b", "a.b", "../x", "ä"] {
        let args = ["mcp", "install", "cursor", "-y", "--name", name];
        let gave = msb.run(args);
        assert_eq!(gave.code, 125, "{name}: {gave:?}");
    }
}

#[test]
fn the_program_is_named_as_the_client_finds_it() {
    let msb = Msb::new();
    let home = begin(&msb);
    let directory = Path::new(&program()).parent().unwrap().display().to_string();
    let install = |client: &str, path: &str| {
        let mut command = command(&msb, &format!("mcp install {client} -y"));
        ends(command.env("PATH", path).spawn().unwrap()).ok();
    };
    let written = |file: &str| {
        let value: Value = serde_json::from_slice(&fs::read(home.join(file)).unwrap()).unwrap();
        value["mcpServers"]["microsandbox"]["command"].as_str().unwrap().to_owned()
    };
    install("claude-code", &format!("/nowhere:{directory}:/usr/bin"));
    assert_eq!(written(".claude.json"), "msb");
    // What a desktop starts has no PATH of a shell.
    install("windsurf", &format!("{directory}:/usr/bin"));
    assert_eq!(written(".codeium/windsurf/mcp_config.json"), program());
    // Another program by that name is not this one.
    let other = msb.file("other/msb", "#!/bin/sh\n");
    fs::set_permissions(&other, Permissions::from_mode(0o755)).unwrap();
    let other = other.parent().unwrap().display().to_string();
    install("claude-code", &format!("{other}:{directory}"));
    assert_eq!(written(".claude.json"), program());
}

#[test]
fn settings_are_where_their_variables_say() {
    let msb = Msb::new();
    let home = begin(&msb);
    for (client, variable, file) in [
        ("claude-code", "CLAUDE_CONFIG_DIR", "dotfiles/.claude.json"),
        ("zed", "XDG_CONFIG_HOME", "dotfiles/zed/settings.json"),
        ("vscode", "XDG_CONFIG_HOME", "dotfiles/Code/User/mcp.json"),
    ] {
        let mut command = command(&msb, &format!("mcp install {client} -y"));
        ends(command.env(variable, home.join("dotfiles")).spawn().unwrap()).ok();
        assert!(home.join(file).exists(), "{client}");
    }
    let gave = ends(command(&msb, "mcp install zed -y").env_remove("HOME").spawn().unwrap());
    assert_eq!(gave.code, 125);
    assert!(gave.stderr.contains("HOME is not set"), "{gave:?}");
}
