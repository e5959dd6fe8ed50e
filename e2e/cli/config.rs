//! `[defaults]` of config.toml, and `msb config`.

use msb_e2e::{CmdOutput, Msb, gives};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Runs `msb` without the variables that tests set, so that config.toml decides.
fn plain(msb: &Msb, words: &[&str]) -> CmdOutput {
    let mut command = msb.command(words);
    command.env_remove("MSB_ISOLATION").env_remove("MSB_NET");
    gives(&mut command)
}

fn planned(msb: &Msb, words: &[&str]) -> Value {
    let words = [&["run", "--dry-run", "--json"], words].concat();
    serde_json::from_str(&plain(msb, &words).ok().stdout).expect("a Plan")
}

const DEFAULTS: &str = "[defaults]\nisolation = 'process'\nmemory = 300\ncpus = 1\n\
                        network = 'none'\ntrust-host-cas = true\n";

#[test]
fn defaults_apply_where_no_flag_and_no_file_says_otherwise() {
    for msb in Msb::each() {
        let rootfs = msb.rootfs();
        let image = format!("image = '{}'\n", rootfs.display());
        msb.write_config(&format!("{DEFAULTS}{image}"));
        let plan = planned(&msb, &["--", "true"]);
        assert_eq!(plan["isolation"], "process");
        assert_eq!(plan["isolation_reason"], Value::Null);
        assert_eq!(plan["limits"]["memory"]["value"], (300_u64 << 20).to_string());
        assert_eq!(plan["limits"]["cpus"]["value"], "1");
        assert_eq!(plan["network"], Value::Null);
        assert_eq!(plan["image"], rootfs.display().to_string());

        let plan = planned(&msb, &["--memory", "200M", "--net", "public", "host", "--", "true"]);
        assert_eq!(plan["limits"]["memory"]["value"], (200_u64 << 20).to_string());
        assert_eq!(plan["image"], "host");
        assert_eq!(plan["network"]["trust_host_cas"], true);
        let plan = planned(&msb, &["--net", "public", "--trust-host-cas=false", "--", "true"]);
        assert_ne!(plan["network"]["trust_host_cas"], true);

        msb.file("box.toml", "memory = '100M'\nimage = 'host'\n");
        let plan = planned(&msb, &["--conf", "box.toml", "--", "true"]);
        assert_eq!(plan["limits"]["memory"]["value"], (100_u64 << 20).to_string());
        assert_eq!(plan["image"], "host");
        assert_eq!(plan["limits"]["cpus"]["value"], "1");
        assert_eq!(plain(&msb, &["run", "--", "echo", "runs"]).line(), "runs");
    }
}

#[test]
fn a_typing_mistake_in_a_file_is_answered_with_the_nearest_field() {
    let msb = Msb::new();
    msb.file("box.toml", "memroy = '1G'\n");
    let gave = msb.words("run --conf box.toml -- true");
    assert_eq!(
        gave.stderr,
        "error: cannot use `box.toml`\n  cause: the file cannot be parsed\n  \
         cause: line 1: unknown field `memroy`\nhint: did you mean `memory`?\n"
    );
    let path = msb.file("home/config.toml", "[defaults]\nmemroy = '1G'\n");
    let gave = msb.words("run -- true");
    assert_eq!(
        gave.stderr,
        format!(
            "error: cannot use `{}`\n  cause: line 2: unknown field `memroy`\n\
             hint: did you mean `memory`?\n",
            path.display()
        )
    );
}

#[test]
fn each_value_is_shown_with_its_source() {
    let msb = Msb::new();
    msb.write_config("[defaults]\nmemory = '1G'\nnetwork = 'private'\n[aliases]\n'a/b' = 'c'\n");
    let shown = msb.json(["--remote", "http://127.0.0.1:9", "config", "show", "--json"]);
    let of = |key: &str| {
        let found = shown.as_array().expect("a list").iter().find(|it| it["key"] == key);
        let found = found.unwrap_or_else(|| panic!("{key}: {shown:#}"));
        (found["value"].as_str().map(str::to_owned), found["source"].as_str().unwrap().to_owned())
    };
    let is = |key: &str, value: &str, source: &str| {
        assert_eq!(of(key), (Some(value.to_owned()), source.to_owned()), "{key}");
    };
    is("defaults.memory", "1G", "config.toml");
    is("defaults.image", "host", "default");
    is("defaults.network", "none", "environment (MSB_NET)");
    is("image_limits.bytes", "32G", "default");
    is("aliases.\"a/b\"", "c", "config.toml");
    is("remote", "http://127.0.0.1:9", "flag");
    is("home", &msb.home().display().to_string(), "environment (MSB_HOME)");
    assert_eq!(of("defaults.cpus"), (None, "default".to_owned()));
    assert_eq!(plain(&msb, &["config", "get", "defaults.network"]).line(), "private");
    assert_eq!(msb.words("config get aliases.'a/b'").line(), "c");
    let gave = msb.words("config get defaults.memroy");
    assert!(gave.stderr.contains("did you mean `defaults.memory`?"), "{gave:?}");
    assert!(msb.words("config show").ok().stdout.starts_with("KEY "));
}

#[test]
fn a_value_is_set_and_the_rest_of_the_file_stays() {
    for msb in Msb::each() {
        msb.words("config set defaults.memory 512M").ok();
        let path = msb.home().join("config.toml");
        let text = || fs::read_to_string(&path).expect("a file");
        assert_eq!(text(), "[defaults]\nmemory = \"512M\"\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let before = "# mine\n[aliases] # short\npy = 'python:3'\n\n[defaults]\n\
                      memory = '1G' # for builds\n";
        msb.write_config(before);
        msb.words("config set defaults.memory 2G").ok();
        msb.words("config set defaults.trust-host-cas true").ok();
        let after = before.replace("'1G'", "\"2G\"") + "trust_host_cas = true\n";
        assert_eq!(text(), after);
        for (line, cause) in [
            ("config set defaults.memroy 1G", "unknown field `memroy`"),
            ("config set defaults.memory much", "not an amount of bytes: `much`"),
            ("config set defaults.isolation jail", "unknown variant `jail`"),
            ("config set defaults.image ./here", "the path of a default image has to be absolute"),
            ("config set nonsense 1", "unknown field `nonsense`"),
        ] {
            let gave = msb.words(line);
            assert_eq!(gave.code, 125, "{line}");
            assert!(gave.stderr.contains(&format!("cause: {cause}")), "{line}: {gave:?}");
            assert_eq!(text(), after, "{line}");
        }
        msb.words("config unset defaults.trust_host_cas").ok();
        msb.words("config unset defaults.memory").ok();
        assert!(text().starts_with("# mine\n[aliases] # short\npy = 'python:3'\n"), "{}", text());
        let left = fs::read_dir(msb.home()).unwrap().flatten();
        let left: Vec<_> =
            left.filter(|e| e.file_name().to_string_lossy().contains(".msb-")).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn an_editor_cannot_save_a_mistake() {
    let msb = Msb::new();
    let edit = |script: &str| {
        let mut command = msb.command(["config", "edit"]);
        command.env_remove("VISUAL").env("EDITOR", format!("sh -c '{script}' sh"));
        gives(&mut command)
    };
    edit("echo [defaults] > \"$1\"; echo cpus = 2 >> \"$1\"").ok();
    let path = msb.home().join("config.toml");
    assert_eq!(fs::read_to_string(&path).unwrap(), "[defaults]\ncpus = 2\n");
    let gave = edit("echo cpsu = 3 >> \"$1\"");
    assert_eq!(gave.code, 125);
    assert!(gave.stderr.contains("line 3: unknown field `cpsu`"), "{gave:?}");
    assert_eq!(edit("exit 3").code, 125);
    assert!(edit("true").ok().stderr.contains("nothing was changed"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "[defaults]\ncpus = 2\n");
}
