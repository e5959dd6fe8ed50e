//! Puts images into a registry by plain HTTP, without asking whether they make sense.

use super::{MANIFEST, RawImage, digest};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;

impl RawImage {
    /// Puts every part of the image into a registry; says what the registry did not take.
    pub fn put(&self, address: &str, repository: &str, tag: &str) -> Result<(), String> {
        let mut parts = self.parts();
        let manifest = parts.pop().expect("the manifest is the last part");
        let mut known = BTreeSet::new();
        parts.retain(|part| known.insert(digest(part)));
        for part in parts {
            put_blob(address, repository, part)?;
        }
        put_manifest(address, repository, tag, MANIFEST, manifest)
    }
}

/// Puts one blob under its own digest.
pub fn put_blob(address: &str, repository: &str, blob: &[u8]) -> Result<(), String> {
    let begun = ask(address, "POST", &format!("/v2/{repository}/blobs/uploads/"), "", b"")?;
    let place = begun.location.ok_or("no place to put a blob")?;
    let path = place
        .split_once("://")
        .map_or(&*place, |(_, rest)| rest.find('/').map_or(rest, |at| &rest[at..]));
    let path = format!("{path}&digest={}", digest(blob));
    ask(address, "PUT", &path, "application/octet-stream", blob).map(drop)
}

/// Puts a manifest or an index under a tag or a digest.
pub fn put_manifest(
    address: &str,
    repository: &str,
    tag: &str,
    media: &str,
    bytes: &[u8],
) -> Result<(), String> {
    ask(address, "PUT", &format!("/v2/{repository}/manifests/{tag}"), media, bytes).map(drop)
}

struct Answer {
    location: Option<String>,
}

fn ask(
    address: &str,
    method: &str,
    path: &str,
    media: &str,
    body: &[u8],
) -> Result<Answer, String> {
    let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: {media}\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).map_err(|error| error.to_string())?;
    // A registry that refuses a body may answer before it has read it all.
    let _ = stream.write_all(body);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let code = answer.split_whitespace().nth(1).unwrap_or_default();
    if !matches!(code, "200" | "201" | "202") {
        return Err(format!("{method} {path}: {answer}"));
    }
    let location = answer.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("location").then(|| value.trim().to_owned())
    });
    Ok(Answer { location })
}
