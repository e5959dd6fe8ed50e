//! Limits that this host cannot give: refused before anything is started.
//!
//! Only for flags and files of a user at this host. Programs that use the API ask for what they
//! usually get, and have what there is.

use msb_spec::{Bytes, Cpus, Error, Result};

/// Virtual processors of a microVM may share a real one; more than this on each is a mistake.
const SHARED_BY: u64 = 8;

/// Refuses far more processors, or more memory, than this host has.
pub(crate) fn check(cpus: Option<Cpus>, memory: Option<Bytes>) -> Result<()> {
    let host = HostSize::read();
    host.check_cpus(cpus)?;
    host.check_memory(memory)
}

/// What there is to share out.
struct HostSize {
    /// Processors that this process may use; affinity and cgroups count.
    cpus: u32,
    /// Memory and swap, in bytes: what the kernel promises at most.
    memory: Bytes,
    swap: Bytes,
}

impl HostSize {
    fn read() -> Self {
        let cpus = std::thread::available_parallelism();
        let info = rustix::system::sysinfo();
        let unit = u64::from(info.mem_unit);
        Self {
            cpus: cpus.ok().and_then(|cpus| u32::try_from(cpus.get()).ok()).unwrap_or(u32::MAX),
            memory: Bytes(info.totalram as u64 * unit),
            swap: Bytes(info.totalswap as u64 * unit),
        }
    }

    fn check_cpus(&self, asked: Option<Cpus>) -> Result<()> {
        let Self { cpus, .. } = *self;
        match asked {
            Some(asked) if u64::from(asked.millis) > u64::from(cpus) * SHARED_BY * 1000 => {
                Err(Error::invalid(format!("more processors than this host has: `{asked}`"))
                    .hint(format!("there are {cpus}; `--cpus {cpus}` is all of them")))
            }
            _ => Ok(()),
        }
    }

    fn check_memory(&self, asked: Option<Bytes>) -> Result<()> {
        let Self { memory, swap, .. } = *self;
        match asked {
            Some(asked) if asked.0 > memory.0.saturating_add(swap.0) => {
                let swap = if swap.0 > 0 { format!(" and {swap} of swap") } else { String::new() };
                Err(Error::invalid(format!("more memory than this host has: `{asked}`"))
                    .hint(format!("there are {memory}{swap}; leave `--memory` out for 3/4 of it")))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_has_is_allowed_and_more_is_not() {
        let host = HostSize { cpus: 2, memory: Bytes::mib(1024), swap: Bytes::mib(512) };
        for (cpus, fits) in [("0.5", true), ("16", true), ("16.001", false), ("99", false)] {
            assert_eq!(host.check_cpus(Some(Cpus::parse(cpus).unwrap())).is_ok(), fits, "{cpus}");
        }
        for (memory, fits) in [(4, true), (1536, true), (1537, false)] {
            assert_eq!(host.check_memory(Some(Bytes::mib(memory))).is_ok(), fits, "{memory}");
        }
        let error = host.check_memory(Some(Bytes::parse("100T").unwrap())).unwrap_err();
        assert_eq!(error.message(), "more memory than this host has: `100T`");
        let hint = "there are 1G and 512M of swap; leave `--memory` out for 3/4 of it";
        assert_eq!(error.advice(), Some(hint));
        assert!(host.check_cpus(None).is_ok() && host.check_memory(None).is_ok());
    }
}
