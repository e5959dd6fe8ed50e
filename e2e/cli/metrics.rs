//! `msb metrics`: current use, the last hour, Prometheus format, and the view at a terminal.

use msb_e2e::terminal::Terminal;
use msb_e2e::{Msb, eventually};

#[test]
fn network_traffic_is_counted() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        let net = || msb.json(["metrics", "box", "--json"])[0]["net"].clone();
        let before = net();
        if before.is_null() {
            msb_e2e::skip("there is no network here");
            continue;
        }
        let script = "import socket\nfor n in range(20):\n    socket.socket(socket.AF_INET, \
                      socket.SOCK_DGRAM).sendto(bytes(1000), ('192.0.2.1', 9))";
        msb.run(["exec", "box", "--", "python3", "-c", script]).ok();
        eventually("it is counted", || {
            net()["sent"].as_u64().unwrap() >= before["sent"].as_u64().unwrap() + 20_000
        });
        msb.words("create -n alone --no-net").ok();
        assert!(msb.json(["metrics", "alone", "--json"])[0]["net"].is_null());
    }
}

#[test]
fn prometheus_gets_every_sandbox() {
    for msb in Msb::each() {
        msb.words("create -n box --memory 512M").ok();
        msb.words("create -n off").ok();
        msb.words("stop off").ok();
        let text = msb.words("metrics --prometheus").ok().stdout;
        for line in [
            "# TYPE msb_sandbox_cpu_seconds_total counter",
            "msb_sandbox_up{name=\"box\",isolation=\"process\",image=\"host\",state=\"running\"} 1",
            "msb_sandbox_up{name=\"off\",isolation=\"process\",image=\"host\",state=\"stopped\"} 0",
            "msb_sandbox_memory_limit_bytes{name=\"box\",isolation=\"process\"} 536870912",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        assert!(!text.contains("msb_sandbox_pids{name=\"off\""), "{text}");
        let one = msb.words("metrics --prometheus off").ok().stdout;
        assert!(one.contains("name=\"off\"") && !one.contains("name=\"box\""), "{one}");
    }
}

#[test]
fn the_last_hour_is_kept() {
    let msb = Msb::new();
    msb.words("create -n box").ok();
    assert!(msb.words("metrics --history").line().starts_with("box  nothing yet"));
    let history = || msb.json(["metrics", "--history", "--json"])[0]["samples"].clone();
    eventually("something is kept", || history().as_array().unwrap().len() == 1);
    assert_eq!(history()[0]["pids"], 1);
    let text = msb.words("metrics --history box").ok().stdout;
    assert!(text.contains("MEMORY ") && text.contains("last "), "{text}");
    // What stands still is not looked at.
    msb.words("pause box").ok();
    assert!(msb.words("metrics --history box").ok().stdout.contains("MEMORY "));
}

#[test]
fn a_watch_at_a_terminal_ends_with_a_key_and_leaves_it_as_it_was() {
    for msb in Msb::each() {
        msb.words("create -n box --memory 512M").ok();
        let command = msb.command(["metrics", "-w", "--interval", "100ms"]);
        let mut terminal = Terminal::start(&command, 24, 80);
        terminal.shows("/512M");
        terminal.resize(5, 40);
        terminal.shows("0%");
        terminal.types("xq");
        let (code, shown) = terminal.ends();
        assert_eq!(code, 0, "{shown}");
        let last = shown.trim_end();
        assert!(shown.contains("\u{1b}[?1049h") && last.ends_with("\u{1b}[?1049l"), "{shown:?}");
        let terminal = Terminal::start(&command, 24, 80);
        let mut terminal = terminal;
        terminal.shows("box");
        terminal.types("\u{3}");
        assert_eq!(terminal.ends().0, 0);
    }
}

#[test]
fn a_watch_is_sorted_by_keys_and_has_a_total() {
    let msb = Msb::new();
    msb.words("create -n aaa").ok();
    msb.words("create -n bbb").ok();
    msb.run(["exec", "-d", "bbb", "--", "sh", "-c", "while :; do :; done"]).ok();
    let command = msb.command(["metrics", "-w", "--interval", "100ms"]);
    let mut terminal = Terminal::start(&command, 24, 80);
    // The screen is drawn over itself; a picture begins at its upper left corner.
    let is_shown = |terminal: &Terminal, first: &str, last: &str| {
        let shown = terminal.shown();
        let (_, picture) = shown.rsplit_once("\u{1b}[H").unwrap_or_default();
        let at = |text: &str| picture.find(text);
        let ordered = [at("NAME"), at(first), at(last), at("(total)"), at("q quit")];
        ordered.iter().all(Option::is_some) && ordered.is_sorted()
    };
    eventually("all is shown, by name", || is_shown(&terminal, "aaa", "bbb"));
    assert!(terminal.shown().contains("\u{1b}[1mNAME"), "{:?}", terminal.shown());
    terminal.types("c");
    eventually("the busy one is first", || is_shown(&terminal, "bbb", "aaa"));
    terminal.types("n");
    eventually("it is sorted by name again", || is_shown(&terminal, "aaa", "bbb"));
    terminal.types("q");
    assert_eq!(terminal.ends().0, 0);
    let mut command = msb.command(["metrics", "-w", "--interval", "100ms"]);
    command.env("NO_COLOR", "1");
    let mut terminal = Terminal::start(&command, 24, 80);
    eventually("it is drawn without colours", || is_shown(&terminal, "aaa", "bbb"));
    terminal.types("q");
    let (_, shown) = terminal.ends();
    assert!(!shown.contains("\u{1b}[1m"), "{shown:?}");
}
