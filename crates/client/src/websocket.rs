//! A WebSocket client with its own thread, for blocking callers.

use crate::Client;
use futures_util::{SinkExt, StreamExt};
use msb_spec::{Error, Kind, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{WebSocketStream, client_async};
use ureq::http::Uri;

/// Messages in each queue; a sender waits if it is full.
const QUEUE_LENGTH: usize = 16;

/// A message to send, or the end.
pub(crate) enum SocketMessage {
    Text(String),
    Bytes(Vec<u8>),
    Close,
}

/// Sending side of a WebSocket.
pub(crate) struct SocketSender {
    pub(crate) messages: mpsc::Sender<SocketMessage>,
    /// Whether the client has detached from the command.
    pub(crate) detached: AtomicBool,
}

type Incoming = mpsc::Receiver<Result<Message>>;

/// Connects to a path of the server, with its API key.
pub(crate) fn open(client: &Client, path: &str) -> Result<(SocketSender, Incoming)> {
    let (sender, to_send) = mpsc::channel(QUEUE_LENGTH);
    let (incoming, messages) = mpsc::channel(QUEUE_LENGTH);
    let (ready, connected) = oneshot::channel();
    let (client, path) = (client.clone(), path.to_owned());
    let host = |error| Error::host("cannot start the connection thread", error);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(host)?;
    std::thread::Builder::new()
        .name("socket".to_owned())
        .spawn(move || {
            runtime.block_on(async move {
                match connect(&client, &path).await {
                    Ok(socket) => {
                        let _ = ready.send(Ok(()));
                        serve(socket, to_send, incoming).await;
                    }
                    Err(error) => drop(ready.send(Err(error))),
                }
            });
        })
        .map_err(host)?;
    connected
        .blocking_recv()
        .unwrap_or_else(|_| Err(Error::new(Kind::Host, "the connection thread has ended")))?;
    Ok((SocketSender { messages: sender, detached: AtomicBool::new(false) }, messages))
}

/// A TCP stream with or without TLS.
trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for T {}

type ClientSocket = WebSocketStream<Box<dyn ByteStream>>;

async fn connect(client: &Client, path: &str) -> Result<ClientSocket> {
    let address = format!("{}{path}", client.base);
    let invalid_url = || Error::invalid(format!("not a URL: `{address}`"));
    let uri: Uri = address.parse().map_err(|_| invalid_url())?;
    let host = uri.host().ok_or_else(invalid_url)?;
    let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let is_tls = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let unreachable = |error: &dyn std::fmt::Display| {
        Error::new(Kind::Host, format!("cannot reach the server at {}", client.base))
            .cause(error)
            .hint("check with `msb server status` on its host that it runs")
    };
    let stream = TcpStream::connect((bare.as_str(), port)).await;
    let stream = stream.map_err(|error| unreachable(&error))?;
    let _ = stream.set_nodelay(true);
    let stream: Box<dyn ByteStream> = match is_tls {
        false => Box::new(stream),
        true => {
            let name = ServerName::try_from(bare).map_err(|_| invalid_url())?;
            let tls = tls_connector(client).connect(name, stream).await;
            Box::new(tls.map_err(|error| unreachable(&error))?)
        }
    };
    let address = address.replacen("http", "ws", 1);
    let mut request = address.into_client_request().map_err(|_| invalid_url())?;
    if let Some(key) = &client.key {
        let value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| invalid_url())?;
        request.headers_mut().insert("authorization", value);
    }
    match client_async(request, stream).await {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::Error::Http(response)) => {
            let status = response.status();
            let (parts, body) = response.into_parts();
            let body = ureq::Body::builder().data(body.unwrap_or_default());
            let mut response =
                ureq::http::Response::builder().status(parts.status).body(body).map_err(
                    |error| Error::host(format!("the server responds with {status}"), error),
                )?;
            Err(client.error_of(&mut response))
        }
        Err(error) => Err(unreachable(&error)),
    }
}

fn tls_connector(client: &Client) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(match &client.pinned {
        Some(only) => vec![only.clone()],
        None => rustls_native_certs::load_native_certs().certs,
    });
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

/// Forwards messages in both directions until one side is done.
async fn serve(
    socket: ClientSocket,
    mut to_send: mpsc::Receiver<SocketMessage>,
    incoming: mpsc::Sender<Result<Message>>,
) {
    let (mut sends, mut receives) = socket.split();
    let sending = async {
        while let Some(message) = to_send.recv().await {
            let frame = match message {
                SocketMessage::Text(text) => Message::text(text),
                SocketMessage::Bytes(bytes) => Message::binary(bytes),
                SocketMessage::Close => break,
            };
            if sends.send(frame).await.is_err() {
                // Messages that have arrived are still delivered.
                std::future::pending::<()>().await;
            }
        }
        let _ = sends.send(Message::Close(None)).await;
    };
    let receiving = async {
        while let Some(message) = receives.next().await {
            let message = message.map_err(|error| {
                Error::new(Kind::Protocol, "the connection to the server failed").cause(error)
            });
            if incoming.send(message).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = sending => {}
        () = receiving => {}
    }
}
