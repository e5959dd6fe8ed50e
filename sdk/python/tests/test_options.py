"""No option is ignored: msb applies it, or the call raises UnsupportedError."""

from __future__ import annotations

import os
import signal
import unittest
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

from microsandbox import (
    CpuPlacement,
    DeploymentProfile,
    GuestFlush,
    LogLevel,
    MicrosandboxError,
    NamedVolumeMode,
    Sandbox,
    Snapshot,
    UnsupportedError,
    Volume,
    _options,
    _session,
    sync,
)
from microsandbox._sandbox import PullSession
from microsandbox._snapshots import SnapshotHandle
from microsandbox.jobs import Job
from tests.support import SCRATCH, SandboxCase, fresh_name


def spec(**options: Any) -> dict[str, Any]:
    return _options.create_request("x", {"image": "host", **options}).spec


class UnsupportedOptions(unittest.TestCase):
    def assert_unsupported(self, operation: str, call: Callable[[], object]) -> None:
        with self.subTest(operation), self.assertRaises(UnsupportedError) as caught:
            call()
        self.assertEqual(caught.exception.operation, operation)
        self.assertTrue(caught.exception.hint)

    def test_settings_that_msb_has_not(self) -> None:
        given: list[tuple[str, Any]] = [
            *(("log_level", each) for each in LogLevel),
            *(("cpu_placement", each) for each in CpuPlacement if each.value != "inherit"),
            ("deployment_profile", DeploymentProfile.MULTI_TENANT),
            ("placement_profile", "compact"),
            ("thp", "always"),
            ("thp", False),
        ]
        for key, value in given:
            options: Any = {key: value}
            self.assert_unsupported(key, partial(spec, **options))
        options = {"log_level": LogLevel.DEBUG}
        self.assert_unsupported("log_level", lambda: _options.restore_changes(options))

    def test_members_that_ask_for_the_default(self) -> None:
        plain = spec()
        self.assertEqual(spec(cpu_placement=CpuPlacement.INHERIT), plain)
        self.assertEqual(spec(deployment_profile=DeploymentProfile.SINGLE_TENANT), plain)
        for key in _options._HINTS:
            self.assertEqual(spec(**{key: None}), plain)
            with self.assertRaises((TypeError, UnsupportedError)):
                spec(**{key: "text"})

    def test_largest_sizes(self) -> None:
        self.assertEqual(spec(cpus=2, max_cpus=2), spec(cpus=2))
        self.assertEqual(spec(memory=512, max_memory=512), spec(memory=512))
        self.assert_unsupported("max_cpus", lambda: spec(cpus=1, max_cpus=2))
        self.assert_unsupported("max_cpus", lambda: spec(max_cpus=2))
        self.assert_unsupported("max_memory", lambda: spec(memory=256, max_memory=512))
        self.assert_unsupported("max_memory", lambda: spec(max_memory=512))
        with self.assertRaisesRegex(ValueError, "max_cpus must not be less than cpus"):
            spec(cpus=2, max_cpus=1)

    def test_snapshot_options(self) -> None:
        def archive(**options: Any) -> object:
            return Snapshot.create_archive("x", "/x", from_sandbox="y", **options)

        name = "Snapshot.create_archive"
        self.assert_unsupported(f"{name}(group=…)", lambda: archive(group="g"))
        self.assert_unsupported(f"{name}(labels=…)", lambda: archive(labels={"a": "b"}))
        self.assert_unsupported(f"{name}(plain_tar=True)", lambda: archive(plain_tar=True))
        skip = GuestFlush.SKIP
        operation = "guest_flush=GuestFlush.SKIP"
        self.assert_unsupported(operation, lambda: archive(guest_flush=skip))
        handle = SnapshotHandle({"id": "x"})  # type: ignore[typeddict-item]
        for option in ("with_parents", "plain_tar"):
            operation = f"save({option}=True)"
            options: Any = {option: True}
            self.assert_unsupported(operation, partial(Snapshot.save, "x", "/x", **options))
            self.assert_unsupported(operation, partial(handle.save_to, "/x", **options))

    def test_job_attach_options(self) -> None:
        job = Job("x", "1")
        given: list[tuple[dict[str, Any], str]] = [
            ({"replay_bytes": 0}, "Job.attach(replay_bytes=…)"),
            ({"cursor": "a.1"}, "Job.attach(cursor=…)"),
        ]
        for options, operation in given:
            self.assert_unsupported(operation, partial(job.attach, **options))

    def test_owned_directory_has_no_mount_options(self) -> None:
        for option in ("noexec", "nosuid", "nodev"):
            options: Any = {option: True}
            volumes = {"/x": Volume.owned(**options)}
            self.assert_unsupported("owned mount options", partial(spec, volumes=volumes))
        owned = {"volumes": {"/x": Volume.owned()}}
        operation = "restore(volumes=Volume.owned())"
        self.assert_unsupported(operation, lambda: _options.restore_changes(owned))

    def test_mount_options_are_passed_on(self) -> None:
        made = spec(
            volumes={
                "/a": Volume.bind("/h", noexec=True, nosuid=True, nodev=True),
                "/b": Volume.named("v", readonly=True, noexec=True),
                "/c": Volume.tmpfs(size_mib=4, noexec=True),
                "/d": Volume.tmpfs(readonly=True),
                "/e": Volume.tmpfs(),
            }
        )
        self.assertEqual(made["mounts"], ["/h:/a:noexec", "v:/b:ro,noexec"])
        self.assertEqual(made["tmpfs"], ["/c:4M,noexec", "/d:ro", "/e"])


@contextmanager
def unresponsive_msb() -> Iterator[None]:
    """The msb of this process answers nothing meanwhile."""
    pid = _session.current()._child.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class AppliedOptions(SandboxCase):
    async def test_connect_timeout(self) -> None:
        handle = await Sandbox.get(await self.sandbox.name)
        with unresponsive_msb(), self.assertRaisesRegex(TimeoutError, "did not answer within"):
            await handle.connect(timeout=0.05)
        connected = await handle.connect(timeout=60)
        self.assertTrue((await connected.exec("true")).success)

    def test_connect_timeout_blocking(self) -> None:
        handle = sync.Sandbox.get(self.shared.name)
        with unresponsive_msb(), self.assertRaisesRegex(TimeoutError, "did not answer within"):
            handle.connect(timeout=0.05)
        self.assertTrue(handle.connect(timeout=60).exec("true").success)

    async def test_noexec(self) -> None:
        host = SCRATCH / fresh_name()
        host.mkdir(mode=0o755)
        program = host / "program"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        sandbox = await self.make(
            volumes={
                "/mnt/no": Volume.bind(str(host), noexec=True, nosuid=True, nodev=True),
                "/mnt/yes": Volume.bind(str(host)),
                "/scratch": Volume.tmpfs(size_mib=1, noexec=True),
            }
        )
        self.assertTrue((await sandbox.shell("/mnt/yes/program")).success)
        self.assertEqual((await sandbox.shell("/mnt/no/program")).exit_code, 126)
        copied = "cp /mnt/yes/program /scratch/program && /scratch/program"
        self.assertEqual((await sandbox.shell(copied)).exit_code, 126)
        mounts = (await sandbox.exec("cat", ["/proc/mounts"])).stdout_text.splitlines()
        for path in ("/mnt/no", "/mnt/yes", "/scratch"):
            options = next(each for each in mounts if f" {path} " in each).split()[3].split(",")
            self.assertLessEqual({"nosuid", "nodev"}, set(options))

    async def test_network_failure_is_raised(self) -> None:
        tried: list[Any] = []

        async def fail(session: PullSession, stream: Any) -> AsyncIterator[Any]:
            stream.cancel()
            tried.append(session._request.spec["network"])
            error = MicrosandboxError("this host cannot make a network")
            error.stage = "network"
            raise error
            yield

        name = fresh_name()
        with (
            mock.patch.object(PullSession, "_frames", fail),
            self.assertRaisesRegex(MicrosandboxError, "cannot make a network"),
        ):
            await Sandbox.create(name, image="host")
        self.assertEqual([each["reach"] for each in tried], ["public"])

    async def test_restore_demands_a_new_volume(self) -> None:
        volume = fresh_name()
        await Volume.create(volume)
        sandbox = await self.make()
        await sandbox.stop()
        snapshot = await Snapshot.create(fresh_name(), from_sandbox=await sandbox.name)
        mount = Volume.named(volume, mode=NamedVolumeMode.CREATE)
        with self.assertRaises(MicrosandboxError) as caught:
            await Sandbox.restore(snapshot, name=fresh_name(), volumes={"/x": mount})
        self.assertEqual(caught.exception.kind, "exists")

    async def test_input_before_a_detach_arrives(self) -> None:
        data = os.urandom(300_000).hex().encode()
        job = await self.sandbox.exec_detached("wc", {"args": ["-c"], "stdin": data})
        self.assertEqual((await job.wait()).code, 0)
        self.assertEqual(int((await job.logs())[0].data), len(data))

    async def test_detach_is_answered(self) -> None:
        job = await self.sandbox.exec_detached("cat")
        attached = await job.attach()
        await attached.write_stdin(b"first\n")
        await attached.detach()
        self.assertEqual(attached._stream.result, {"detached": True})
        self.assertIsNone(await attached.recv())
        await attached.detach()
        await job.eof()
        self.assertEqual((await job.wait()).code, 0)
        self.assertEqual([each.data for each in await job.logs()], [b"first\n"])


if __name__ == "__main__":
    unittest.main()
