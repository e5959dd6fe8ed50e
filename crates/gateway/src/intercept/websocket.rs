//! Relays a WebSocket: bytes both ways, with values masked on the way to the client.
//!
//! Frames of servers are not masked (RFC 6455) and `*` keeps the length, so only the ends of frames
//! are parsed.

use crate::secrets::message_end::MessageEnd;
use crate::secrets::scrub::{HOLD_TIMEOUT, Scrubber};
use crate::secrets::substitution::HostSecrets;
use crate::secrets::value_search::ValueSearch;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// The limit for both sides to switch protocols. Both have agreed; only the responses are still to
/// be written.
const SWITCH_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of one read.
const READ_SIZE: usize = 16 << 10;

/// Relays between both sides until each has closed.
pub(crate) async fn relay(client: OnUpgrade, server: OnUpgrade, secrets: HostSecrets) {
    let both = async { Ok::<_, hyper::Error>((client.await?, server.await?)) };
    let Ok(Ok((client, server))) = timeout(SWITCH_TIMEOUT, both).await else { return };
    let (mut client_read, client_write) = tokio::io::split(TokioIo::new(client));
    let (server_read, mut server_write) = tokio::io::split(TokioIo::new(server));
    let out = async {
        msb_log::debug_on_failure!(
            tokio::io::copy(&mut client_read, &mut server_write).await,
            "a WebSocket of the guest broke"
        );
        let _ = server_write.shutdown().await;
    };
    tokio::join!(out, relay_to_client(server_read, client_write, secrets.values()));
}

async fn relay_to_client(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    values: &Arc<ValueSearch>,
) {
    let mut scrubber = Scrubber::new(Arc::clone(values), MessageEnd::of_websocket());
    let mut piece = vec![0; READ_SIZE];
    loop {
        let read = from.read(&mut piece);
        let read = match scrubber.is_holding() {
            false => read.await,
            true => match timeout(HOLD_TIMEOUT, read).await {
                Ok(read) => read,
                Err(_) => {
                    let held = scrubber.release();
                    if to.write_all(&held).await.is_err() || to.flush().await.is_err() {
                        return;
                    }
                    continue;
                }
            },
        };
        let Ok(length @ 1..) = read else { break };
        let out = scrubber.push(&piece[..length]);
        if to.write_all(&out).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
    let _ = to.write_all(&scrubber.release()).await;
    let _ = to.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    const VALUE: &[u8] = b"sk-live-0123456789/x";

    #[test]
    fn a_value_that_arrives_byte_by_byte_is_masked() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        // The paused clock advances when all tasks wait.
        builder.enable_all().start_paused(true).build().unwrap().block_on(async {
            let (mut server, server_side) = tokio::io::duplex(64);
            let (client_side, mut client) = tokio::io::duplex(64);
            let values = Arc::new(ValueSearch::of([VALUE]));
            let speak = async move {
                for byte in [b"\x81\x20key ", VALUE, b".\x81\x05never"].concat() {
                    server.write_all(&[byte]).await.unwrap();
                    sleep(HOLD_TIMEOUT - Duration::from_millis(1)).await;
                }
            };
            let mut shown = Vec::new();
            let read = client.read_to_end(&mut shown);
            let (_, _, read) =
                tokio::join!(speak, relay_to_client(server_side, client_side, &values), read);
            read.unwrap();
            let stars = "*".repeat(VALUE.len());
            let wanted = [b"\x81\x20key ", stars.as_bytes(), b".\x81\x05never"].concat();
            assert_eq!(shown, wanted);
        });
    }
}
