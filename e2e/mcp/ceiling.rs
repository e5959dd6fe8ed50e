//! What a client of the server cannot have, however it asks: connections of the server to its own
//! network, and sandboxes that reach that.

use msb_e2e::http_stub::{HttpStub, reply};
use msb_e2e::listener::Server;
use msb_e2e::raw_image::{Blob, MANIFEST, RawImage, RawLayer, digest};
use msb_e2e::{Msb, skip};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn ask(server: &Server<'_>, key: &str, path: &str, body: &Value) -> (u16, Value) {
    let headers = [("Authorization", key)];
    let (status, answer) =
        server.request("POST", &format!("/api/v1{path}"), &headers, &body.to_string());
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    (status, serde_json::from_str(body).unwrap_or_else(|_| body.into()))
}

#[track_caller]
fn denied(server: &Server<'_>, key: &str, path: &str, body: &Value) {
    let (status, answer) = ask(server, key, path, body);
    assert_eq!(status, 403, "{path} {body}: {answer}");
}

/// A pull is no way to services of the server's machine: nothing connects to them.
#[test]
fn a_pull_connects_to_no_address_that_is_not_public() {
    for msb in Msb::each() {
        let service = HttpStub::not_found();
        let server = Server::start(&msb, "");
        let port = service.address().split_once(':').expect("a port").1.to_owned();
        for key in [server.key("*"), server.key("red")] {
            for host in [service.address(), format!("localhost:{port}")] {
                let image = format!("{host}/latest/meta-data");
                denied(&server, &key, "/images/pull", &json!({"name": image}));
                let registry = json!({"insecure": true});
                denied(
                    &server,
                    &key,
                    "/images/pull",
                    &json!({"name": image, "registry": registry}),
                );
                let spec = json!({"name": "box", "image": image, "pull": "always"});
                denied(&server, &key, "/sandboxes", &json!({"spec": spec, "registry": registry}));
                denied(&server, &key, "/sandboxes", &json!({"spec": spec}));
                let run = json!({"image": image, "command": ["true"]});
                denied(&server, &key, "/run", &json!({"spec": run}));
            }
        }
        let build =
            json!({"name": "x", "containerfile": format!("FROM {}/x\n", service.address())});
        denied(&server, &server.key("*"), "/images/build", &build);
        assert_eq!(service.connections(), 0, "{:?}", service.seen());
        // The operator's own commands reach it.
        assert_ne!(msb.run(["pull", &format!("{}/x", service.address())]).code, 0);
        assert_ne!(service.connections(), 0);
    }
}

/// A registry that the operator trusts is reached where it is, and leads to nothing else there.
#[test]
fn a_trusted_registry_cannot_redirect_to_another_host() {
    for msb in Msb::each() {
        let service = HttpStub::not_found();
        let inside = format!("http://{}", service.address());
        let registry = HttpStub::start(move |asked, stream| {
            let bearer = format!("Bearer realm=\"{inside}/token\",service=\"x\"");
            let redirected = format!("{inside}{}", asked.path);
            let knows = asked.headers.contains_key("authorization");
            if asked.path.contains("/realm/") {
                let headers = [("WWW-Authenticate", bearer.as_str())];
                reply(stream, "401 Unauthorized", &headers, b"");
            } else if asked.path.contains("/redirect/") {
                let headers = [("Location", redirected.as_str())];
                reply(stream, "307 Temporary Redirect", &headers, b"");
            } else if knows {
                reply(stream, "200 OK", &[], b"{}");
            } else {
                let headers = [("WWW-Authenticate", "Basic realm=\"x\"")];
                reply(stream, "401 Unauthorized", &headers, b"");
            }
        });
        let host = registry.address();
        msb.file("home/config.toml", format!("[registries.\"{host}\"]\ntrusted = true\n"));
        let login = ["registry", "login", "-u", "operator", "--password-stdin", &host];
        msb.run_with(login, b"the operator's password\n").ok();
        let server = Server::start(&msb, "");
        let key = server.key("*");
        let before = registry.seen().len();
        for repository in ["realm", "redirect"] {
            denied(
                &server,
                &key,
                "/images/pull",
                &json!({"name": format!("{host}/{repository}/x")}),
            );
        }
        assert_eq!(service.connections(), 0, "{:?}", service.seen());
        assert!(registry.seen().len() > before, "the registry itself was reached");
        // Without verification no stored password goes out; with it, it does.
        let knows = || {
            registry.seen().iter().skip(before).any(|it| it.headers.contains_key("authorization"))
        };
        let name = format!("{host}/basic/x");
        ask(&server, &key, "/images/pull", &json!({"name": name, "registry": {"insecure": true}}));
        assert!(!knows(), "a client had the operator's password sent in clear text");
        ask(&server, &key, "/images/pull", &json!({"name": name}));
        assert!(knows());
    }
}

/// What a client asks for beyond the ceiling is refused, by every Operation that could give it.
#[test]
fn a_client_gets_nothing_above_the_ceiling() {
    for msb in Msb::each() {
        let server = Server::start(&msb, "");
        let networks = [
            json!({"reach": "private"}),
            json!({"reach": "host"}),
            json!({"reach": "all"}),
            json!({"rules": ["allow@host"]}),
            json!({"rules": ["allow@metadata"]}),
            json!({"rules": ["allow@169.254.169.254:tcp:80"]}),
            json!({"rules": ["allow@10.0.0.1"]}),
            json!({"rules": ["allow@[::ffff:127.0.0.1]"]}),
            json!({"dns": ["127.0.0.1:53"]}),
            json!({"dns": ["10.0.0.1"]}),
            json!({"ports": ["0.0.0.0:0:80"]}),
            json!({"ports": ["[::]:0:80"]}),
        ];
        for key in [server.key("*"), server.key("red")] {
            for network in &networks {
                let spec = json!({"name": "box", "image": "host", "network": network});
                denied(&server, &key, "/sandboxes", &json!({"spec": spec}));
                let run = json!({"image": "host", "network": network, "command": ["true"]});
                denied(&server, &key, "/run", &json!({"spec": run}));
            }
            for (field, value) in [
                ("allow_userns", json!(true)),
                ("memory", json!(1_u64 << 50)),
                ("pids", json!(1_000_000)),
            ] {
                let mut spec = json!({"name": "box", "image": "host"});
                spec[field] = value;
                denied(&server, &key, "/sandboxes", &json!({"spec": spec}));
            }
            let (status, made) = ask(
                &server,
                &key,
                "/sandboxes",
                &json!({"spec": {"name": "box", "image": "host"}}),
            );
            assert_eq!(status, 200, "{made}");
            let change = json!({"change": {"pids": 1_000_000}});
            denied(&server, &key, "/sandboxes/box/modify", &change);
            for rule in ["allow@any", "allow@host", "allow@169.254.169.254", "allow@10.0.0.0/8"] {
                let path = "/sandboxes/box/network/rules";
                denied(&server, &key, path, &json!({"rules": [rule]}));
            }
            denied(&server, &key, "/sandboxes/box/ports", &json!({"port": "0.0.0.0:0:80"}));
        }
        assert_eq!(msb.words("ls -q").ok().stdout, "box\nred--box\n");
    }
}

/// What is wide by nature is held inside, too, and what the operator has made is not a way out.
#[test]
fn a_sandbox_of_a_client_does_not_reach_the_servers_machine() {
    let msb = Msb::new();
    if msb.words("run --net public -- true").code != 0 {
        return skip("this user may not make the device of a network");
    }
    let service = HttpStub::not_found();
    let port = service.address().split_once(':').expect("a port").1.to_owned();
    let server = Server::start(&msb, "");
    let key = server.key("default");
    let script = format!(
        "for host in 198.18.0.1 host.msb.internal; do curl -s -m 2 http://$host:{port}/; done; true"
    );
    for network in
        [json!({"default": "allow"}), json!({"rules": ["allow@any", "deny@host", "deny@private"]})]
    {
        let spec = json!({"image": "host", "network": network, "command": ["sh", "-c", script]});
        let (status, ran) = ask(&server, &key, "/run", &json!({"spec": spec}));
        assert_eq!((status, &ran["exit"]["code"]), (200, &json!(0)), "{ran}");
    }
    assert_eq!(service.connections(), 0, "{:?}", service.seen());
    // One that the operator has made may, and a copy of it would be the client's.
    msb.words("create -q --name far --net host host").ok();
    msb.run(["exec", "far", "--", "sh", "-c", &script]).ok();
    assert_ne!(service.connections(), 0);
    msb.words("stop far").ok();
    denied(&server, &key, "/sandboxes/far/clone", &json!({"to": "near"}));
    ask(&server, &key, "/snapshots", &json!({"name": "s", "of": "far"}));
    denied(&server, &key, "/snapshots/s/restore", &json!({"to": "near"}));
    assert_eq!(msb.words("ls -q").ok().stdout, "far\n");
}

/// The operator raises the ceiling, by the file and by the flag, and sees it.
#[test]
fn the_operator_sets_the_ceiling() {
    let msb = Msb::new();
    msb.file("home/config.toml", "[server.ceiling]\nsandboxes = 2\nbind = [\"127.0.0.2\"]\n");
    let server = Server::start(&msb, "--ceiling reach=private,memory=64M");
    let said = msb.words("server status").ok().stdout;
    assert!(said.contains("reach private") && said.contains("2 sandboxes"), "{said}");
    let key = server.key("red");
    let make = |name: &str| {
        ask(&server, &key, "/sandboxes", &json!({"spec": {"name": name, "image": "host"}})).0
    };
    assert_eq!([make("a"), make("b"), make("c")], [200, 200, 429]);
    assert_eq!(msb.words("ls -q").ok().stdout, "red--a\nred--b\n");
    let seen = msb.json(["inspect", "red--a"]);
    assert_eq!(seen["plan"]["limits"]["memory"]["value"], json!("67108864"), "{seen}");
}

/// Local tags are shared by all keys: a key of one namespace cannot point one at another image.
#[test]
fn a_pull_of_one_namespace_replaces_no_tag() {
    let msb = Msb::new();
    let image = |text: &str| RawImage::new([Blob::gzip(&RawLayer::new().file("f", text))]);
    let images = [image("first"), image("second")];
    let changed = Arc::new(AtomicBool::new(false));
    let second = Arc::clone(&changed);
    let registry = HttpStub::start(move |asked, stream| {
        let image = &images[usize::from(second.load(Ordering::Acquire))];
        let wanted = asked.path.rsplit('/').next().unwrap_or_default();
        let tagged = asked.path.contains("/manifests/") && !wanted.contains(':');
        let part = image.parts().into_iter().find(|part| digest(part) == wanted);
        match part.or(tagged.then_some(&image.manifest[..])) {
            Some(part) => reply(stream, "200 OK", &[("Content-Type", MANIFEST)], part),
            None => reply(stream, "404 Not Found", &[], b""),
        }
    });
    let host = registry.address();
    msb.file("home/config.toml", format!("[registries.\"{host}\"]\ntrusted = true\n"));
    let server = Server::start(&msb, "");
    let name = format!("{host}/team/app:1");
    let pull = |key: &str| ask(&server, &server.key(key), "/images/pull", &json!({"name": name}));
    let here = || msb.json(["image", "inspect", "--json", &name])["digest"].clone();
    let (status, first) = pull("red");
    assert_eq!((status, &first["digest"]), (200, &here()), "{first}");
    assert_eq!(pull("blue").0, 200, "the same image is no change");
    changed.store(true, Ordering::Release);
    assert_eq!(pull("blue").0, 403);
    let spec = json!({"image": name, "pull": "always", "command": ["true"]});
    let (status, ran) = ask(&server, &server.key("blue"), "/run", &json!({"spec": spec}));
    assert_eq!(status, 403, "{ran}");
    assert_eq!(here(), first["digest"]);
    assert_eq!(pull("*").0, 200);
    assert_ne!(here(), first["digest"]);
}

/// Labels are the client's own words: they select no policy of the operator's.
#[test]
fn a_label_of_a_client_selects_no_policy() {
    let msb = Msb::new();
    let config = "[spawn.\"label:role=lead\"]\n[spawn.\"label:msb.namespace=blue\"]\n";
    msb.file("home/config.toml", config);
    let server = Server::start(&msb, "");
    for (namespace, spawns) in [("red", false), ("*", false), ("blue", true)] {
        let labels = json!({"role": "lead"});
        let spec = json!({"name": "box", "image": "host", "labels": labels});
        let (status, made) =
            ask(&server, &server.key(namespace), "/sandboxes", &json!({"spec": spec}));
        assert_eq!(status, 200, "{made}");
        let name = if namespace == "*" { "box".to_owned() } else { format!("{namespace}--box") };
        let plan = msb.json(["inspect", &name]);
        assert_eq!(plan["plan"]["spawn"].is_object(), spawns, "{namespace}: {plan}");
    }
    // The operator's own label does.
    msb.words("create -q --name own --label role=lead host").ok();
    assert!(msb.json(["inspect", "own"])["plan"]["spawn"].is_object());
}
