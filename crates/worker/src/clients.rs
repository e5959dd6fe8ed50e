//! The client connections of a worker, by number, and the time limit of their first frame.

use crate::client::{ClientConn, ClientRole};
use msb_wire::Reply;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Client number of the process that started the sandbox.
pub(crate) const CALLER: u64 = 0;
/// Bounds the descriptors. Further clients wait in the listen queue.
const CLIENT_LIMIT: usize = 512;

/// All client connections, by number.
#[derive(Debug)]
pub(crate) struct Clients {
    conns: BTreeMap<u64, ClientConn>,
    /// Number of the next connection. Relays into a microVM have numbers of the same sequence.
    next_id: u64,
}

impl Default for Clients {
    fn default() -> Self {
        Self { conns: BTreeMap::new(), next_id: CALLER + 1 }
    }
}

impl Clients {
    /// Adds a connection that has sent nothing yet. Returns its number.
    pub(crate) fn accept(&mut self, socket: OwnedFd, now: Instant) -> u64 {
        let id = self.take_id();
        self.conns.insert(id, ClientConn::new(socket, ClientRole::New, now));
        id
    }

    /// A number that no other connection has.
    pub(crate) fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    pub(crate) fn insert(&mut self, id: u64, client: ClientConn) {
        self.conns.insert(id, client);
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<ClientConn> {
        self.conns.remove(&id)
    }

    pub(crate) fn get(&self, id: u64) -> Option<&ClientConn> {
        self.conns.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut ClientConn> {
        self.conns.get_mut(&id)
    }

    pub(crate) fn contains(&self, id: u64) -> bool {
        self.conns.contains_key(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &ClientConn)> {
        self.conns.iter().map(|(id, client)| (*id, client))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut ClientConn> {
        self.conns.values_mut()
    }

    pub(crate) fn into_values(self) -> Vec<ClientConn> {
        self.conns.into_values().collect()
    }

    /// Whether another connection may be accepted.
    pub(crate) fn has_room(&self) -> bool {
        self.conns.len() < CLIENT_LIMIT
    }

    /// Sends the last reply of a connection, if the client is still there.
    pub(crate) fn answer(&mut self, id: u64, reply: &Reply) {
        if let Some(client) = self.conns.get_mut(&id) {
            client.answer(reply);
        }
    }

    pub(crate) fn set_role(&mut self, id: u64, role: ClientRole) {
        if let Some(client) = self.conns.get_mut(&id) {
            client.role = role;
        }
    }

    /// Whether a client holds the sandbox for a copy.
    pub(crate) fn has_holders(&self) -> bool {
        let holds = |client: &ClientConn| client.role == ClientRole::Holder;
        self.conns.values().any(|client| holds(client) && !client.disconnect_handled)
    }

    /// Connections that have closed since the last call.
    pub(crate) fn take_disconnected(&mut self) -> Vec<u64> {
        let closed = self.conns.iter_mut().filter(|(_, c)| c.closed && !c.disconnect_handled);
        let closed = closed.map(|(id, client)| {
            client.disconnect_handled = true;
            *id
        });
        closed.collect()
    }

    /// Drops connections that are answered or closed, once everything is sent.
    pub(crate) fn drop_finished(&mut self) {
        self.conns.retain(|_, client| {
            !(client.is_drained() && (client.role == ClientRole::Leaving || client.closed))
        });
    }

    /// When the next connection without a first frame is closed.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.conns.values().filter_map(ClientConn::hello_deadline).min()
    }

    /// Closes connections that have not sent their first frame in time.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.conns.retain(|_, client| client.hello_deadline().is_none_or(|limit| now < limit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::HELLO_LIMIT;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    fn accept(clients: &mut Clients, now: Instant) -> (u64, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (clients.accept(theirs.into(), now), ours)
    }

    #[test]
    fn a_connection_without_a_first_frame_is_closed_after_its_limit() {
        let (mut clients, start) = (Clients::default(), Instant::now());
        let (silent, mut other_end) = accept(&mut clients, start);
        let (late, _late) = accept(&mut clients, start + Duration::from_secs(1));
        let (served, _served) = accept(&mut clients, start);
        clients.set_role(served, ClientRole::Waiting);
        assert_eq!(clients.next_deadline(), Some(start + HELLO_LIMIT));
        clients.expire(start + HELLO_LIMIT - Duration::from_millis(1));
        assert!(clients.contains(silent));
        clients.expire(start + HELLO_LIMIT);
        let left = [silent, late, served].map(|id| clients.contains(id));
        assert_eq!(left, [false, true, true]);
        assert_eq!(other_end.read(&mut [0; 8]).unwrap(), 0);
    }

    #[test]
    fn a_disconnect_is_reported_once() {
        let (mut clients, now) = (Clients::default(), Instant::now());
        let (one, _one) = accept(&mut clients, now);
        let (other, _other) = accept(&mut clients, now);
        assert_eq!(clients.take_disconnected(), [0u64; 0]);
        clients.get_mut(other).unwrap().closed = true;
        assert_eq!(clients.take_disconnected(), [other]);
        assert_eq!(clients.take_disconnected(), [0u64; 0]);
        clients.drop_finished();
        assert_eq!([one, other].map(|id| clients.contains(id)), [true, false]);
    }

    #[test]
    fn an_answered_connection_is_dropped_once_the_answer_is_sent() {
        let (mut clients, now) = (Clients::default(), Instant::now());
        let (id, mut other_end) = accept(&mut clients, now);
        let client = clients.get_mut(id).unwrap();
        // More than the socket takes at once.
        client.output(msb_wire::FrameKind::Stdout, &vec![0; 4 << 20]);
        clients.answer(id, &Reply::Done);
        clients.drop_finished();
        assert!(clients.contains(id), "the rest is still to be sent");
        let mut received = Vec::new();
        other_end.set_nonblocking(true).unwrap();
        while clients.contains(id) {
            let _ = other_end.read_to_end(&mut received);
            clients.get_mut(id).unwrap().flush();
            clients.drop_finished();
        }
        other_end.set_nonblocking(false).unwrap();
        other_end.read_to_end(&mut received).unwrap();
        let reply = msb_wire::encode(msb_wire::FrameKind::Reply, &Reply::Done);
        assert_eq!(received.len(), msb_wire::HEADER + (4 << 20) + reply.len());
        assert!(received.ends_with(&reply));
    }

    #[test]
    fn a_client_that_is_gone_takes_no_answer() {
        let (mut clients, now) = (Clients::default(), Instant::now());
        let (id, other_end) = accept(&mut clients, now);
        drop(other_end);
        clients.answer(id, &Reply::Done);
        assert_eq!(clients.take_disconnected(), [id]);
        clients.answer(id + 1, &Reply::Done);
        clients.drop_finished();
        assert!(!clients.contains(id));
    }

    #[test]
    fn holders_count_until_their_disconnect_is_handled() {
        let (mut clients, now) = (Clients::default(), Instant::now());
        let (id, mut other_end) = accept(&mut clients, now);
        other_end.write_all(b"x").unwrap();
        clients.set_role(id, ClientRole::Holder);
        assert!(clients.has_holders());
        clients.get_mut(id).unwrap().closed = true;
        clients.take_disconnected();
        assert!(!clients.has_holders());
    }

    #[test]
    fn the_number_of_connections_is_limited() {
        let (mut clients, now) = (Clients::default(), Instant::now());
        let (ours, _theirs) = UnixStream::pair().unwrap();
        while clients.has_room() {
            clients.accept(ours.try_clone().unwrap().into(), now);
        }
        assert_eq!(clients.conns.len(), CLIENT_LIMIT);
    }
}
