"""Resource usage of sandboxes, once and as a stream."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _session

if TYPE_CHECKING:
    from ._generated import Metrics


@dataclass(frozen=True)
class SandboxMetrics:
    """Resource usage of a sandbox at one moment."""

    cpu_percent: float
    vcpu_time_ns: int
    memory_bytes: int
    memory_available_bytes: int | None
    memory_host_resident_bytes: int | None
    memory_limit_bytes: int
    disk_read_bytes: int
    disk_write_bytes: int
    net_rx_bytes: int
    net_tx_bytes: int
    upper_used_bytes: int | None
    upper_free_bytes: int | None
    upper_host_allocated_bytes: int | None
    uptime_ms: int
    timestamp_ms: float


# CPU time of the last sample of each sandbox, with its uptime: a percentage needs two.
_last: dict[str, tuple[int, int]] = {}


def from_wire(metrics: Metrics) -> SandboxMetrics:
    """The metrics as msb reports them. The CPU percentage is that since the last call."""
    name, cpu, uptime = metrics["name"], metrics["cpu_us"], metrics["uptime_ms"]
    before_cpu, before_uptime = _last.get(name, (0, 0))
    if before_uptime >= uptime or before_cpu > cpu:
        before_cpu = before_uptime = 0
    _last[name] = (cpu, uptime)
    elapsed = max(1, uptime - before_uptime)
    limit = metrics.get("memory_limit")
    disk = metrics.get("disk_traffic")
    net = metrics.get("net")
    return SandboxMetrics(
        cpu_percent=(cpu - before_cpu) / 10 / elapsed,
        vcpu_time_ns=cpu * 1000,
        memory_bytes=metrics["memory"],
        memory_available_bytes=None if limit is None else max(0, limit - metrics["memory"]),
        memory_host_resident_bytes=metrics["memory"],
        memory_limit_bytes=limit or 0,
        disk_read_bytes=disk["read"] if disk else 0,
        disk_write_bytes=disk["written"] if disk else 0,
        net_rx_bytes=net["received"] if net else 0,
        net_tx_bytes=net["sent"] if net else 0,
        upper_used_bytes=metrics.get("disk"),
        upper_free_bytes=None,
        upper_host_allocated_bytes=metrics.get("disk"),
        uptime_ms=uptime,
        timestamp_ms=time.time() * 1000,
    )


class MetricsStream:
    """Metrics at an interval. It can be iterated at once, or awaited first."""

    def __init__(
        self, sample: Callable[[], Coroutine[Any, Any, SandboxMetrics]], interval: float
    ) -> None:
        self._sample = sample
        self._interval = interval
        self._is_first = True

    def __await__(self) -> Generator[Any, None, MetricsStream]:
        async def work() -> MetricsStream:
            return self

        return work().__await__()

    def __aiter__(self) -> AsyncIterator[SandboxMetrics]:
        return self

    async def __anext__(self) -> SandboxMetrics:
        if not self._is_first:
            await _session.sleep(self._interval)
        self._is_first = False
        return await self._sample()
