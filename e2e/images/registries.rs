//! Registries that are mirrored, insecure, signed by another CA, or not there at all.

use msb_e2e::images::Layout;
use msb_e2e::registry::Registry;
use msb_e2e::relay::Relay;
use msb_e2e::{CmdOutput, Msb, ends};
use std::net::{IpAddr, TcpStream};

/// An address of loopback where no program listens.
fn closed_port() -> String {
    format!("127.0.0.1:{}", msb_e2e::free_port())
}

#[test]
fn a_mirror_of_the_settings_is_asked_first() {
    let (mirror, origin) = (Registry::plain(), Registry::plain());
    mirror.push(Layout::busybox(), "team/app:1");
    let name = origin.push(Layout::busybox(), "team/app:1");
    for msb in Msb::each_with_own_layers() {
        let before = origin.requests();
        msb.write_config(&format!(
            "[registries.\"{}\"]\nmirrors = [\"{}\"]\n",
            origin.address(),
            mirror.url()
        ));
        assert_eq!(msb.run(["run", &name, "--", "echo", "there"]).line(), "there");
        assert_eq!(msb.json(["image", "ls", "--json"])[0]["reference"], name.as_str());
        assert_eq!(origin.requests(), before);
        assert!(!mirror.requests().is_empty());
    }
}

#[test]
fn a_mirror_that_fails_or_lacks_the_image_gives_way_to_the_next() {
    let (empty, origin) = (Registry::plain(), Registry::plain());
    let name = origin.push(Layout::busybox(), "team/app:1");
    for msb in Msb::each_with_own_layers() {
        msb.write_config(&format!(
            "[registries.\"{}\"]\nmirrors = [\"http://{}\", \"{}\"]\n",
            origin.address(),
            closed_port(),
            empty.url()
        ));
        assert_eq!(msb.run(["run", &name, "--", "echo", "there"]).line(), "there");
        assert!(empty.requests().iter().any(|one| one.path.contains("team/app")));
    }
}

#[test]
fn a_mirror_can_be_given_as_a_flag() {
    let mirror = Registry::plain();
    mirror.push(Layout::busybox(), "library/flagged:latest");
    for msb in Msb::each_with_own_layers() {
        let url = mirror.url();
        let args = ["run", "--mirror", &url, "flagged", "--", "echo", "there"];
        assert_eq!(msb.run(args).line(), "there");
        msb.run(["image", "rm", "flagged"]).ok();
        msb.run(["pull", "--mirror", &url, "flagged"]).ok();
    }
}

#[test]
fn an_untrusted_certificate_is_refused_unless_allowed() {
    let registry = Registry::with_tls();
    let name = registry.push(Layout::busybox(), "app:1");
    // Loopback may fall back to plain http, so that must not be what saves a bad certificate.
    let ca = registry.ca();
    let ca = ca.to_str().unwrap();
    for msb in Msb::each_with_own_layers() {
        let gave = msb.run(["pull", &name]);
        assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{gave:?}");
        assert!(gave.stderr.contains("certificate"), "{gave:?}");
        assert!(gave.stderr.contains("--ca") || gave.stderr.contains("insecure"), "{gave:?}");

        msb.run(["pull", "--ca", ca, &name]).ok();
        msb.run(["image", "rm", &name]).ok();
        msb.run(["pull", "--insecure", &name]).ok();
        msb.run(["image", "rm", &name]).ok();
        let args = ["run", "--ca", ca, &name, "--", "echo", "there"];
        assert_eq!(msb.run(args).line(), "there");
        msb.run(["image", "rm", &name]).ok();
        for setting in [format!("ca = \"{ca}\""), "insecure = true".to_owned()] {
            msb.write_config(&format!("[registries.\"{}\"]\n{setting}\n", registry.address()));
            assert_eq!(msb.run(["run", &name, "--", "echo", "there"]).line(), "there");
            msb.run(["image", "rm", &name]).ok();
        }
    }
}

#[test]
fn the_wrong_authority_is_no_authority() {
    let (registry, other) = (Registry::with_tls(), Registry::with_tls());
    let name = registry.push(Layout::busybox(), "app:1");
    let msb = Msb::with_own_layers();
    let wrong = other.ca();
    let gave = msb.run(["pull", "--ca", wrong.to_str().unwrap(), &name]);
    assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{gave:?}");
    let gave = msb.run(["pull", "--ca", "/no/such/file", &name]);
    assert_eq!(gave.code, 125, "{gave:?}");
    assert!(gave.stderr.contains("/no/such/file"), "{gave:?}");
}

/// Only loopback addresses and `localhost` may be used without TLS; an attacker may control what
/// other names resolve to.
#[test]
fn a_name_that_only_leads_to_loopback_is_never_asked_without_tls() {
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let mut names = hosts.lines().filter_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let ip: IpAddr = words.next()?.parse().ok()?;
        let name = words.find(|name| !name.starts_with("localhost"))?;
        ip.is_loopback().then(|| (ip, name.to_owned()))
    });
    let Some((ip, host)) = names.next() else {
        return msb_e2e::skip("/etc/hosts has no other name for loopback");
    };
    let registry = Registry::plain();
    registry.push(Layout::busybox(), "app:1");
    let relay = Relay::at(ip, registry.address());
    let port = relay.address().rsplit_once(':').unwrap().1.to_owned();
    let name = format!("{host}:{port}/app:1");
    for msb in Msb::each_with_own_layers() {
        let before = registry.requests();
        let gave = msb.run(["pull", &name]);
        assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{gave:?}");
        assert_eq!(registry.requests(), before);
        msb.run(["pull", "--insecure", &name]).ok();
    }
}

#[test]
fn unknown_words_in_the_settings_are_errors_that_name_them() {
    for msb in Msb::each_with_own_layers() {
        for (settings, word) in [
            ("[registry]\n", "registry"),
            ("[registries.\"a.b\"]\ninsecur = true\n", "insecur"),
            ("[image_limits]\nbites = \"1G\"\n", "bites"),
            ("[aliases]\npython = \"Not A Name\"\n", "Not A Name"),
            ("[[[", "config.toml"),
        ] {
            msb.write_config(settings);
            let gave = msb.run(["pull", "127.0.0.1:1/app:1"]);
            assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{gave:?}");
            assert!(gave.stderr.contains(word), "{settings}: {gave:?}");
        }
    }
}

#[track_caller]
fn is_unreachable(gave: &CmdOutput) {
    assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{gave:?}");
    assert!(gave.stderr.starts_with("error: "), "{gave:?}");
    for way_out in ["msb load", "msb image bootstrap", "host"] {
        assert!(gave.stderr.contains(way_out), "{way_out}: {gave:?}");
    }
}

#[test]
fn a_registry_that_refuses_connections_fails_with_the_ways_out() {
    for msb in Msb::each_with_own_layers() {
        let name = format!("{}/app:1", closed_port());
        is_unreachable(&msb.run(["run", &name, "--", "true"]));
        is_unreachable(&msb.run(["pull", &name]));
        assert_eq!(msb.json(["ls", "--json"]), serde_json::json!([]));
    }
}

#[test]
fn a_registry_with_an_unknown_host_name_fails_with_hints() {
    for msb in Msb::each_with_own_layers() {
        is_unreachable(&msb.run(["run", "registry.invalid/app:1", "--", "true"]));
    }
}

/// The kernel drops connections to a socket with a full queue: a black hole without a network.
#[test]
fn a_registry_that_swallows_connections_does_not_hang_us() {
    let listener = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    rustix::net::bind(&listener, &any).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address: std::net::SocketAddr =
        rustix::net::getsockname(&listener).unwrap().try_into().unwrap();
    let limit = std::time::Duration::from_millis(300);
    let waiting: Vec<_> = (0..4).map(|_| TcpStream::connect_timeout(&address, limit)).collect();
    assert!(waiting.iter().any(Result::is_err), "the queue is full");
    for msb in Msb::each_with_own_layers() {
        is_unreachable(&msb.run(["run", &format!("{address}/app:1"), "--", "true"]));
    }
}

/// No route leads to TEST-NET-1; whether that is silence or an error depends on the machine.
#[test]
fn an_address_that_leads_nowhere_does_not_hang_us() {
    let children: Vec<_> = Msb::each_with_own_layers()
        .into_iter()
        .map(|msb| (msb.spawn(["run", "192.0.2.1:5000/app:1", "--", "true"]), msb))
        .collect();
    for (child, _msb) in children {
        is_unreachable(&ends(child));
    }
}

/// It accepts and never answers.
#[test]
fn a_registry_that_stays_silent_does_not_hang_us() {
    let registry = Registry::plain();
    let relay = Relay::to(registry.address());
    relay.hold_after(0);
    let name = format!("{}/app:1", relay.address());
    let msb = Msb::with_own_layers();
    let child = msb.spawn(["pull", &name]);
    let gave = msb_e2e::ends_within(child, std::time::Duration::from_secs(150));
    assert_eq!((gave.code, gave.stdout.as_str()), (125, ""), "{gave:?}");
}
