//! Volumes: storage that outlives sandboxes and is shared by them.

mod disks;
mod files;
mod kills;
mod sizes;

use msb_e2e::{CmdOutput, Msb, ends, skip};
use serde_json::json;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

/// Runs a shell script in a new sandbox with these mounts.
#[track_caller]
fn shell(msb: &Msb, mounts: &[&str], script: &str) -> CmdOutput {
    let mut words = vec!["run"];
    mounts.iter().for_each(|mount| words.extend(["-v", mount]));
    words.extend(["--", "sh", "-c", script]);
    msb.run(words)
}

#[test]
fn a_volume_keeps_what_a_sandbox_wrote() {
    for msb in Msb::each() {
        assert_eq!(msb.words("volume create data").line(), "data");
        shell(&msb, &["data:/data"], "echo kept > /data/x; mkdir /data/d; echo deep > /data/d/y")
            .ok();
        let gave =
            shell(&msb, &["data:/in/here"], "cat /in/here/x /in/here/d/y; stat -c %u /in/here/x");
        assert_eq!(gave.line(), "kept\ndeep\n0");
    }
}

#[test]
fn volumes_are_listed_found_by_label_inspected_and_removed() {
    for msb in Msb::each() {
        msb.words("volume create one --label team=a --label stage=test").ok();
        msb.words("volume create two -l team=b").ok();
        assert_eq!(msb.words("volume ls -q").line(), "one\ntwo");
        assert_eq!(msb.words("volume ls -q --label team=a").line(), "one");
        assert_eq!(msb.words("volume ls -q --label team=a --label stage=other").line(), "");
        let listed = msb.json(["volume", "ls", "--json"]);
        assert_eq!(listed.as_array().unwrap().len(), 2);
        let one = msb.json(["volume", "inspect", "one"]);
        assert_eq!(one, listed[0]);
        assert_eq!(one["labels"], json!({"team": "a", "stage": "test"}));
        assert_eq!((&one["kind"], &one["size"]), (&json!("dir"), &json!(null)));
        assert_eq!(one["sandboxes"], json!([]));
        assert!(msb.words("volume ls").ok().stdout.contains("stage=test,team=a"));
        assert_eq!(msb.words("volume rm one two").line(), "one\ntwo");
        assert_eq!(msb.json(["volume", "ls", "--json"]), json!([]));
        assert_eq!(fs::read_dir(msb.home().join("volumes")).unwrap().count(), 0);
    }
}

#[test]
fn a_volume_that_is_not_there_is_an_error_and_never_made() {
    for msb in Msb::each() {
        msb.words("volume create data").ok();
        let gave = msb.words("run -v dat:/data -- true");
        assert_eq!(gave.code, 125);
        assert_eq!(
            gave.stderr,
            "error: no volume `dat`\n\
             hint: did you mean `data`? `msb volume create dat` makes a new one\n"
        );
        fs::create_dir(msb.scratch().join("folder")).unwrap();
        let gave = msb.words("create -v folder:/data");
        assert!(gave.stderr.contains("`./folder` is the directory"), "{gave:#?}");
        msb.words("run -v ./folder:/data -- test -d /data").ok();
        for verb in ["rm", "inspect", "ls", "cat"] {
            let place = if matches!(verb, "ls" | "cat") { "other:/" } else { "other" };
            let gave = msb.run(["volume", verb, place]);
            assert!(gave.stderr.starts_with("error: no volume `other`\n"), "{gave:#?}");
        }
        assert_eq!(msb.words("volume ls -q").line(), "data");
        assert_eq!(msb.words("ls -q").line(), "", "no sandbox was made either");
    }
}

#[test]
fn names_that_are_none_are_refused() {
    for msb in Msb::each() {
        let long = "a".repeat(129);
        for bad in ["..", ".", "../x", "a/b", "", ".hidden", "a b", "a\x1b[31m", "ä", &long] {
            let gave = msb.run(["volume", "create", "--", bad]);
            assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{bad:?}");
            assert!(!gave.stderr.contains('\x1b'));
        }
        assert!(!msb.home().join("volumes").exists());
        let gave = msb.run(["volume", "create", "x", "--label", "none"]);
        assert!(gave.stderr.contains("key=value"), "{gave:#?}");
        let gave = msb.words("volume create x --size 1M");
        assert!(gave.stderr.contains("16M is the least"), "{gave:#?}");
        let gave = msb.words("volume create x --kind other");
        assert!(gave.stderr.contains("`dir` or `disk`"), "{gave:#?}");
        msb.words("volume create x").ok();
        let gave = msb.words("volume create x");
        assert!(gave.stderr.starts_with("error: volume `x` already exists\n"), "{gave:#?}");
    }
}

#[test]
fn two_sandboxes_share_a_volume_while_both_run() {
    for msb in Msb::each() {
        msb.words("volume create data").ok();
        msb.words("create -n one -v data:/data").ok();
        msb.words("create -n two -v data:/other").ok();
        let write = "echo from one > /data/x; mkdir /data/dir; chmod 700 /data/dir";
        msb.run(["exec", "one", "--", "sh", "-c", write]).ok();
        assert_eq!(msb.words("exec two -- cat /other/x").line(), "from one");
        let write = "echo from two > /other/dir/y; chmod 600 /other/dir/y";
        msb.run(["exec", "two", "--", "sh", "-c", write]).ok();
        assert_eq!(msb.words("exec one -- cat /data/dir/y").line(), "from two");
        assert_eq!(msb.words("exec one -- stat -c %u:%g /data/dir/y").line(), "0:0");
        assert_eq!(msb.json(["volume", "inspect", "data"])["sandboxes"], json!(["one", "two"]));
        let mounts = &msb.json(["inspect", "one"])["plan"]["mounts"];
        assert_eq!(mounts[0]["volume"]["name"], "data");
        let plan = msb.words("run --dry-run -v data:/data:ro -- true").ok().stdout;
        assert!(plan.contains("volume      data at /data, read-only\n"), "{plan}");
    }
}

#[test]
fn a_command_can_write_as_any_user() {
    for msb in Msb::each() {
        msb.words("volume create data").ok();
        let write = "run -u 1234:1234 -v data:/data -- touch /data/x";
        let gave = msb.words(write);
        if gave.stderr.contains("only root can exist") {
            continue;
        }
        gave.ok();
        assert_eq!(shell(&msb, &["data:/data"], "stat -c %u /data/x").line(), "1234");
        assert_eq!(msb.json(["volume", "ls", "data:/", "--json"])[0]["uid"], 1234);
        shell(&msb, &["data:/data"], "echo root > /data/x; chown 5:5 /data/x").ok();
    }
}

#[test]
fn a_read_only_volume_is_refused_writing_by_the_mount() {
    for msb in Msb::each() {
        msb.words("volume create data").ok();
        shell(&msb, &["data:/data"], "echo kept > /data/x").ok();
        let attack = "echo bad > /data/x; rm -f /data/x; touch /data/new; \
                      mount -o remount,rw /data; mount -o remount,rw,bind /data; \
                      echo bad > /data/x; touch /data/new; cat /data/x";
        assert_eq!(shell(&msb, &["data:/data:ro"], attack).line(), "kept");
        let both =
            shell(&msb, &["data:/ro:ro", "data:/rw"], "echo rw > /rw/y; cat /ro/y; touch /ro/z");
        assert_eq!((both.stdout.as_str(), both.code), ("rw\n", 1));
        assert_eq!(msb.words("volume ls -q data:/").line(), "x\ny");
    }
}

#[test]
fn a_volume_in_use_is_not_removed() {
    for msb in Msb::each() {
        msb.words("volume create data").ok();
        shell(&msb, &["data:/data"], "echo kept > /data/x").ok();
        msb.words("create -n box -v data:/data").ok();
        for force in ["", "-f"] {
            let gave = msb.words(&format!("volume rm data {force}"));
            assert_eq!(
                gave.stderr,
                "error: volume `data` is used by `box`\nhint: `msb rm -f box` removes what uses \
                 it; or `msb stop box`, then `msb volume rm -f data`\n"
            );
            assert_eq!(gave.code, 125);
        }
        msb.words("stop box").ok();
        let gave = msb.words("volume rm data");
        assert!(gave.stderr.starts_with("error: volume `data` is used by `box`\n"), "{gave:#?}");
        msb.words("start box").ok();
        assert_eq!(msb.words("exec box -- cat /data/x").line(), "kept");
        msb.words("stop box").ok();
        msb.words("volume rm -f data").ok();
        let gave = msb.words("start box");
        assert_eq!(
            gave.stderr,
            "error: cannot start sandbox `box`\n  cause: no volume `data`\n\
             hint: `msb volume create data` makes it\n"
        );
        // Another of the same name, with ids of its own, is as good.
        msb.words("volume create data").ok();
        msb.words("start box").ok();
        msb.words("exec box -- touch /data/new").ok();
        msb.words("rm -f box").ok();
        msb.words("volume rm data").ok();
    }
}

#[test]
fn prune_leaves_volumes_unless_asked_and_df_knows_them() {
    for msb in Msb::each() {
        msb.words("volume create used").ok();
        msb.words("volume create free").ok();
        msb.words("create -n box -v used:/data").ok();
        msb.words("stop box").ok();
        msb.words("prune --all").ok();
        assert_eq!(msb.words("volume ls -q").line(), "free\nused");
        let usage = msb.json(["df", "--json"]);
        assert_eq!(usage["volumes"], 2);
        assert!(usage["volume_bytes"].as_u64().unwrap() > 0);
        assert!(msb.words("df").ok().stdout.contains("\nvolumes "));
        let would = msb.json(["prune", "--volumes", "--dry-run", "--json"]);
        assert_eq!(would["volumes"], json!(["free"]));
        assert!(msb.words("prune --volumes").ok().stdout.starts_with("removed volume free\n"));
        assert_eq!(msb.words("volume ls -q").line(), "used");
    }
}

/// What becomes of a record.
type Damage = fn(&str) -> String;

/// A record that says that these host ids are the volume's.
fn with_ids(text: &str, start: u32, count: u32) -> String {
    let mut record: serde_json::Value = serde_json::from_str(text).expect("a record");
    record["ids"] = json!({"start": start, "count": count});
    record.to_string()
}

#[test]
fn a_damaged_record_is_reported_and_can_be_removed() {
    for msb in Msb::each() {
        let damages: [(&str, Damage); 10] = [
            ("no json", |_| "{".to_owned()),
            ("empty", |_| String::new()),
            ("another's", |text| text.replace("\"data\"", "\"other\"")),
            ("another version", |text| text.replace("\"version\":1", "\"version\":9")),
            ("a field more", |text| text.replacen('{', "{\"more\":1,", 1)),
            ("a kind that it is not", |text| text.replace("\"dir\"", "\"disk\"")),
            ("a size that it has not", |text| {
                text.replace("\"size\":null", "\"size\":\"16777216\"")
            }),
            ("too large", |text| format!("{text}{}", " ".repeat(2 << 20))),
            ("ids of the host", |text| with_ids(text, 0, 65536)),
            ("too many ids", |text| with_ids(text, 0x4000_0000, u32::MAX)),
        ];
        for (what, damage) in damages {
            msb.words("volume create data").ok();
            let path = msb.home().join("volumes/data/volume.json");
            let text = fs::read_to_string(&path).unwrap();
            fs::write(&path, damage(&text)).unwrap();
            for verb in ["volume inspect data", "run -v data:/d -- true", "volume ls data:/"] {
                let gave = msb.words(verb);
                assert_eq!(gave.code, 125, "{what}: {gave:#?}");
                assert!(gave.stderr.contains("volume `data` cannot be read"), "{what}: {gave:#?}");
            }
            let gave = msb.words("volume ls -q").ok();
            assert_eq!(gave.stdout, "", "{what}");
            assert!(gave.stderr.starts_with("note: volume `data` cannot be read"), "{what}");
            msb.words("volume rm data").ok();
        }
    }
}

#[test]
fn a_user_with_a_single_id_has_volumes_too() {
    let Some(msb) = Msb::with_one_id() else { return skip("only root can be another") };
    msb.words("volume create data").ok();
    let script = "echo kept > /data/x; chown 33:33 /data/x; mkdir -m 0 /data/shut";
    shell(&msb, &["data:/data"], script).ok();
    assert_eq!(shell(&msb, &["data:/data:ro"], "cat /data/x").line(), "kept");
    msb.file("in", "from the host");
    msb.words("volume cp in data:/in").ok();
    assert_eq!(msb.words("volume ls -q data:/").line(), "in\nshut\nx");
    assert_eq!(msb.words("volume cat data:/in").line(), "from the host");
    msb.words("volume rm data").ok();
    assert_eq!(fs::read_dir(msb.home().join("volumes")).unwrap().count(), 0);
}

/// Deeper than a path can be written and than descriptors last for.
#[test]
fn however_deep_it_is_a_volume_can_be_removed() {
    for msb in Msb::each() {
        msb.words("volume create data").ok();
        let script = "import os
for start in ('/data', '/data/.msb-copying-0'):
    os.makedirs(start, exist_ok=True)
    os.chdir(start)
    for depth in range(3000):
        os.mkdir('d')
        os.chdir('d')";
        msb.run(["run", "-v", "data:/data", "--", "python3", "-c", script]).ok();
        assert_eq!(msb.words("volume ls -q data:/").line(), "d");
        msb.words("volume ls").ok();
        msb.words("df").ok();
        msb.words("volume rm data").ok();
        assert_eq!(fs::read_dir(msb.home().join("volumes")).unwrap().count(), 0);
    }
}

#[test]
fn a_volume_that_is_a_symlink_is_not_followed() {
    for msb in Msb::each() {
        let canary = msb.file("outside/canary", "outside-secret");
        let outside = canary.parent().unwrap();
        let before = fs::metadata(outside).unwrap();
        msb.words("volume create data").ok();
        let volume = msb.home().join("volumes/data");
        fs::remove_dir(volume.join("data")).unwrap();
        symlink(outside, volume.join("data")).unwrap();
        symlink(&volume, msb.home().join("volumes/linked")).unwrap();
        symlink(outside, msb.home().join("volumes/other")).unwrap();
        for name in ["data", "linked", "other"] {
            for verb in ["ls", "cat"] {
                let gave = msb.run(["volume", verb, &format!("{name}:/canary")]);
                assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{name}");
            }
            let gave = shell(&msb, &[&format!("{name}:/d")], "cat /d/canary");
            assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{name}");
            msb.run(["volume", "rm", "-f", name]);
        }
        assert_eq!(fs::read_to_string(&canary).unwrap(), "outside-secret");
        let after = fs::metadata(outside).unwrap();
        assert_eq!((after.uid(), after.mode()), (before.uid(), before.mode()));
    }
}

#[test]
fn twenty_at_once_make_use_and_remove_one_and_the_same() {
    const MANY: usize = 20;
    for msb in Msb::each() {
        let all = |words: &dyn Fn(usize) -> Vec<String>| -> Vec<CmdOutput> {
            let children: Vec<_> = (0..MANY).map(|number| msb.spawn(words(number))).collect();
            children.into_iter().map(ends).collect()
        };
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let made = all(&|_| owned(&["volume", "create", "data"]));
        assert_eq!(made.iter().filter(|gave| gave.code == 0).count(), 1, "{made:#?}");
        let wrote = all(&|number| {
            let script = format!("echo {number} > /data/{number}");
            owned(&["run", "-v", "data:/data", "--", "sh", "-c", &script])
        });
        assert!(wrote.iter().all(|gave| gave.code == 0), "{wrote:#?}");
        assert_eq!(msb.words("volume ls -q data:/").line().lines().count(), MANY);
        // Some remove it, the others use it or are told that it has gone; none finds half of it.
        let mixed = all(&|number| match number % 4 {
            0 => owned(&["volume", "rm", "data"]),
            1 => owned(&["volume", "ls", "-q", "data:/"]),
            _ => owned(&["run", "-v", "data:/data", "--", "cat", "/data/7"]),
        });
        for (number, gave) in mixed.iter().enumerate() {
            let told = ["no volume `data`", "is used by", "is being used"];
            let well = gave.code == 0 || told.iter().any(|told| gave.stderr.contains(told));
            assert!(well, "{number}: {gave:#?}");
        }
    }
}
