//! What a sandbox uses, and where its ports are reached.

use super::arguments::{At, Endpoint};
use super::health::pause;
use super::shown::{self, Metrics};
use super::{Said, Surface, wrong};
use crate::dialect::Call;
use msb_spec::{Protocol, Published, Result};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Long enough to see what runs, short enough to wait for.
const SAMPLE: Duration = Duration::from_millis(100);

impl Surface {
    pub(super) fn metrics(&self, call: &Call, arguments: &At) -> Result<Said> {
        let used = self.connected(call, arguments)?;
        let limits = self.api().sandbox_inspect(&used.name)?.plan.limits;
        let first = self.api().sandbox_metrics(&used.name)?;
        pause(SAMPLE, &call.cancel)?;
        let second = self.api().sandbox_metrics(&used.name)?;
        // The kernel inside knows better than the host what its machine does.
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
        Said::one(&Metrics {
            cpu_count: count,
            cpu_used_percentage: (busy as f64 / passed as f64 / count * 100.0).clamp(0.0, 100.0),
            memory_total_in_mib: mebibytes(total),
            memory_used_in_mib: mebibytes(memory),
            timestamp: now(),
        })
    }

    pub(super) fn endpoint(&self, call: &Call, arguments: &Endpoint) -> Result<Said> {
        let guest = NonZeroU16::new(arguments.port)
            .ok_or_else(|| wrong("port", "ports are counted from 1"))?;
        let used = self.connected(call, arguments)?;
        let there = |port: &Published| {
            let here = port.address.is_loopback() || port.address.is_unspecified();
            port.guest == guest && port.protocol == Protocol::Tcp && here
        };
        let ports = self.api().network_table(&used.name)?.ports;
        let port = match ports.into_iter().find(there) {
            Some(port) => port,
            None => {
                // Only for this machine: whoever wants it open to others publishes it so.
                let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
                let ask = Published { address, host: 0, guest, protocol: Protocol::Tcp };
                self.api().port_publish(&used.name, &ask)?
            }
        };
        let address = match port.address {
            any if any.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            address => address,
        };
        let endpoint = SocketAddr::new(address, port.host).to_string();
        Said::one(&shown::Endpoint { endpoint, headers: BTreeMap::new(), origin: None })
    }
}

/// What one without a limit may use.
fn host_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Milliseconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
