//! Requests of the worker while the sandbox runs: rules, published ports, the flow table, usage.

use crate::event_loop::Gateway;
use crate::policy::rules::FlowProtocol;
use crate::published_ports::PortListener;
use crate::slab::SlabKey;
use crate::tcp::flow_table::{FlowEnd, FlowStage};
use crate::udp::flow_table::UdpPeer;
use msb_spec::{Decision, Direction, Error, Kind, Policy, PublishedPort};
use msb_wire::{FlowKind, FromGateway, NetFlow, NetTable, NetUsage, ToGateway, Verdict};

/// The most flows in one table: more would not fit into a frame.
const MAX_LISTED_FLOWS: usize = 8192;

fn http_rules_too_late() -> Error {
    Error::unsupported("this sandbox was started without HTTP rules").hint(
        "start it with an HTTP rule (`--net-rule allow@NAME:http:GET:/`); those can be changed",
    )
}

impl Gateway {
    /// Carries out one request of the worker and queues the reply.
    pub(crate) fn apply_request(&mut self, request: ToGateway) {
        let answer = match request {
            // The sandbox gets the CA certificate when it starts. Without it TLS cannot be
            // intercepted.
            ToGateway::Policy(policy)
                if !self.has_ca && policy.names_with_http_rules().next().is_some() =>
            {
                FromGateway::Refused(http_rules_too_late())
            }
            ToGateway::Policy(policy) => {
                self.change_rules(policy);
                FromGateway::Done
            }
            ToGateway::Publish(published) => match PortListener::open(&published) {
                Ok(port) => {
                    let opened = FromGateway::Opened(port.published.clone());
                    self.add_published_port(port);
                    opened
                }
                Err(error) => FromGateway::Refused(error),
            },
            ToGateway::Withdraw(published) => self.withdraw_port(&published),
            ToGateway::Traffic => {
                let (packets_total, packets_in) = self.link.packet_counts();
                FromGateway::Traffic { carried: packets_total, brought: packets_in }
            }
            ToGateway::ArmWakeup { brought: packets_in } => {
                self.armed_wakeup = Some(packets_in);
                FromGateway::Done
            }
            ToGateway::Table => FromGateway::Table(self.table()),
            ToGateway::Host { port } => {
                let decision = self.rules.decide_host(port);
                FromGateway::Host { decision: decision.action, rule: decision.rule }
            }
            ToGateway::Usage => FromGateway::Usage(self.usage()),
        };
        self.control.send(&answer);
    }

    /// Replaces the rules and closes the flows that the new ones refuse.
    fn change_rules(&mut self, policy: Policy) {
        if let Some(interceptor) = &self.interceptor {
            interceptor.set_policy(policy.clone());
        }
        self.rules.replace(policy);
        self.dns.clear_cache();
        let tcp = self.tcp.flows.iter().filter(|(_, flow)| {
            let is_dns = matches!(flow.stage, FlowStage::Dns { .. });
            !is_dns && self.is_refused(&flow.verdict, flow.key.remote, &flow.resolved_names)
        });
        let tcp: Vec<_> = tcp.map(|(key, _)| key).collect();
        for key in tcp {
            let flow = self.tcp.flows.get(key);
            let connecting =
                flow.is_some_and(|flow| matches!(flow.stage, FlowStage::Connecting(Some(_))));
            match connecting {
                // The guest retransmits its SYN, which is refused then.
                true => self.close_flow(key, FlowEnd::Reset),
                false => self.tcp.abort(key),
            }
        }
        let udp_flows = self.udp.flows.iter().filter(|(_, flow)| {
            self.is_refused(&flow.verdict, flow.key.remote, &flow.resolved_names)
        });
        let udp_flows: Vec<_> = udp_flows.map(|(key, _)| key).collect();
        for key in udp_flows {
            self.close_udp_flow(key);
        }
    }

    /// Whether the current rules refuse a flow that is open.
    fn is_refused(
        &self,
        verdict: &Verdict,
        remote: std::net::SocketAddr,
        resolved_names: &[msb_spec::DomainName],
    ) -> bool {
        let port = verdict.port.unwrap_or(0);
        let protocol = match verdict.kind {
            FlowKind::Udp => FlowProtocol::Udp(port),
            FlowKind::Icmp => FlowProtocol::Echo,
            _ => FlowProtocol::Tcp(port),
        };
        let decision = match (verdict.direction, verdict.address) {
            (Direction::Ingress, Some(peer)) => self.rules.decide_ingress(protocol, peer),
            _ => self.decide_flow(protocol, remote.ip(), resolved_names),
        };
        decision.action == Decision::Deny
    }

    /// Closes every flow, TCP and UDP.
    pub(crate) fn close_all_flows(&mut self) {
        let tcp: Vec<_> = self.tcp.flows.iter().map(|(key, _)| key).collect();
        for key in tcp {
            self.close_flow(key, FlowEnd::Reset);
        }
        let udp_flows: Vec<_> = self.udp.flows.iter().map(|(key, _)| key).collect();
        for key in udp_flows {
            self.close_udp_flow(key);
        }
    }

    fn withdraw_port(&mut self, published: &PublishedPort) -> FromGateway {
        let entry = self.published.iter().find(|(_, port)| port.published == *published);
        match entry.map(|(key, _)| key) {
            Some(key) => {
                self.published.remove(key);
                self.close_published_udp(key);
                FromGateway::Done
            }
            None => FromGateway::Refused(Error::new(
                Kind::NotFound,
                format!("no such published port: `{published}`"),
            )),
        }
    }

    /// Closes the UDP flows of a port that is no longer published. Accepted TCP connections stay
    /// open, as with any server that stops listening.
    fn close_published_udp(&mut self, port: SlabKey) {
        let flows =
            self.udp.flows.iter().filter(
                |(_, flow)| matches!(flow.peer, UdpPeer::PortListener(own, _) if own == port),
            );
        let keys: Vec<_> = flows.map(|(key, _)| key).collect();
        for key in keys {
            self.close_udp_flow(key);
        }
    }

    fn usage(&self) -> NetUsage {
        let (sent, received) = self.link.byte_counts();
        let flows = self.tcp.flows.iter().count() + self.udp.flows.iter().count();
        NetUsage { received, sent, flows: u32::try_from(flows).unwrap_or(u32::MAX) }
    }

    fn table(&self) -> NetTable {
        let age = |since: u64| self.now.saturating_sub(since) / 1000;
        let tcp = self.tcp.flows.iter().map(|(_, flow)| flow);
        let tcp = tcp.filter(|flow| !matches!(flow.stage, FlowStage::Dns { .. }));
        let tcp = tcp.map(|flow| NetFlow {
            verdict: flow.verdict.clone(),
            age: age(flow.since),
            sent: flow.sent,
            received: flow.received,
        });
        let udp_flows = self.udp.flows.iter().map(|(_, flow)| NetFlow {
            verdict: flow.verdict.clone(),
            age: age(flow.since),
            sent: flow.sent,
            received: flow.received,
        });
        NetTable {
            flows: tcp.chain(udp_flows).take(MAX_LISTED_FLOWS).collect(),
            ports: self.published.iter().map(|(_, port)| port.published.clone()).collect(),
            policy: Some(self.rules.policy().clone()),
        }
    }
}
