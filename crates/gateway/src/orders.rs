//! What the worker asks for while the sandbox runs.

use crate::gateway::Gateway;
use crate::policy::Flow;
use crate::published::Door;
use crate::streams::{Ending, Stage};
use msb_spec::{Decision, Direction, Error, Kind, Policy, Published};
use msb_wire::{FlowKind, FromGateway, NetFlow, NetTable, NetUsage, ToGateway, Verdict};

/// Flows in a table; more would not fit into a frame.
const MOST_LISTED: usize = 8192;

fn too_late() -> Error {
    Error::unsupported("this sandbox was not started for rules about requests").hint(
        "start one with such a rule (`--net-rule allow@NAME:http:GET:/`); then they can be changed",
    )
}

impl Gateway {
    /// Does what the worker asks, and answers.
    pub(crate) fn obey(&mut self, asked: ToGateway) {
        let answer = match asked {
            // The sandbox trusts us only if it was told so when it started.
            ToGateway::Policy(policy)
                if !self.authority && policy.names_with_http_rules().next().is_some() =>
            {
                FromGateway::Refused(too_late())
            }
            ToGateway::Policy(policy) => {
                self.change_rules(policy);
                FromGateway::Done
            }
            ToGateway::Publish(published) => match Door::open(&published) {
                Ok(door) => {
                    let opened = FromGateway::Opened(door.published.clone());
                    self.add_door(door);
                    opened
                }
                Err(error) => FromGateway::Refused(error),
            },
            ToGateway::Withdraw(published) => self.withdraw(&published),
            ToGateway::Traffic => {
                let (carried, brought) = self.link.traffic();
                FromGateway::Traffic { carried, brought }
            }
            ToGateway::Doze { brought } => {
                self.dozing = Some(brought);
                FromGateway::Done
            }
            ToGateway::Table => FromGateway::Table(self.table()),
            ToGateway::Host { port } => {
                let judged = self.rules.judge_host(port);
                FromGateway::Host { decision: judged.decision, rule: judged.rule }
            }
            ToGateway::Usage => FromGateway::Usage(self.usage()),
        };
        self.control.send(&answer);
    }

    /// Decides by other rules from now on, and ends the flows that they refuse.
    fn change_rules(&mut self, policy: Policy) {
        if let Some(interceptor) = &self.interceptor {
            interceptor.rules(policy.clone());
        }
        self.rules.replace(policy);
        self.questions.forget();
        let streams = self.streams.flows.iter().filter(|(_, stream)| {
            let question = matches!(stream.stage, Stage::Names { .. });
            !question && self.is_refused(&stream.verdict, stream.ends.remote, &stream.tied)
        });
        let streams: Vec<_> = streams.map(|(key, _)| key).collect();
        for key in streams {
            let waits = self.streams.flows.get(key);
            let waits = waits.is_some_and(|flow| matches!(flow.stage, Stage::Connecting(Some(_))));
            match waits {
                // The sandbox asks again, and is refused then.
                true => self.finish(key, Ending::Reset),
                false => self.streams.abort(key),
            }
        }
        let exchanges = self.datagrams.flows.iter().filter(|(_, exchange)| {
            self.is_refused(&exchange.verdict, exchange.line.remote, &exchange.tied)
        });
        let exchanges: Vec<_> = exchanges.map(|(key, _)| key).collect();
        for key in exchanges {
            self.end_exchange(key);
        }
    }

    /// Whether the rules in force refuse a flow that is open.
    fn is_refused(
        &self,
        verdict: &Verdict,
        remote: std::net::SocketAddr,
        tied: &[msb_spec::DomainName],
    ) -> bool {
        let port = verdict.port.unwrap_or(0);
        let flow = match verdict.kind {
            FlowKind::Udp => Flow::Udp(port),
            FlowKind::Icmp => Flow::Echo,
            _ => Flow::Tcp(port),
        };
        let judgement = match (verdict.direction, verdict.address) {
            (Direction::Ingress, Some(peer)) => self.rules.judge_peer(flow, peer),
            _ => self.judge(flow, remote.ip(), tied),
        };
        judgement.decision == Decision::Deny
    }

    /// Ends every flow.
    pub(crate) fn close_flows(&mut self) {
        let streams: Vec<_> = self.streams.flows.iter().map(|(key, _)| key).collect();
        for key in streams {
            self.finish(key, Ending::Reset);
        }
        let exchanges: Vec<_> = self.datagrams.flows.iter().map(|(key, _)| key).collect();
        for key in exchanges {
            self.end_exchange(key);
        }
    }

    fn withdraw(&mut self, published: &Published) -> FromGateway {
        let found = self.doors.iter().find(|(_, door)| door.published == *published);
        match found.map(|(key, _)| key) {
            Some(key) => {
                self.doors.remove(key);
                self.close_door(key);
                FromGateway::Done
            }
            None => FromGateway::Refused(Error::new(
                Kind::NotFound,
                format!("no such published port: `{published}`"),
            )),
        }
    }

    /// Ends the exchanges that came in by a port which is no longer published. Streams have
    /// sockets of their own and go on, as with any server that stops listening.
    fn close_door(&mut self, door: crate::slots::Key) {
        let of_door = self.datagrams.flows.iter().filter(|(_, exchange)| {
            matches!(exchange.way, crate::datagrams::Way::Door(own, _) if own == door)
        });
        let keys: Vec<_> = of_door.map(|(key, _)| key).collect();
        for key in keys {
            self.end_exchange(key);
        }
    }

    fn usage(&self) -> NetUsage {
        let (sent, received) = self.link.carried();
        let flows = self.streams.flows.iter().count() + self.datagrams.flows.iter().count();
        NetUsage { received, sent, flows: u32::try_from(flows).unwrap_or(u32::MAX) }
    }

    fn table(&self) -> NetTable {
        let age = |since: u64| self.now.saturating_sub(since) / 1000;
        let streams = self.streams.flows.iter().map(|(_, stream)| stream);
        let streams = streams.filter(|stream| !matches!(stream.stage, Stage::Names { .. }));
        let streams = streams.map(|stream| NetFlow {
            verdict: stream.verdict.clone(),
            age: age(stream.since),
            sent: stream.sent,
            received: stream.received,
        });
        let exchanges = self.datagrams.flows.iter().map(|(_, exchange)| NetFlow {
            verdict: exchange.verdict.clone(),
            age: age(exchange.since),
            sent: exchange.sent,
            received: exchange.received,
        });
        NetTable {
            flows: streams.chain(exchanges).take(MOST_LISTED).collect(),
            ports: self.doors.iter().map(|(_, door)| door.published.clone()).collect(),
            policy: Some(self.rules.policy().clone()),
        }
    }
}
