//! An HTTP server that answers as a test decides, and records its requests.
//!
//! For what a real registry refuses to store or send: endless bodies, false lengths, redirects to
//! other hosts.

use crate::raw_image::{MANIFEST, RawImage, digest};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A request that was received.
#[derive(Debug, Clone)]
pub struct HttpRequest {
    /// GET, HEAD and so on.
    pub method: String,
    /// The path with what follows the question mark.
    pub path: String,
    /// Names in lower case.
    pub headers: HashMap<String, String>,
}

/// The server. It takes no more connections when it is dropped.
#[derive(Debug)]
pub struct HttpStub {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<HttpRequest>>>,
    connections: Arc<Mutex<u32>>,
}

impl HttpStub {
    /// Answers with what the function writes. A connection is closed after one answer.
    pub fn start(answer: impl Fn(&HttpRequest, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let seen: Arc<Mutex<Vec<HttpRequest>>> = Arc::default();
        let connections: Arc<Mutex<u32>> = Arc::default();
        let over: Arc<AtomicBool> = Arc::default();
        let stub = Self {
            address,
            over: over.clone(),
            seen: seen.clone(),
            connections: connections.clone(),
        };
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                if over.load(Ordering::Acquire) {
                    return;
                }
                *connections.lock().unwrap_or_else(PoisonError::into_inner) += 1;
                let (answer, seen) = (answer.clone(), seen.clone());
                std::thread::spawn(move || serve(stream, &*answer, &seen));
            }
        });
        stub
    }

    /// Answers 404; a test counts the connections that should not have been made.
    pub fn not_found() -> Self {
        Self::start(|_, stream| reply(stream, "404 Not Found", &[], b""))
    }

    /// A registry that serves this image under every name, valid or not.
    pub fn registry_of(image: &RawImage) -> Self {
        let parts: HashMap<String, Vec<u8>> =
            image.parts().into_iter().map(|part| (digest(part), part.to_vec())).collect();
        let manifest = image.manifest.clone();
        Self::start(move |asked, stream| {
            let wanted = asked.path.rsplit('/').next().unwrap_or_default();
            let is_tag = asked.path.contains("/manifests/") && !wanted.contains(':');
            match parts.get(wanted).or(is_tag.then_some(&manifest)) {
                Some(part) => reply(stream, "200 OK", &[("Content-Type", MANIFEST)], part),
                None => reply(stream, "404 Not Found", &[], b""),
            }
        })
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<HttpRequest> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Connections so far, with a request or without.
    pub fn connections(&self) -> u32 {
        *self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HttpStub {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        // Wakes the thread that waits for the next one.
        let _ = TcpStream::connect(self.address);
    }
}

/// A whole answer with its true length, and the end of the connection.
pub fn reply(stream: &mut TcpStream, status: &str, headers: &[(&str, &str)], body: &[u8]) {
    let length = body.len().to_string();
    let mut headers = headers.to_vec();
    headers.push(("Content-Length", &length));
    reply_raw(stream, status, &headers, body);
}

/// An answer with only the headers that are given.
pub fn reply_raw(stream: &mut TcpStream, status: &str, headers: &[(&str, &str)], body: &[u8]) {
    let mut text = format!("HTTP/1.1 {status}\r\nConnection: close\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    // The client may have disconnected already.
    let _ = stream.write_all(text.as_bytes());
    let _ = stream.write_all(body);
}

fn serve(
    mut stream: TcpStream,
    answer: &(dyn Fn(&HttpRequest, &mut TcpStream) + Send + Sync),
    seen: &Mutex<Vec<HttpRequest>>,
) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
    let Some(asked) = read(&stream) else { return };
    seen.lock().unwrap_or_else(PoisonError::into_inner).push(asked.clone());
    answer(&asked, &mut stream);
    let _ = stream.flush();
    let _ = stream.shutdown(std::net::Shutdown::Write);
}

/// None for what is not HTTP, such as the beginning of TLS.
fn read(stream: &TcpStream) -> Option<HttpRequest> {
    let mut reader = BufReader::new(stream);
    let mut begin = [0; 1];
    stream.peek(&mut begin).ok()?;
    if !begin[0].is_ascii_uppercase() {
        return None;
    }
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 || line.trim().is_empty() {
            return Some(HttpRequest { method, path, headers });
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
    }
}
