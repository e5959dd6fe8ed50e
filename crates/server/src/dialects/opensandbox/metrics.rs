//! Resource usage of a sandbox, and addresses of its ports.

use super::arguments::{EndpointArgs, TargetArgs};
use super::health::pause;
use super::output::{self, MetricsOutput};
use super::{OpenSandboxState, ToolOutput, argument_error};
use crate::dialect::ToolCall;
pub(super) use msb_spec::clock::now;
use msb_spec::{Protocol, PublishedPort, Result};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

/// The interval over which CPU usage is measured.
const SAMPLE: Duration = Duration::from_millis(100);

impl OpenSandboxState {
    pub(super) fn metrics(&self, call: &ToolCall, arguments: &TargetArgs) -> Result<ToolOutput> {
        let connection = self.connected(call, arguments)?;
        let limits = self.api().sandbox_inspect(&connection.name)?.plan.limits;
        let first = self.api().sandbox_metrics(&connection.name)?;
        pause(SAMPLE, &call.cancel)?;
        let second = self.api().sandbox_metrics(&connection.name)?;
        // The kernel of a microVM knows its CPU time better than the host does.
        let cpu = |metrics: &msb_api::Metrics| metrics.guest.map_or(metrics.cpu_us, |it| it.cpu_us);
        let busy = cpu(&second).saturating_sub(cpu(&first));
        let passed = second.uptime_ms.saturating_sub(first.uptime_ms).max(1) * 1000;
        let count = match limits.cpus {
            Some(cpus) => f64::from(cpus.value.millis) / 1000.0,
            None => std::thread::available_parallelism().map_or(1, usize::from) as f64,
        };
        let total = match (second.guest, second.memory_limit) {
            (Some(guest), _) => guest.memory_total,
            (None, Some(limit)) => limit,
            (None, None) => host_memory(),
        };
        let memory = second.guest.map_or(second.memory, |guest| guest.memory);
        ToolOutput::one(&MetricsOutput {
            cpu_count: count,
            cpu_used_percentage: (busy as f64 / passed as f64 / count * 100.0).clamp(0.0, 100.0),
            memory_total_in_mib: mebibytes(total),
            memory_used_in_mib: mebibytes(memory),
            timestamp: now(),
        })
    }

    pub(super) fn endpoint(&self, call: &ToolCall, arguments: &EndpointArgs) -> Result<ToolOutput> {
        let guest = NonZeroU16::new(arguments.port)
            .ok_or_else(|| argument_error("port", "ports are counted from 1"))?;
        let connection = self.connected(call, arguments)?;
        let there = |port: &PublishedPort| {
            let here = port.address.is_loopback() || port.address.is_unspecified();
            port.guest == guest && port.protocol == Protocol::Tcp && here
        };
        let ports = self.api().network_table(&connection.name)?.ports;
        let port = match ports.into_iter().find(there) {
            Some(port) => port,
            None => {
                // On loopback only; a port for other hosts must be published explicitly.
                let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
                let ask = PublishedPort { address, host: 0, guest, protocol: Protocol::Tcp };
                self.api().port_publish(&connection.name, &ask)?
            }
        };
        let address = match port.address {
            any if any.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            address => address,
        };
        let endpoint = SocketAddr::new(address, port.host).to_string();
        ToolOutput::one(&output::EndpointOutput {
            endpoint,
            headers: BTreeMap::new(),
            origin: None,
        })
    }
}

/// Memory of the host: the limit of a sandbox without one.
fn host_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
