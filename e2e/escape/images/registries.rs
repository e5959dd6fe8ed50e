//! Hostile registries: redirects, token servers, endless bodies.

use super::fixture::{ImageFixture, is_printable};
use msb_e2e::http_stub::{HttpRequest, HttpStub, reply, reply_raw};
use msb_e2e::raw_image::{Blob, MANIFEST, RawImage, RawLayer, digest};
use msb_e2e::{CmdOutput, ends};
use serde_json::json;
use std::fs::{self, Permissions};
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

/// `agent:correct-horse`, as a header has it.
const BASIC: &str = "YWdlbnQ6Y29ycmVjdC1ob3JzZQ==";

fn image() -> RawImage {
    RawImage::new([Blob::gzip(&RawLayer::new().file("f", "content"))])
}

/// Notes a login for a registry, as `msb registry login` does.
fn log_in(fixture: &ImageFixture, address: &str, login: &serde_json::Value) {
    let text = json!({ "auths": { address: login } });
    let path = fixture.msb.file("home/auth.json", text.to_string());
    fs::set_permissions(path, Permissions::from_mode(0o600)).expect("its mode");
}

fn pull(fixture: &ImageFixture, stub: &HttpStub) -> (String, CmdOutput) {
    let name = format!("{}/hostile/image:1", stub.address());
    let gave = fixture.run(["pull", &name]);
    (name, gave)
}

/// What part of an image is asked for; none for what is no part.
fn part<'a>(image: &'a RawImage, asked: &HttpRequest) -> Option<&'a [u8]> {
    let wanted = asked.path.split('?').next()?.rsplit('/').next()?;
    let is_tag = asked.path.contains("/manifests/") && !wanted.contains(':');
    let found = image.parts().into_iter().find(|part| digest(part) == wanted);
    found.or(is_tag.then_some(&image.manifest))
}

fn give(image: &RawImage, asked: &HttpRequest, stream: &mut TcpStream) {
    match part(image, asked) {
        Some(part) => reply(stream, "200 OK", &[("Content-Type", MANIFEST)], part),
        None => reply(stream, "404 Not Found", &[], b""),
    }
}

fn is_let_in(asked: &HttpRequest) -> bool {
    asked.headers.contains_key("authorization")
}

/// A password goes to the registry it is for, and not to where that sends us.
#[test]
fn a_redirect_does_not_take_the_password_along() {
    for fixture in ImageFixture::each() {
        let image = Arc::new(image());
        let storage = HttpStub::start({
            let image = image.clone();
            move |asked, stream| give(&image, asked, stream)
        });
        for parts in ["/blobs/", "/manifests/", "/"] {
            for status in ["301 Moved", "302 Found", "303 See", "307 Temporary", "308 Permanent"] {
                let target = storage.address();
                let image = image.clone();
                let registry = HttpStub::start(move |asked, stream| {
                    if !is_let_in(asked) {
                        let wants = [("WWW-Authenticate", "Basic realm=\"x\"")];
                        reply(stream, "401 Unauthorized", &wants, b"");
                    } else if asked.path.contains(parts) {
                        let place = format!("http://{target}{}", asked.path);
                        reply(stream, status, &[("Location", &place)], b"");
                    } else {
                        give(&image, asked, stream);
                    }
                });
                log_in(&fixture, &registry.address(), &json!({ "auth": BASIC }));
                let (name, gave) = pull(&fixture, &registry);
                assert!(registry.seen().iter().any(is_let_in), "{status}: {gave:#?}");
                assert!(!storage.seen().iter().any(is_let_in), "{status}: {:?}", storage.seen());
                fixture.is_unharmed(status);
                if gave.code == 0 {
                    fixture.forget(status, &name);
                }
            }
        }
    }
}

/// A redirect to something that is no web server reads nothing of the host.
#[test]
fn a_redirect_to_a_file_is_refused() {
    for fixture in ImageFixture::each() {
        let canary = fixture.outside().join("canary").display().to_string();
        for place in [
            format!("file://{canary}"),
            format!("file://localhost{canary}"),
            "ftp://127.0.0.1/x".to_owned(),
            "gopher://127.0.0.1:70/x".to_owned(),
            "data:application/json,{}".to_owned(),
            "unix:/run/docker.sock".to_owned(),
            "//".to_owned(),
            "http://".to_owned(),
            "http://[::".to_owned(),
            "http://127.0.0.1:99999/".to_owned(),
            String::new(),
            "\u{7f}\u{80}".to_owned(),
            "x".repeat(20_000),
        ] {
            let stub = HttpStub::start(move |_, stream| {
                reply(stream, "302 Found", &[("Location", &place)], b"");
            });
            let (name, gave) = pull(&fixture, &stub);
            fixture.is_refused("a redirect to another host", &name, &gave);
        }
        let stub = HttpStub::start(|asked, stream| {
            let place = format!("{}x", asked.path);
            reply(stream, "302 Found", &[("Location", &place)], b"");
        });
        let (name, gave) = pull(&fixture, &stub);
        fixture.is_refused("redirects without end", &name, &gave);
        assert!(stub.seen().len() < 50, "{}", stub.seen().len());
    }
}

/// The registry names the token server; the password goes to no other host.
#[test]
fn a_token_server_is_not_a_way_to_the_password() {
    for fixture in ImageFixture::each() {
        let listener = Arc::new(HttpStub::not_found());
        let canary = fixture.outside().join("canary").display().to_string();
        let redirected = format!("http://{}/token", listener.address());
        // A token server that redirects every request.
        let realm = HttpStub::start(move |_, stream| {
            reply(stream, "307 Temporary", &[("Location", &redirected)], b"");
        });
        let realm = format!("http://{}/token", realm.address());
        let file = format!("file://{canary}");
        for (what, realm) in [
            ("a server that sends on", realm.as_str()),
            ("a file", &file),
            ("nothing", ""),
            ("no address", "token"),
            ("a line end", "http://127.0.0.1/\r\nX: y"),
        ] {
            for login in [json!({ "auth": BASIC }), json!({ "identitytoken": "refresh-me" })] {
                let wants = format!("Bearer realm=\"{realm}\",service=\"x\",scope=\"a:b:c\"");
                let registry = HttpStub::start(move |_, stream| {
                    let headers = [("WWW-Authenticate", wants.as_str())];
                    reply(stream, "401 Unauthorized", &headers, b"");
                });
                log_in(&fixture, &registry.address(), &login);
                let (name, gave) = pull(&fixture, &registry);
                fixture.is_refused(&format!("{what} as {}", fixture.msb.uid()), &name, &gave);
                for secret in ["correct-horse", BASIC, "refresh-me"] {
                    assert!(!gave.stderr.contains(secret), "{what}: {gave:#?}");
                }
                let seen = format!("{:?}", listener.seen());
                assert!(!seen.contains(BASIC) && !seen.contains("refresh-me"), "{what}: {seen}");
            }
        }
    }
}

/// Another server's word does not make us show the password: only the registry asks for it.
#[test]
fn a_challenge_of_another_server_gets_no_password() {
    for fixture in ImageFixture::each() {
        let realm = Arc::new(HttpStub::start(|_, stream| {
            reply(stream, "200 OK", &[], br#"{"token":"abc"}"#);
        }));
        let wants = format!("Bearer realm=\"http://{}/token\"", realm.address());
        let storage = HttpStub::start(move |_, stream| {
            reply(stream, "401 Unauthorized", &[("WWW-Authenticate", &wants)], b"");
        });
        let place = format!("http://{}/blob", storage.address());
        let image = image();
        let registry = HttpStub::start(move |asked, stream| {
            if asked.path.contains("/blobs/") {
                reply(stream, "302 Found", &[("Location", &place)], b"");
            } else {
                give(&image, asked, stream);
            }
        });
        log_in(&fixture, &registry.address(), &json!({ "auth": BASIC }));
        let (name, gave) = pull(&fixture, &registry);
        fixture.is_refused("a challenge from another host", &name, &gave);
        assert!(!realm.seen().iter().any(is_let_in), "{:?}", realm.seen());
        assert!(!storage.seen().iter().any(is_let_in), "{:?}", storage.seen());
    }
}

/// Challenges and tokens that are none.
#[test]
fn words_of_a_registry_break_nothing() {
    for fixture in ImageFixture::each() {
        let many = "Bearer ".to_owned() + &"realm=\"http://127.0.0.1:1/\",".repeat(1000);
        for wants in [
            "",
            " ",
            "Bearer",
            "Bearer realm",
            "Bearer realm=",
            "Bearer realm=\"",
            "Basic",
            "Bearer ====",
            "Bearer ,,,,",
            "Negotiate",
            "\u{1b}[2J",
            &many,
        ] {
            let wants = wants.to_owned();
            let registry = HttpStub::start(move |_, stream| {
                reply(stream, "401 Unauthorized", &[("WWW-Authenticate", &wants)], b"");
            });
            let (name, gave) = pull(&fixture, &registry);
            fixture.is_refused("a challenge", &name, &gave);
        }
        let escape = "\u{1b}]0;title\u{7}\u{1b}[2Jgone";
        let error = json!({ "errors": [{ "code": escape, "message": escape }] }).to_string();
        let huge = json!({ "errors": [{ "message": "x".repeat(5_000_000) }] }).to_string();
        let not_json = format!("<html>{escape}");
        for status in [
            "400 Bad",
            "403 No",
            "404 None",
            "418 Teapot",
            "429 Slow",
            "500 Broken",
            "599 X",
            "204 Nothing",
            "206 Part",
            "304 Same",
            "999 Odd",
        ] {
            for body in [&error, &huge, &not_json] {
                let (body, image) = (body.clone(), image());
                let blobs_only = status.starts_with('5');
                let registry = HttpStub::start(move |asked, stream| {
                    if blobs_only && asked.path.contains("/manifests/") {
                        return give(&image, asked, stream);
                    }
                    reply(stream, status, &[("Content-Type", "application/json")], body.as_bytes());
                });
                let (name, gave) = pull(&fixture, &registry);
                fixture.is_refused(status, &name, &gave);
                assert!(gave.stderr.len() < 5_000, "{status}: {} bytes", gave.stderr.len());
            }
        }
        for token in ["\r\nX-Injected: 1", "a b", "", "\u{1b}", &"t".repeat(2_000_000)] {
            let answer = json!({ "token": token }).to_string();
            let realm = HttpStub::start(move |_, stream| {
                reply(stream, "200 OK", &[], answer.as_bytes());
            });
            let wants = format!("Bearer realm=\"http://{}/\"", realm.address());
            let registry = HttpStub::start(move |_, stream| {
                reply(stream, "401 Unauthorized", &[("WWW-Authenticate", &wants)], b"");
            });
            let (name, gave) = pull(&fixture, &registry);
            fixture.is_refused("a token", &name, &gave);
            let injected = |asked: &HttpRequest| asked.headers.contains_key("x-injected");
            assert!(!registry.seen().iter().any(injected));
        }
    }
}

/// Attacks 8 and 9: bodies without end, and lengths that lie.
#[test]
fn bodies_that_lie_about_their_length_are_refused() {
    for fixture in ImageFixture::each() {
        type Body = fn(&mut TcpStream, &[u8]);
        let cases: [(&str, Body); 11] = [
            ("no length and no end", |stream, part| {
                reply_raw(stream, "200 OK", &[], part);
                while stream.write_all(&[b' '; 65536]).is_ok() {}
            }),
            ("pieces without end", |stream, part| {
                reply_raw(stream, "200 OK", &[("Transfer-Encoding", "chunked")], b"");
                let _ = stream.write_all(format!("{:x}\r\n", part.len()).as_bytes());
                let _ = stream.write_all(&[part, b"\r\n"].concat());
                let piece = [&b"10000\r\n"[..], &[b' '; 65536], b"\r\n"].concat();
                while stream.write_all(&piece).is_ok() {}
            }),
            ("a longer length", |stream, part| {
                let length = (part.len() + 1000).to_string();
                reply_raw(stream, "200 OK", &[("Content-Length", &length)], part);
            }),
            ("a shorter length", |stream, part| {
                let length = (part.len() / 2).to_string();
                reply_raw(stream, "200 OK", &[("Content-Length", &length)], part);
            }),
            ("a length of exabytes", |stream, part| {
                let length = u64::MAX.to_string();
                reply_raw(stream, "200 OK", &[("Content-Length", &length)], part);
            }),
            ("a length below zero", |stream, part| {
                reply_raw(stream, "200 OK", &[("Content-Length", "-5")], part);
            }),
            ("a piece of exabytes", |stream, part| {
                reply_raw(stream, "200 OK", &[("Transfer-Encoding", "chunked")], b"");
                let _ = stream.write_all(b"ffffffffffffffff\r\n");
                let _ = stream.write_all(part);
            }),
            ("nothing at all", |stream, _| {
                reply_raw(stream, "200 OK", &[], b"");
            }),
            ("a header without end", |stream, _| {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nX: ");
                while stream.write_all(&[b'x'; 65536]).is_ok() {}
            }),
            ("many headers", |stream, _| {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
                while stream.write_all(&b"X: y\r\n".repeat(10_000)).is_ok() {}
            }),
            ("no HTTP", |stream, _| {
                let _ = stream.write_all(&[0xa5; 100_000]);
            }),
        ];
        for (what, body) in cases {
            for place in ["/manifests/", "/blobs/"] {
                let image = image();
                let stub = HttpStub::start(move |asked, stream| match part(&image, asked) {
                    Some(part) if asked.path.contains(place) => body(stream, part),
                    _ => give(&image, asked, stream),
                });
                let (name, gave) = pull(&fixture, &stub);
                let what = format!("{what} at {place} as {}", fixture.msb.uid());
                // A body that is cut where the right one ends has all that was asked for.
                if gave.code == 0 && what.contains("longer length") {
                    fixture.forget(&what, &name);
                } else {
                    fixture.is_refused(&what, &name, &gave);
                }
                fixture.prune(&what);
                assert_eq!(fixture.state(), Default::default(), "{what}");
            }
        }
    }
}

/// Attack 8: what was begun is not gone on with from other bytes.
#[test]
fn a_resumed_transfer_is_verified_as_a_whole() {
    for fixture in ImageFixture::each() {
        let image = RawImage::new([Blob::gzip(&RawLayer::new().file("f", vec![b'x'; 300_000]))]);
        let blob = image.blobs[0].bytes.clone();
        for answer in
            ["206 with other bytes", "206 from another host", "200 with all", "416", "206 with all"]
        {
            let (image, whole) = (image.clone(), blob.clone());
            let stub = HttpStub::start(move |asked, stream| {
                if !asked.path.ends_with(&digest(&whole)) {
                    return give(&image, asked, stream);
                }
                let length = whole.len().to_string();
                let range = asked.headers.get("range").and_then(|range| {
                    range.strip_prefix("bytes=")?.trim_end_matches('-').parse::<usize>().ok()
                });
                let Some(from) = range else {
                    // The connection breaks in the middle.
                    let headers = [("Content-Length", length.as_str())];
                    return reply_raw(stream, "200 OK", &headers, &whole[..150_000]);
                };
                let range = format!("bytes {from}-{}/{length}", whole.len() - 1);
                let headers = [("Content-Range", range.as_str())];
                match answer {
                    "206 with other bytes" => {
                        reply(stream, "206 Partial", &headers, &vec![0xa5; whole.len() - from]);
                    }
                    "206 from another host" => {
                        let headers = [("Content-Range", "bytes 0-99/100")];
                        reply(stream, "206 Partial", &headers, &whole[..whole.len() - from]);
                    }
                    "206 with all" => reply(stream, "206 Partial", &headers, &whole),
                    "416" => reply(stream, "416 Range", &[], b""),
                    _ => reply(stream, "200 OK", &[], &whole),
                }
            });
            let (name, gave) = pull(&fixture, &stub);
            let what = format!("{answer} as {}", fixture.msb.uid());
            match answer {
                "200 with all" => {
                    assert_eq!(gave.code, 0, "{what}: {gave:#?}");
                    fixture.forget(&what, &name);
                }
                _ => {
                    fixture.is_refused(&what, &name, &gave);
                    fixture.prune(&what);
                }
            }
            assert_eq!(fixture.state(), Default::default(), "{what}");
        }
    }
}

/// Attacks 9 and 27: silence, and a byte a second, end at the limit of silence.
#[test]
fn a_registry_that_hardly_says_anything_is_given_up() {
    let fixtures = ImageFixture::each();
    type Body = fn(&mut TcpStream, &[u8]);
    let cases: [(&str, &str, Body); 4] = [
        ("silence", "/manifests/", |_, _| std::thread::sleep(Duration::from_secs(120))),
        ("a byte a second", "/manifests/", drip),
        ("a byte a second", "/blobs/", drip),
        ("half an answer", "/manifests/", |stream, part| {
            let length = part.len().to_string();
            reply_raw(stream, "200 OK", &[("Content-Length", &length)], &part[..part.len() / 2]);
            std::thread::sleep(Duration::from_secs(120));
        }),
    ];
    let mut pulling = Vec::new();
    for fixture in &fixtures {
        for (what, place, body) in cases {
            let image = image();
            let stub = HttpStub::start(move |asked, stream| match part(&image, asked) {
                Some(part) if asked.path.contains(place) => body(stream, part),
                _ => give(&image, asked, stream),
            });
            let name = format!("{}/hostile/image:1", stub.address());
            let mut command = fixture.msb.command(["pull", &name]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            pulling.push((fixture, what, name, stub, command.spawn().unwrap()));
        }
    }
    for (fixture, what, name, _liar, child) in pulling {
        let gave = ends(child);
        fixture.is_refused(&format!("{what} as {}", fixture.msb.uid()), &name, &gave);
    }
}

fn drip(stream: &mut TcpStream, part: &[u8]) {
    let length = part.len().to_string();
    reply_raw(stream, "200 OK", &[("Content-Length", &length)], b"");
    for byte in part {
        if stream.write_all(&[*byte]).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// An upload goes to the registry that was named, and nowhere else.
#[test]
fn an_upload_is_not_redirected() {
    for fixture in ImageFixture::each() {
        let listener = HttpStub::not_found();
        let name = "docker.io/hostile/load:1";
        fixture.load(&image().oci_archive(name)).ok();
        for (status, place) in [
            ("202 Accepted", format!("http://{}/upload", listener.address())),
            ("202 Accepted", format!("//{}/upload", listener.address())),
            ("202 Accepted", "file:///tmp/by-image".to_owned()),
            ("202 Accepted", String::new()),
            ("202 Accepted", format!("http://127.0.0.1:1@{}/upload", listener.address())),
            ("307 Temporary", format!("http://{}/upload", listener.address())),
            ("308 Permanent", format!("http://{}/upload", listener.address())),
        ] {
            let at = place.clone();
            let registry = HttpStub::start(move |asked, stream| match &*asked.method {
                _ if !is_let_in(asked) => {
                    let wants = [("WWW-Authenticate", "Basic realm=\"x\"")];
                    reply(stream, "401 Unauthorized", &wants, b"");
                }
                "HEAD" => reply_raw(stream, "404 Not Found", &[("Content-Length", "0")], b""),
                _ => reply(stream, status, &[("Location", &at)], b""),
            });
            log_in(&fixture, &registry.address(), &json!({ "auth": BASIC }));
            let target = format!("{}/hostile/pushed:1", registry.address());
            let gave = fixture.run(["push", name, &target]);
            assert_eq!(gave.code, 125, "{place}: {gave:#?}");
            assert!(is_printable(&gave.stderr), "{place}: {gave:#?}");
            let seen = listener.seen();
            assert!(!seen.iter().any(is_let_in), "{place}: {seen:?}");
            assert!(!seen.iter().any(|asked| asked.method == "PUT"), "{place}: {seen:?}");
        }
        fixture.is_unharmed("an upload");
    }
}
