//! The gateway in the worker's loop: requests in order, wake-ups, and its end.

use super::rig::{Rig, plan};
use msb_spec::{Decision, Error, Kind, Network, Plan, Policy, Span};
use msb_wire::{
    FrameKind, FramedSocket, FromGateway, MAX_REQUEST, NetTable, NetUsage, Reply, Request,
    ToGateway, encode,
};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The gateway's end of its link. It does only what tests tell it.
struct FakeGateway(FramedSocket<UnixStream>);

impl FakeGateway {
    fn send(&mut self, message: &FromGateway) {
        let frame = encode(FrameKind::Control, message);
        self.0.socket_mut().write_all(&frame).unwrap();
    }

    /// Requests that have arrived since the last call.
    fn requests(&mut self) -> Vec<ToGateway> {
        let mut requests = Vec::new();
        while let Ok(Some(frame)) = self.0.read_frame(&mut [0; 4096]) {
            requests.push(frame.value().unwrap());
        }
        requests
    }
}

fn networked() -> Plan {
    let network = Network {
        policy: Policy { rules: Vec::new(), default: Decision::Deny },
        dns: Vec::new(),
        dns_timeout: None,
        dns_private: false,
        ports: Vec::new(),
        secrets: Vec::new(),
        bypass: Vec::new(),
        max_connections: 1,
        gateway_memory: msb_spec::GATEWAY_MEMORY,
        egress_rate: None,
        join: None,
        trust_host_cas: false,
    };
    Plan { network: Some(network), ..plan() }
}

fn rig(plan: Plan) -> (Rig, FakeGateway) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let gateway = FakeGateway(FramedSocket::new(ours, MAX_REQUEST));
    (Rig::with_gateway(plan, Some(theirs.into())), gateway)
}

#[test]
fn requests_are_answered_in_their_order() {
    let (mut rig, mut gateway) = rig(networked());
    let table = rig.request(&Request::Network(ToGateway::Table));
    let policy = Policy { rules: Vec::new(), default: Decision::Allow };
    let rules = rig.request(&Request::Network(ToGateway::Policy(policy.clone())));
    rig.settle();
    assert_eq!(gateway.requests(), [ToGateway::Table, ToGateway::Policy(policy)]);
    gateway.send(&FromGateway::Table(NetTable::default()));
    gateway.send(&FromGateway::Refused(Error::new(Kind::Denied, "not these")));
    rig.settle();
    let answer = Reply::Network(FromGateway::Table(NetTable::default()));
    assert_eq!(rig.clients[table].reply(), Some(&answer));
    assert_eq!(rig.clients[rules].refused.as_ref().unwrap().message(), "not these");
}

#[test]
fn the_end_of_the_gateway_fails_its_requests_and_leaves_the_sandbox() {
    let (mut rig, gateway) = rig(networked());
    let waiting = rig.request(&Request::Network(ToGateway::Table));
    rig.settle();
    drop(gateway);
    rig.settle();
    assert_eq!(rig.clients[waiting].refused.as_ref().unwrap().kind(), Kind::State);
    let late = rig.request(&Request::Network(ToGateway::Table));
    rig.settle();
    assert_eq!(rig.clients[late].refused.as_ref().unwrap().kind(), Kind::State);
    assert!(!rig.is_over() && rig.worker.gateway.is_none());
}

#[test]
fn a_malformed_frame_is_the_end_of_the_gateway() {
    let (mut rig, mut gateway) = rig(networked());
    let waiting = rig.request(&Request::Network(ToGateway::Table));
    rig.settle();
    gateway.0.socket_mut().write_all(&[0xff; 16]).unwrap();
    rig.settle();
    assert_eq!(rig.clients[waiting].refused.as_ref().unwrap().kind(), Kind::State);
    assert!(rig.worker.gateway.is_none());
}

#[test]
fn answers_without_a_request_are_ignored() {
    let (mut rig, mut gateway) = rig(networked());
    gateway.send(&FromGateway::Done);
    gateway.send(&FromGateway::WakeRequested);
    rig.settle();
    assert!(!rig.is_over() && rig.worker.gateway.is_some());
}

#[test]
fn usage_waits_for_the_gateway_but_not_for_long() {
    let (mut rig, mut gateway) = rig(networked());
    let answered = rig.request(&Request::Usage);
    rig.settle();
    assert_eq!(gateway.requests(), [ToGateway::Usage]);
    assert_eq!(rig.clients[answered].reply(), None);
    let net = NetUsage { received: 7, sent: 8, flows: 1 };
    gateway.send(&FromGateway::Usage(net));
    rig.settle();
    let Some(Reply::Usage(usage)) = rig.clients[answered].reply() else { panic!("no usage") };
    assert_eq!(usage.net, Some(net));
    let unanswered = rig.request(&Request::Usage);
    rig.advance_by_timers(Duration::from_secs(2));
    assert!(rig.clients[unanswered].reply().is_some());
}

#[test]
fn traffic_keeps_a_sandbox_awake_and_wakes_it() {
    let (mut rig, mut gateway) =
        rig(Plan { idle_pause: Some(Span(Duration::from_secs(10))), ..networked() });
    let mut packets = 0;
    for _ in 0..60 {
        rig.advance_by_timers(Duration::from_secs(1));
        for request in gateway.requests() {
            match request {
                ToGateway::Traffic => {
                    packets += 1;
                    gateway.send(&FromGateway::Traffic { carried: packets, brought: packets });
                }
                ToGateway::Usage => gateway.send(&FromGateway::Usage(NetUsage::default())),
                other => panic!("{other:?}"),
            }
        }
        rig.settle();
    }
    assert!(packets > 10 && rig.guest.pauses.is_empty(), "packets pass");
    let mut armed = None;
    for _ in 0..15 {
        rig.advance_by_timers(Duration::from_secs(1));
        for request in gateway.requests() {
            match request {
                ToGateway::Traffic => {
                    gateway.send(&FromGateway::Traffic { carried: packets, brought: packets });
                }
                ToGateway::Usage => gateway.send(&FromGateway::Usage(NetUsage::default())),
                ToGateway::ArmWakeup { brought } => armed = Some(brought),
                other => panic!("{other:?}"),
            }
        }
        rig.settle();
    }
    assert_eq!((armed, &rig.guest.pauses), (Some(packets), &[true].into()));
    rig.guest.answer_pause(true);
    rig.settle();
    assert!(rig.worker.idle.is_paused());
    gateway.send(&FromGateway::Done);
    gateway.send(&FromGateway::WakeRequested);
    rig.settle();
    assert_eq!(rig.guest.pauses, [false]);
}

#[test]
fn a_sandbox_without_a_network_says_so() {
    let mut rig = Rig::new(plan());
    let client = rig.request(&Request::Network(ToGateway::Table));
    rig.settle();
    let refused = rig.clients[client].refused.as_ref().unwrap();
    assert_eq!(refused.message(), "sandbox `web` has no network");
}
