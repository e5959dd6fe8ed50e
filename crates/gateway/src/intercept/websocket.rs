//! What follows a granted request for WebSocket: bytes both ways, values starred on the way in.
//!
//! Frames of servers are not masked and stars keep their length, so only the ends of frames are read.

use super::message_end::MessageEnd;
use super::scrub::{PAUSE, Scrubber};
use super::secrets::Scope;
use super::value_search::ValueSearch;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Both sides have said that they switch; it takes no longer than to write that.
const SWITCH_LIMIT: Duration = Duration::from_secs(30);
/// One reading.
const PIECE: usize = 16 << 10;

/// Joins both sides until one has nothing more to say.
pub(crate) async fn pass(own: OnUpgrade, other: OnUpgrade, scope: Scope) {
    let both = async { Ok::<_, hyper::Error>((own.await?, other.await?)) };
    let Ok(Ok((own, other))) = timeout(SWITCH_LIMIT, both).await else { return };
    let (mut own_read, own_write) = tokio::io::split(TokioIo::new(own));
    let (other_read, mut other_write) = tokio::io::split(TokioIo::new(other));
    let out = async {
        let _ = tokio::io::copy(&mut own_read, &mut other_write).await;
        let _ = other_write.shutdown().await;
    };
    tokio::join!(out, inwards(other_read, own_write, scope.values()));
}

async fn inwards(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    values: &Arc<ValueSearch>,
) {
    let mut scrubber = Scrubber::new(Arc::clone(values), MessageEnd::of_websocket());
    let mut piece = vec![0; PIECE];
    loop {
        let read = from.read(&mut piece);
        let read = match scrubber.is_holding() {
            false => read.await,
            true => match timeout(PAUSE, read).await {
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
    fn a_value_that_comes_byte_by_byte_is_starred_whole() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        // Time goes on by itself when everything waits.
        builder.enable_all().start_paused(true).build().unwrap().block_on(async {
            let (mut server, other) = tokio::io::duplex(64);
            let (own, mut client) = tokio::io::duplex(64);
            let values = Arc::new(ValueSearch::of([VALUE]));
            let speak = async move {
                for byte in [b"\x81\x20key ", VALUE, b".\x81\x05never"].concat() {
                    server.write_all(&[byte]).await.unwrap();
                    sleep(PAUSE - Duration::from_millis(1)).await;
                }
            };
            let mut shown = Vec::new();
            let read = client.read_to_end(&mut shown);
            let (_, _, read) = tokio::join!(speak, inwards(other, own, &values), read);
            read.unwrap();
            let stars = "*".repeat(VALUE.len());
            let wanted = [b"\x81\x20key ", stars.as_bytes(), b".\x81\x05never"].concat();
            assert_eq!(shown, wanted);
        });
    }
}
