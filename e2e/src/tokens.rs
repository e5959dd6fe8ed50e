//! The token server of a registry: the other half of token authentication.
//!
//! It does what the public registries do: anybody may pull, except from `private/`; only the
//! one user may push.

use crate::registry::{PASSWORD, USER, openssl};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A server that gives out tokens. It ends when it is dropped.
#[derive(Debug)]
pub struct TokenServer {
    directory: PathBuf,
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TokenServer {
    /// Serves with a key that it puts into a directory.
    pub(crate) fn start(directory: &Path) -> Self {
        openssl(
            directory,
            &[
                &["req", "-x509", "-days", "2", "-newkey", "rsa:2048", "-nodes"][..],
                &["-keyout", "token.key", "-out", "token.pem", "-subj", "/CN=msb tests"],
            ]
            .concat(),
        );
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut server = Self {
            directory: directory.to_owned(),
            port: listener.local_addr().expect("an address").port(),
            asked: Arc::default(),
            is_over: Arc::default(),
            thread: None,
        };
        let (asked, is_over) = (server.asked.clone(), server.is_over.clone());
        let directory = directory.to_owned();
        server.thread = Some(std::thread::spawn(move || {
            for stream in listener.incoming() {
                if is_over.load(Ordering::Acquire) {
                    return;
                }
                if let Ok(stream) = stream {
                    // A client that leaves early is its own business.
                    let _ = answer(&stream, &directory, &asked);
                }
            }
        }));
        server
    }

    /// Where a client gets its token.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/token", self.port)
    }

    /// The first line and the headers of each request so far.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.directory.join("token.pem")
    }
}

impl Drop for TokenServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let woken = TcpStream::connect(("127.0.0.1", self.port));
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn answer(stream: &TcpStream, directory: &Path, asked: &Mutex<Vec<String>>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut lines = BufReader::new(stream.take(64 * 1024)).lines();
    let mut request = Vec::new();
    for line in lines.by_ref() {
        match line? {
            line if line.is_empty() => break,
            line => request.push(line),
        }
    }
    asked.lock().unwrap_or_else(PoisonError::into_inner).push(request.join("\n"));
    let target = request.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    let authorization = request.iter().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("authorization").then(|| value.trim())
    });
    let expected = format!("Basic {}", base64(format!("{USER}:{PASSWORD}").as_bytes()));
    let is_known = authorization == Some(expected.as_str());
    let (status, body) = if authorization.is_some() && !is_known {
        ("401 Unauthorized", "{\"errors\":[{\"code\":\"UNAUTHORIZED\"}]}".to_owned())
    } else {
        let token = token(directory, target, is_known);
        ("200 OK", serde_json::json!({"token": token, "expires_in": 300}).to_string())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    let mut stream = stream;
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// A signed statement of what its bearer may do.
fn token(directory: &Path, target: &str, is_known: bool) -> String {
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let scopes = query.split('&').filter_map(|pair| pair.strip_prefix("scope="));
    // Some clients send several scopes as words of one value.
    let scopes: Vec<String> = scopes
        .flat_map(|scope| decoded(scope).split(' ').map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let access: Vec<serde_json::Value> = scopes
        .iter()
        .filter_map(|scope| {
            let (kind, rest) = scope.split_once(':')?;
            let (name, actions) = rest.rsplit_once(':')?;
            let may =
                |action: &&str| is_known || (*action == "pull" && !name.starts_with("private/"));
            let actions: Vec<&str> = actions.split(',').filter(may).collect();
            Some(serde_json::json!({"type": kind, "name": name, "actions": actions}))
        })
        .collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let certificate = fs::read_to_string(directory.join("token.pem")).expect("a certificate");
    let certificate: String = certificate.lines().filter(|line| !line.starts_with('-')).collect();
    let header = serde_json::json!({"typ": "JWT", "alg": "RS256", "x5c": [certificate]});
    let claims = serde_json::json!({
        "iss": "tests",
        "aud": "tests",
        "sub": if is_known { USER } else { "" },
        "iat": now - 10,
        "nbf": now - 10,
        "exp": now + 300,
        "jti": now.to_string(),
        "access": access,
    });
    let part = |value: &serde_json::Value| base64_of(value.to_string().as_bytes(), FOR_URLS);
    let signed = format!("{}.{}", part(&header), part(&claims));
    let signature = base64_of(&sign(directory, &signed), FOR_URLS);
    format!("{signed}.{signature}")
}

fn sign(directory: &Path, text: &str) -> Vec<u8> {
    let mut child = Command::new("openssl")
        .args(["dgst", "-sha256", "-sign", "token.key"])
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("openssl is installed");
    let mut pipe = child.stdin.take().expect("a pipe");
    pipe.write_all(text.as_bytes()).expect("openssl reads");
    drop(pipe);
    child.wait_with_output().expect("openssl ends").stdout
}

/// `%2F` is a slash.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = tail.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        match (first, code.and_then(|code| u8::from_str_radix(code, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = tail;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

const STANDARD: (&[u8; 2], bool) = (b"+/", true);
const FOR_URLS: (&[u8; 2], bool) = (b"-_", false);

/// Base64 as headers and Docker's files have it.
pub fn base64(bytes: &[u8]) -> String {
    base64_of(bytes, STANDARD)
}

/// The two last signs and whether the end is filled up tell the two kinds of base64 apart.
fn base64_of(bytes: &[u8], (last, is_padded): (&[u8; 2], bool)) -> String {
    let sign = |index: u32| match u8::try_from(index & 63).expect("six bits") {
        index @ 0..26 => char::from(b'A' + index),
        index @ 26..52 => char::from(b'a' + index - 26),
        index @ 52..62 => char::from(b'0' + index - 52),
        index => char::from(last[usize::from(index - 62)]),
    };
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let at = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        let signs = chunk.len() + 1;
        text.extend([18, 12, 6, 0][..signs].iter().map(|shift| sign(bits >> shift)));
        if is_padded {
            text.extend(std::iter::repeat_n('=', 4 - signs));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_as_the_standard_has_it() {
        let all = ["", "f", "fo", "foo", "foob"].map(|text| base64(text.as_bytes()));
        assert_eq!(all, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]);
        assert_eq!(base64_of(&[0xfb, 0xff], FOR_URLS), "-_8");
    }

    #[test]
    fn a_query_is_decoded() {
        assert_eq!(decoded("repository%3Aa%2Fb:pull+x"), "repository:a/b:pull x");
    }
}
