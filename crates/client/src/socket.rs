//! A WebSocket that a thread of its own serves, for callers that wait.

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

/// Messages that are under way; whoever makes more waits.
const UNDER_WAY: usize = 16;

/// What is to be sent.
pub(crate) enum Order {
    Text(String),
    Bytes(Vec<u8>),
    HangUp,
}

/// Where it is said.
pub(crate) struct Orders {
    pub(crate) orders: mpsc::Sender<Order>,
    /// Whether the command was let go of.
    pub(crate) detached: AtomicBool,
}

type Heard = mpsc::Receiver<Result<Message>>;

/// Connects.
pub(crate) fn open(client: &Client, path: &str) -> Result<(Orders, Heard)> {
    let (orders, to_send) = mpsc::channel(UNDER_WAY);
    let (heard, messages) = mpsc::channel(UNDER_WAY);
    let (ready, connected) = oneshot::channel();
    let (client, path) = (client.clone(), path.to_owned());
    let host = |error| Error::host("cannot wait for the server", error);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(host)?;
    std::thread::Builder::new()
        .name("socket".to_owned())
        .spawn(move || {
            runtime.block_on(async move {
                match connect(&client, &path).await {
                    Ok(socket) => {
                        let _ = ready.send(Ok(()));
                        serve(socket, to_send, heard).await;
                    }
                    Err(error) => drop(ready.send(Err(error))),
                }
            });
        })
        .map_err(host)?;
    connected.blocking_recv().unwrap_or_else(|_| Err(Error::new(Kind::Host, "it broke")))?;
    Ok((Orders { orders, detached: AtomicBool::new(false) }, messages))
}

/// A stream of either kind.
trait Line: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Line for T {}

type Socket = WebSocketStream<Box<dyn Line>>;

async fn connect(client: &Client, path: &str) -> Result<Socket> {
    let address = format!("{}{path}", client.base);
    let wrong = || Error::invalid(format!("not an address: `{address}`"));
    let uri: Uri = address.parse().map_err(|_| wrong())?;
    let host = uri.host().ok_or_else(wrong)?;
    let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let is_tls = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let unreachable = |error: &dyn std::fmt::Display| {
        Error::new(Kind::Host, format!("cannot reach the server at {}", client.base))
            .cause(error)
            .hint("`msb server status`, where it runs, tells whether it does")
    };
    let stream = TcpStream::connect((bare.as_str(), port)).await;
    let stream = stream.map_err(|error| unreachable(&error))?;
    let _ = stream.set_nodelay(true);
    let line: Box<dyn Line> = match is_tls {
        false => Box::new(stream),
        true => {
            let name = ServerName::try_from(bare).map_err(|_| wrong())?;
            let secured = secure()?.connect(name, stream).await;
            Box::new(secured.map_err(|error| unreachable(&error))?)
        }
    };
    let address = address.replacen("http", "ws", 1);
    let mut request = address.into_client_request().map_err(|_| wrong())?;
    if let Some(key) = &client.key {
        let value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| wrong())?;
        request.headers_mut().insert("authorization", value);
    }
    match client_async(request, line).await {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::Error::Http(response)) => {
            let status = response.status();
            let (parts, body) = response.into_parts();
            let body = ureq::Body::builder().data(body.unwrap_or_default());
            let mut response = ureq::http::Response::builder()
                .status(parts.status)
                .body(body)
                .map_err(|error| Error::host(format!("the server answers {status}"), error))?;
            Err(client.refused(&mut response))
        }
        Err(error) => Err(unreachable(&error)),
    }
}

fn secure() -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Carries both ways until one side is done.
async fn serve(
    socket: Socket,
    mut orders: mpsc::Receiver<Order>,
    heard: mpsc::Sender<Result<Message>>,
) {
    let (mut sends, mut receives) = socket.split();
    let speaking = async {
        while let Some(order) = orders.recv().await {
            let message = match order {
                Order::Text(text) => Message::text(text),
                Order::Bytes(bytes) => Message::binary(bytes),
                Order::HangUp => break,
            };
            if sends.send(message).await.is_err() {
                // What it heard last is still told.
                std::future::pending::<()>().await;
            }
        }
        let _ = sends.send(Message::Close(None)).await;
    };
    let hearing = async {
        while let Some(message) = receives.next().await {
            let message = message.map_err(|error| {
                Error::new(Kind::Protocol, "the connection to the server broke").cause(error)
            });
            if heard.send(message).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = speaking => {}
        () = hearing => {}
    }
}
