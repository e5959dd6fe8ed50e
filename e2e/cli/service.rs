//! The first command as a service: restart policy, health checks, and a stop for good.

use msb_e2e::{Msb, eventually};
use serde_json::{Value, json};

/// What happened to `svc`, by the names of the events.
fn events(msb: &Msb) -> Vec<Value> {
    let said = msb.words("events svc --json").ok().stdout;
    match serde_json::from_str(&said) {
        Ok(Value::Array(events)) => events,
        _ => said.lines().map(|line| serde_json::from_str(line).expect("an event")).collect(),
    }
}

fn of(msb: &Msb, event: &str) -> Vec<Value> {
    events(msb).into_iter().filter(|one| one["event"] == event).collect()
}

fn create(msb: &Msb, flags: &str, script: &str) {
    let words = format!("create -q --name svc {flags} host");
    let mut words: Vec<&str> = words.split_whitespace().collect();
    words.extend(["--", "sh", "-c", script]);
    assert_eq!(msb.run(words).line(), "svc");
}

#[test]
fn a_failing_service_is_restarted_up_to_its_limit() {
    for msb in Msb::each() {
        create(&msb, "--restart on-failure:2", "echo life; exit 3");
        assert_eq!(msb.words("wait svc").code, 3);
        assert_eq!(msb.words("logs svc").stdout, "life\nlife\nlife\n");
        let restarted = of(&msb, "restarted");
        let told: Vec<_> = restarted.iter().map(|it| (&it["count"], &it["exit"]["code"])).collect();
        assert_eq!(told, [(&json!(1), &json!(3)), (&json!(2), &json!(3))]);
    }
}

#[test]
fn a_service_that_exits_with_zero_is_restarted_only_with_always() {
    for msb in Msb::each() {
        create(&msb, "--restart on-failure", "echo life");
        msb.words("wait svc").ok();
        assert_eq!(msb.words("logs svc").stdout, "life\n");
        msb.words("rm svc").ok();
        create(&msb, "--restart always:1", "echo life");
        msb.words("wait svc").ok();
        assert_eq!(msb.words("logs svc").stdout, "life\nlife\n");
    }
}

#[test]
fn a_stop_is_for_good_and_a_start_runs_it_again() {
    for msb in Msb::each() {
        create(&msb, "--restart always", "echo life; sleep 1000");
        let lives = || msb.words("logs svc").stdout.lines().count();
        eventually("it is up", || lives() == 1);
        msb.words("stop -t 5s svc").ok();
        assert_eq!(msb.json(["ls", "--json"])[0]["status"], "stopped");
        assert_eq!(of(&msb, "restarted"), Vec::<Value>::new());
        msb.words("start svc").ok();
        eventually("it runs again", || lives() == 2);
        msb.words("restart -t 5s svc").ok();
        eventually("and again", || lives() == 3);
        // A verb that only needs the files does not start it.
        msb.words("stop -f svc").ok();
        msb.words("cp svc:/etc/hostname hostname");
        assert_eq!(lives(), 3);
    }
}

#[test]
fn a_killed_command_takes_its_session_with_it_and_others_go_on() {
    for msb in Msb::each() {
        create(&msb, "--restart on-failure", "sleep 1000 & echo up; wait");
        eventually("it is up", || msb.words("logs svc").stdout == "up\n");
        msb.words("exec -d svc -- sleep 2000").ok();
        let main = msb.json(["ps", "svc", "--execs", "--json"])[0]["id"].clone();
        msb.run(["kill", "svc", &main.to_string(), "-s", "KILL"]).ok();
        eventually("it is up again", || msb.words("logs svc").stdout == "up\nup\n");
        // Says so before its child has become what it is.
        let sleepers = || msb.processes("svc").iter().filter(|one| one.name == "sleep").count();
        eventually("two sleep", || sleepers() == 2);
        let listed = msb.json(["ls", "--json"]);
        assert_eq!(listed[0]["restarts"], 1, "{listed}");
        let inspected = msb.json(["inspect", "svc"]);
        assert_eq!(inspected["worker"]["restarts"], 1, "{inspected}");
        assert!(msb.words("ls").stdout.contains("running, 1 restart"));
    }
}

#[test]
fn health_is_shown_and_logged_and_an_unhealthy_service_is_restarted() {
    for msb in Msb::each() {
        let check = "--health-interval 500ms --health-retries 2";
        let words = format!("create -q --name svc --restart on-failure {check} host --health");
        let mut words: Vec<&str> = words.split_whitespace().collect();
        let script = "touch /root/well; sleep 1000";
        words.extend(["test -e /root/well || { echo ill; exit 1; }", "--", "sh", "-c", script]);
        msb.run(words).ok();
        let health = || msb.json(["ls", "--json"])[0]["health"].clone();
        eventually("it is well", || health() == "healthy");
        msb.words("exec svc -- rm /root/well").ok();
        eventually("it was begun again", || of(&msb, "restarted").len() == 1);
        eventually("it is well again", || health() == "healthy");
        let told: Vec<_> = of(&msb, "health");
        assert_eq!(told[0]["status"], "healthy");
        assert_eq!((&told[1]["status"], &told[1]["output"]), (&json!("unhealthy"), &json!("ill")));
        assert_eq!(of(&msb, "restarted")[0]["exit"]["ending"], "unhealthy");
        // Health checks are neither listed nor logged, and exec numbers have no gaps.
        assert_eq!(msb.words("logs svc").stdout, "");
        let execs = msb.json(["ps", "svc", "--execs", "--all", "--json"]);
        let ids: Vec<_> = execs.as_array().unwrap().iter().map(|it| it["id"].as_u64()).collect();
        assert_eq!(ids, [Some(1), Some(2), Some(3)]);
    }
}

#[test]
fn checks_do_not_keep_a_sandbox_from_being_idle() {
    for msb in Msb::each() {
        let words = "create -q --name svc --idle-timeout 1s --health true --health-interval 100ms";
        msb.words(words).ok();
        let ended = msb.json(["wait", "svc", "--json"]);
        assert_eq!(ended[0]["ending"], "idle", "{ended}");
    }
}

#[test]
fn nonsense_is_refused_with_a_hint() {
    let msb = Msb::new();
    for (words, hint) in [
        ("create --restart sometimes host -- true", "`on-failure:5` gives up after five"),
        ("create --restart always host", "put one behind `--`"),
        ("create host -- true", "--restart always"),
        ("run --restart always host -- true", "msb run -d --restart"),
        ("run -d --rm --restart always host -- true", "`msb create` stay"),
        ("create --health-interval 1s host", "`--health COMMAND` is one"),
        ("create --idle-pause 1ms host", "1s is the least"),
    ] {
        let gave = msb.words(words);
        assert_ne!(gave.code, 0, "{words}");
        assert!(gave.stderr.contains(hint), "{words}: {gave:#?}");
    }
}
