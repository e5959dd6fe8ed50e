//! What an image says of its own program: ENV, WORKDIR, USER, ENTRYPOINT, CMD.

use msb_e2e::Msb;
use msb_e2e::images::Image;
use msb_e2e::registry::Registry;
use serde_json::{Value, json};

fn pushed(name: &str, words: &Value) -> String {
    let layout = Image::busybox().config(words).layout();
    Registry::shared().push(&layout, &format!("config/{name}"))
}

#[test]
fn env_and_workdir_of_the_image_apply_and_flags_win() {
    let env = ["PATH=/bin:/usr/bin", "GREETING=hello world", "EMPTY=", "EQUALS=a=b"];
    let name = pushed("env", &json!({"Env": env, "WorkingDir": "/srv/deep"}));
    for msb in Msb::each_with_own_layers() {
        let script = "pwd; env | grep -E '^(GREETING|EMPTY|EQUALS|PATH|MORE)=' | sort";
        let gave = msb.run(["run", &name, "--", "sh", "-c", script]);
        let own = "/srv/deep\nEMPTY=\nEQUALS=a=b\nGREETING=hello world\nPATH=/bin:/usr/bin";
        assert_eq!(gave.line(), own);
        let flags = ["-e", "GREETING=bye", "-e", "MORE=1", "-w", "/tmp"];
        let args =
            ["run"].into_iter().chain(flags).chain([name.as_str(), "--", "sh", "-c", script]);
        let changed = "/tmp\nEMPTY=\nEQUALS=a=b\nGREETING=bye\nMORE=1\nPATH=/bin:/usr/bin";
        assert_eq!(msb.run(args).line(), changed);
    }
}

#[test]
fn entrypoint_and_cmd_are_joined_as_docker_joins_them() {
    let count = ["sh", "-c", "echo \"$0 $#: $*\""];
    let name = pushed("entry", &json!({"Entrypoint": count, "Cmd": ["zero", "one", "two words"]}));
    for msb in Msb::each_with_own_layers() {
        assert_eq!(msb.run(["run", &name]).line(), "zero 2: one two words");
        assert_eq!(msb.run(["run", &name, "--", "a", "b c"]).line(), "a 1: b c");
        let gave = msb.run(["run", "--entrypoint", "echo", &name]);
        assert_eq!(gave.line(), "", "CMD belongs to the ENTRYPOINT that was replaced");
        assert_eq!(msb.run(["run", "--entrypoint", "echo", &name, "--", "x"]).line(), "x");
    }
}

#[test]
fn cmd_alone_is_replaced_by_the_command_given() {
    let name = pushed("cmd", &json!({"Cmd": ["echo", "from", "the image"]}));
    for msb in Msb::each_with_own_layers() {
        assert_eq!(msb.run(["run", &name]).line(), "from the image");
        assert_eq!(msb.run(["run", &name, "--", "echo", "mine"]).line(), "mine");
    }
}

#[test]
fn an_image_without_any_command_gives_a_shell_or_says_so() {
    let name = pushed("none", &json!({"Cmd": [], "Entrypoint": []}));
    for msb in Msb::each_with_own_layers() {
        let gave = msb.run_with(["run", &name], b"echo $((6 * 7))\n");
        assert_eq!(gave.line(), "42");
    }
}

#[test]
fn user_of_the_image_applies_in_all_its_forms() {
    for (user, expected) in [
        ("web", "33 33"),
        ("33", "33 33"),
        ("web:root", "33 0"),
        ("1000:1001", "1000 1001"),
        ("0", "0 0"),
        ("", "0 0"),
    ] {
        let tag = user.replace(':', "-");
        let name = pushed(&format!("user:x{tag}"), &json!({"User": user}));
        for msb in Msb::each_with_own_layers() {
            let script = "echo $(id -u) $(id -g)";
            assert_eq!(
                msb.run(["run", &name, "--", "sh", "-c", script]).line(),
                expected,
                "{user}"
            );
            let gave = msb.run(["run", "--user", "root", &name, "--", "sh", "-c", script]);
            assert_eq!(gave.line(), "0 0", "{user}");
        }
    }
}

#[test]
fn a_user_that_the_image_does_not_have_is_an_error() {
    let name = pushed("stranger", &json!({"User": "stranger"}));
    for msb in Msb::each_with_own_layers() {
        let gave = msb.run(["run", &name, "--", "true"]);
        assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{gave:?}");
        assert!(gave.stderr.contains("stranger"), "{gave:?}");
    }
}

#[test]
fn with_one_id_user_is_refused_with_the_way_out() {
    let Some(msb) = Msb::with_one_id() else {
        return msb_e2e::skip("only root can become a user without ids");
    };
    let name = pushed("one-id", &json!({"User": "web"}));
    let gave = msb.run(["run", &name, "--", "true"]);
    assert_eq!(gave.code, 125, "{gave:?}");
    assert!(gave.stderr.contains("uidmap"), "{gave:?}");
    assert_eq!(msb.run(["run", "--user", "root", &name, "--", "id", "-u"]).line(), "0");
}

#[test]
fn later_commands_have_the_images_settings_but_not_its_entrypoint() {
    let words = json!({
        "Env": ["PATH=/bin", "WHO=image"],
        "WorkingDir": "/home/web",
        "User": "web",
        "Entrypoint": ["false"],
    });
    let name = pushed("exec", &words);
    for msb in Msb::each_with_own_layers() {
        msb.run(["create", "-n", "box", "-e", "MORE=1", &name]).ok();
        let script = "echo $WHO $MORE $(pwd) $(id -un)";
        let gave = msb.run(["exec", "box", "--", "sh", "-c", script]);
        assert_eq!(gave.line(), "image 1 /home/web web");
        msb.run(["stop", "box"]).ok();
        msb.run(["start", "box"]).ok();
        let gave = msb.run(["exec", "box", "--", "sh", "-c", script]);
        assert_eq!(gave.line(), "image 1 /home/web web", "after a restart");
    }
}

#[test]
fn the_rest_of_the_config_is_shown_by_inspect() {
    let words = json!({
        "Labels": {"org.example.team": "tools"},
        "ExposedPorts": {"80/tcp": {}},
        "Volumes": {"/data": {}},
        "StopSignal": "SIGINT",
        "Healthcheck": {"Test": ["CMD", "true"]},
        "Shell": ["/bin/sh", "-c"],
        "WorkingDir": "/srv",
        "User": "web",
        "Entrypoint": ["sh"],
    });
    let name = pushed("kept", &words);
    for msb in Msb::each_with_own_layers() {
        msb.run(["pull", &name]).ok();
        let config = &msb.json(["image", "inspect", "--json", &name])["config"];
        assert_eq!(config["env"], json!(["PATH=/bin:/usr/bin"]));
        assert_eq!(config["entrypoint"], json!(["sh"]));
        assert_eq!(config["cmd"], json!(["sh"]));
        assert_eq!(config["workdir"], "/srv");
        assert_eq!(config["user"], "web");
        assert_eq!(config["labels"], json!({"org.example.team": "tools"}));
        assert_eq!(config["stop_signal"], "SIGINT");
        assert_eq!(config["shell"], json!(["/bin/sh", "-c"]));
        let text = config.to_string();
        assert!(text.contains("80/tcp") && text.contains("/data"), "{text}");
        assert!(config["healthcheck"].to_string().contains("true"), "{text}");
    }
}
