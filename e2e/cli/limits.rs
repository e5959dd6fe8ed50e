//! Limits: hard or watched as the Plan says, and a typed reason when one is hit.

use msb_e2e::{Msb, Process, eventually};
use serde_json::{Value, json};

const GREEDY: &str = "x = []
while True: x.append(b'x' * (1 << 20))";

#[test]
fn the_plan_says_of_each_limit_whether_it_is_hard_or_watched() {
    for msb in Msb::each() {
        let flags = "run --dry-run --memory 64M --cpus 1 --pids 10 --disk 16M -- true";
        let plan = msb.words(flags).ok().stdout;
        let said: Vec<&str> = plan
            .lines()
            .filter(|line| {
                ["memory ", "cpus ", "pids ", "disk "].iter().any(|l| line.starts_with(l))
            })
            .collect();
        let amounts: Vec<&str> = said.iter().filter_map(|line| line.split(" (").next()).collect();
        let asked = ["memory      64M", "cpus        1", "pids        10", "disk        16M"];
        assert_eq!(amounts, asked);
        for line in said {
            let hard = line.contains(" (hard, by ");
            assert!(hard || (line.ends_with(" (watched)") && !msb.is_root()), "{line}");
        }
    }
}

#[test]
fn too_much_memory_kills_the_command_and_says_so() {
    for msb in Msb::each() {
        let gave = msb.run(["run", "--memory", "64M", "--", "python3", "-c", GREEDY]);
        assert_eq!((gave.code, gave.stdout.as_str()), (137, ""));
        assert!(gave.stderr.contains("memory limit"), "{gave:?}");
    }
}

#[test]
fn the_reason_for_too_much_memory_is_typed_everywhere() {
    for msb in Msb::each() {
        msb.words("create -n box --memory 64M").ok();
        let gave = msb.run(["exec", "box", "--", "python3", "-c", GREEDY]);
        assert_eq!(gave.code, 137);
        assert!(gave.stderr.contains("memory limit"), "{gave:?}");
        let ended = msb.json(["ps", "box", "--execs", "-a", "--json"]);
        let killed = json!({"code": null, "signal": 9, "ending": "memory", "reached": null});
        assert_eq!(ended[0]["exit"], killed);
        assert_eq!(msb.words("exec box -- echo works").line(), "works");

        msb.run(["run", "-n", "job", "--memory", "64M", "--", "python3", "-c", GREEDY]);
        let inspected = msb.json(["inspect", "job"]);
        assert_eq!(inspected["stopped"]["exit"]["ending"], "memory", "{inspected}");
        let waited: Value = serde_json::from_str(&msb.words("wait job --json").stdout).unwrap();
        assert_eq!((&waited[0]["ending"], &waited[0]["status"]), (&json!("memory"), &json!(137)));
    }
}

#[test]
fn memory_below_the_limit_is_free_to_use() {
    for msb in Msb::each() {
        let script = "x = b'x' * (100 << 20); print(len(x))";
        let gave = msb.run(["run", "--memory", "256M", "--", "python3", "-c", script]);
        assert_eq!(gave.line(), (100 << 20).to_string());
    }
}

#[test]
fn a_fork_bomb_ends_at_the_limit_of_processes() {
    for msb in Msb::each() {
        msb.words("create -n box --pids 20").ok();
        let script = "import os, time
made = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(1000)
        made += 1
except OSError as error:
    print(made, error.strerror)";
        let gave = msb.run(["exec", "box", "--", "python3", "-c", script]).line();
        let (made, error) = gave.split_once(' ').unwrap();
        assert_eq!(error, "Resource temporarily unavailable");
        assert!((10..20).contains(&made.parse::<u32>().unwrap()), "{made} were made");
        // The host sees no more of them than were allowed: the guest, the command, its children.
        assert!(msb.processes("box").len() <= 22, "{:?}", msb.processes("box"));
    }
}

#[test]
fn one_cpu_is_all_that_two_busy_processes_get() {
    for msb in Msb::each() {
        let script = "import os, time
pids = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        end = time.monotonic() + 2
        while time.monotonic() < end: pass
        os._exit(0)
    pids.append(pid)
for pid in pids: os.waitpid(pid, 0)
used = os.times()
print(used.children_user + used.children_system)";
        let used = msb.run(["run", "--cpus", "1", "--", "python3", "-c", script]).line();
        // Two processors would have given 4 s on an idle machine.
        assert!(used.parse::<f64>().unwrap() < 2.6, "{used} s of processor time in 2 s");
    }
}

#[test]
fn a_fraction_of_a_cpu_is_enforced_or_refused() {
    let script = "import time
end = time.monotonic() + 2
while time.monotonic() < end: pass
print(time.process_time())";
    for msb in Msb::each() {
        let gave = msb.run(["run", "--cpus", "0.25", "--", "python3", "-c", script]);
        if gave.code == 125 && !msb.is_root() {
            assert!(gave.stderr.contains("hint:"), "{gave:?}");
        } else {
            let used = gave.line();
            assert!(used.parse::<f64>().unwrap() < 1.0, "{used} s of processor time in 2 s");
        }
    }
}

#[test]
fn a_full_disk_of_the_sandbox_is_an_error_inside_and_nowhere_else() {
    for msb in Msb::each() {
        let script = "dd if=/dev/zero of=/big bs=1M count=64 2>&1 | grep -o 'No space.*'; \
                      rm /big; echo small > /small && cat /small";
        let gave = msb.run(["run", "--disk", "16M", "--", "sh", "-c", script]).ok();
        assert_eq!(gave.stdout, "No space left on device\nsmall\n");
    }
}

#[test]
fn a_persistent_disk_limit_is_enforced_or_refused() {
    for msb in Msb::each() {
        let gave = msb.words("create -n box --disk 32M");
        if !msb.is_root() {
            assert_eq!(gave.code, 125);
            assert!(gave.stderr.contains("hint:"), "{gave:?}");
            assert_eq!(msb.words("ls -q").line(), "");
            continue;
        }
        gave.ok();
        let fill = "dd if=/dev/zero of=/big bs=1M count=64 2>/dev/null; stat -c %s /big";
        let size: u64 = msb.run(["exec", "box", "--", "sh", "-c", fill]).line().parse().unwrap();
        assert!(size < 32 << 20, "{size} bytes in 32M");
        msb.words("restart box").ok();
        assert_eq!(msb.words("exec box -- stat -c %s /big").line(), size.to_string());
        msb.words("rm -f box").ok();
        let loops = std::process::Command::new("losetup").args(["-a"]).output().unwrap();
        let loops = String::from_utf8_lossy(&loops.stdout).into_owned();
        assert!(!loops.contains(msb.scratch().to_str().unwrap()), "{loops}");
    }
}

#[test]
fn the_longest_duration_ends_a_sandbox_with_all_in_it() {
    for msb in Msb::each() {
        let gave = msb.words("run --max-duration 500ms -- sleep 1000");
        assert_ne!(gave.code, 0);
        assert!(gave.stderr.contains("longest duration"), "{gave:?}");

        msb.words("create -n box --max-duration 2s").ok();
        msb.words("exec -d box -- sleep 1000").ok();
        let before = msb.processes("box");
        let waited: Value = serde_json::from_str(&msb.words("wait box --json").stdout).unwrap();
        assert_eq!(waited[0]["ending"], "max_duration");
        assert_eq!(msb.json(["inspect", "box"])["stopped"]["ending"], "max_duration");
        eventually("nothing is left", || !before.iter().any(Process::is_alive));
    }
}

#[test]
fn the_idle_timeout_counts_only_while_nothing_runs() {
    for msb in Msb::each() {
        msb.words("create -n box --idle-timeout 1s").ok();
        let before = msb.processes("box");
        msb.words("exec box -- sleep 2").ok();
        assert!(before[0].is_alive(), "it ran, so it was not idle");
        assert_eq!(msb.json(["wait", "box", "--json"])[0]["ending"], "idle");
        assert_eq!(msb.json(["inspect", "box"])["stopped"]["ending"], "idle");
        eventually("nothing is left", || !before.iter().any(Process::is_alive));
    }
}

#[test]
fn a_resource_limit_holds_for_every_command() {
    for msb in Msb::each() {
        msb.words("create -n box --rlimit nofile=64:128 --rlimit core=0").ok();
        let gave = msb.run(["exec", "box", "--", "sh", "-c", "ulimit -Sn; ulimit -Hn; ulimit -c"]);
        assert_eq!(gave.line(), "64\n128\n0");
    }
}

#[test]
fn meaningless_amounts_are_refused() {
    for msb in Msb::each() {
        for flags in [
            "--memory 1x",
            "--memory 0",
            "--memory -5",
            "--cpus 0",
            "--cpus many",
            "--pids 0",
            "--pids -1",
            "--disk nothing",
            "--rlimit nofile",
            "--rlimit nofile=9:1",
            "--rlimit nonsense=1",
            "--timeout soon",
            "--max-duration x",
            "--idle-timeout -1s",
            "--memory 99999999999999999999G",
        ] {
            let gave = msb.words(&format!("run {flags} -- true"));
            assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{flags}: {gave:?}");
        }
    }
}

#[test]
fn a_limit_that_only_refuses_is_named_all_the_same() {
    let msb = Msb::new();
    if !msb.is_root() {
        return msb_e2e::skip("without cgroups refused forks are not counted");
    }
    let bomb = "for i in $(seq 50); do sleep 5 & done; exit 1";
    let gave = msb.run(["run", "-n", "job", "--pids", "20", "--", "bash", "-c", bomb]);
    assert!(gave.stderr.contains("the limit on processes was reached"), "{gave:#?}");
    let inspected = msb.json(["inspect", "job"]);
    assert_eq!(inspected["stopped"]["exit"]["reached"], "pids", "{inspected:#}");
    assert_eq!(inspected["reason"], "the limit on processes was reached");
    msb.words("rm job").ok();

    let fill = "dd if=/dev/zero of=/big bs=1M count=50";
    for disk in [&["--disk", "16M"][..], &["--disk", "16M", "-n", "full"]] {
        let gave = msb.run([&["run"], disk, &["--", "sh", "-c", fill]].concat());
        assert!(gave.stderr.contains("the writable layer is full"), "{gave:#?}");
    }
    assert!(msb.words("wait full").stdout.contains("the writable layer is full"));
}

#[test]
fn a_plain_number_is_mebibytes() {
    let msb = Msb::new();
    let limits = |flags: &str| {
        let plan = msb.words(&format!("run --dry-run --json {flags} -- true")).ok().stdout;
        serde_json::from_str::<Value>(&plan).unwrap()["limits"].clone()
    };
    let plan = limits("--memory 128 --disk 64");
    assert_eq!(plan["memory"]["value"], (128u64 << 20).to_string());
    assert_eq!(plan["disk"]["value"], (64u64 << 20).to_string());
    let file = msb.scratch().join("box.toml");
    std::fs::write(&file, "memory = 96\ndisk = '32'\n").unwrap();
    let plan = limits(&format!("--conf {}", file.display()));
    assert_eq!(plan["memory"]["value"], (96u64 << 20).to_string());
    assert_eq!(plan["disk"]["value"], (32u64 << 20).to_string());
    assert_eq!(msb.words("run -m 128 -- echo works").line(), "works");
    let size = msb.words("run --tmpfs /t:32 -- stat -f -c %b*%S /t").line();
    let (blocks, block) = size.split_once('*').unwrap();
    assert_eq!(blocks.parse::<u64>().unwrap() * block.parse::<u64>().unwrap(), 32 << 20);

    msb.words("create -q -n box --memory 128").ok();
    let changed = msb.json(["modify", "box", "--memory", "64", "--dry-run", "--json"]);
    let amount =
        |key: &str| changed[0][key].as_str().unwrap().split(' ').next().unwrap().to_owned();
    assert_eq!((amount("from"), amount("to")), ("128M".to_owned(), "64M".to_owned()));
}

#[test]
fn a_limit_that_cannot_be_is_told_as_what_it_is() {
    for msb in Msb::each() {
        msb.words("create -q -n box").ok();
        let cpus = std::thread::available_parallelism().unwrap();
        for (flags, message, hint) in [
            ("--memory 512B", "too little memory for a sandbox: `512B`", "4M is the minimum"),
            ("--memory 100T", "more memory than this host has: `100T`", "there are "),
            (
                "--cpus 999",
                "more processors than this host has: `999`",
                &format!("there are {cpus}"),
            ),
        ] {
            for verb in [format!("run {flags} -- true"), format!("modify box {flags}")] {
                let gave = msb.words(&verb);
                assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{verb}: {gave:?}");
                assert!(gave.stderr.starts_with(&format!("error: {message}\n")), "{gave:#?}");
                assert!(gave.stderr.contains(&format!("hint: {hint}")), "{gave:#?}");
            }
        }
    }
}
