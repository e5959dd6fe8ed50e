//! Limits of a microVM, and a typed reason when one is hit.

use msb_e2e::{Msb, eventually};
use serde_json::json;

use crate::lab;

#[test]
fn the_plan_and_the_machine_are_as_asked() {
    let Some(msb) = lab::user() else { return };
    let rootfs = msb.rootfs().display().to_string();
    let flags = ["--memory", "192M", "--cpus", "2", "--pids", "50", "--disk", "64M"];
    let plan = msb.run([&["run", "--dry-run"], &flags[..], &[&rootfs]].concat()).ok().stdout;
    for wanted in ["isolation   vm", "memory      192M", "cpus        2", "pids        50"] {
        assert!(plan.contains(wanted), "no `{wanted}` in {plan}");
    }
    let look = "grep -c ^processor /proc/cpuinfo; grep MemTotal /proc/meminfo; \
                df -m / | tail -n 1";
    let gave = msb.shell_with(flags, look).ok();
    assert!(gave.stdout.starts_with("2\n"), "{gave:#?}");
    let memory = lab::number_after(&gave.stdout, "MemTotal:").unwrap();
    assert!((100 << 10..=192 << 10).contains(&memory), "{memory} KiB");
    let last = gave.stdout.lines().last().unwrap();
    let disk: u64 = last.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!((32..=64).contains(&disk), "{disk} MiB: {last}");
}

/// Attack 43.
#[test]
fn too_much_memory_kills_the_command_and_says_so() {
    for msb in lab::each() {
        lab::with_inside(&msb);
        msb.lasting("box", ["--memory", "128M"]);
        let gave = msb.words("exec box -- inside eat 1000");
        assert_eq!((gave.code, gave.stdout.as_str()), (137, ""), "{gave:#?}");
        assert!(gave.stderr.contains("memory limit"), "{gave:#?}");
        let ended = msb.json(["ps", "box", "--execs", "-a", "--json"]);
        assert_eq!(ended[0]["exit"]["ending"], "memory", "{ended:#}");
        assert_eq!(msb.words("exec box -- inside eat 20").line(), "ate 20");
    }
}

/// Attack 43.
#[test]
fn a_fork_bomb_stops_at_the_limit_and_the_neighbour_does_not_notice() {
    let Some(msb) = lab::user() else { return };
    lab::with_inside(&msb);
    msb.lasting("box", ["--pids", "40", "-m", "128M"]);
    let gave = msb.words("exec box -- inside forks 200").ok();
    let (made, error) = gave.stdout.trim().split_once(" then ").unwrap();
    assert_eq!(error, "WouldBlock");
    assert!((20..40).contains(&made.parse::<u32>().unwrap()), "{made}");
    let job = "for i in $(seq 100); do sleep 100 & done; exit 1";
    let gave = msb.shell_in("box", job);
    assert!(gave.stderr.contains("the limit on processes was reached"), "{gave:#?}");
    assert_eq!(msb.words("exec box -- echo works").line(), "works");
    msb.words("rm -f box").ok();
}

/// Attack 43.
#[test]
fn a_full_disk_is_an_error_inside_and_nowhere_else() {
    for msb in lab::each() {
        let fill = "dd if=/dev/zero of=/big bs=1M count=64 2>&1 | grep -o 'No space.*'; \
                    stat -c %s /big";
        let fill_and_fail = format!("{fill}; exit 1");
        let gave = msb.shell_with(["--disk", "32M", "-m", "128M"], &fill_and_fail);
        assert!(gave.stderr.contains("the writable layer is full"), "{gave:#?}");

        msb.lasting("box", ["--disk", "32M", "-m", "128M"]);
        let gave = msb.shell_in("box", fill).ok();
        let (said, size) = gave.stdout.trim().split_once('\n').unwrap();
        assert_eq!(said, "No space left on device");
        assert!(size.parse::<u64>().unwrap() < 32 << 20, "{size}");
        assert!(held(&msb) < 48 << 20, "{} bytes on the host", held(&msb));
        msb.words("restart box").ok();
        let after =
            msb.shell_in("box", "stat -c %s /big; rm /big; echo small > /small; cat /small");
        assert_eq!(after.line(), format!("{size}\nsmall"));
    }
}

/// Bytes that the sandboxes take on the host's disk.
fn held(msb: &Msb) -> u64 {
    let du =
        msb_e2e::gives(msb.user_command("du").args(["-s", "-k"]).arg(msb.home().join("sandboxes")));
    lab::number_after(&format!("held {}", du.ok().stdout), "held ").expect("a number of KiB") << 10
}

/// Attack 43.
#[test]
fn a_busy_loop_gets_one_processor_and_no_more() {
    let Some(msb) = lab::user() else { return };
    msb.lasting("box", ["--cpus", "1", "-m", "128M"]);
    let spin = "for i in 1 2 3 4; do while :; do :; done & done; wait";
    msb.run(["exec", "-d", "box", "--", "sh", "-c", spin]).ok();
    eventually("it spins", || lab::ticks(&msb, "box") > 300);
    let (before, begun) = (lab::ticks(&msb, "box"), std::time::Instant::now());
    std::thread::sleep(std::time::Duration::from_secs(3));
    let used = (lab::ticks(&msb, "box") - before) as f64 / 100.0;
    let share = used / begun.elapsed().as_secs_f64();
    assert!(share < 1.4, "{share} processors");
    assert_eq!(msb.words("exec box -- echo here").line(), "here");
}

#[test]
fn the_longest_duration_ends_a_machine() {
    let Some(msb) = lab::user() else { return };
    msb.lasting("box", ["--max-duration", "20s", "-m", "128M"]);
    let before = msb.processes("box");
    assert_eq!(msb.json(["wait", "box", "--json"])[0]["ending"], json!("max_duration"));
    eventually("nothing is left", || !before.iter().any(msb_e2e::Process::is_alive));
}
