"""Cases of the life of sandboxes, and of volumes, snapshots, networks and workspaces."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import unittest
import urllib.request

from microsandbox import (
    Image,
    ImageNotFoundError,
    LogReadSource,
    LogSource,
    MicrosandboxError,
    Network,
    PullPolicy,
    Sandbox,
    SandboxAlreadyExistsError,
    SandboxNotFoundError,
    SandboxReplacedError,
    SandboxStatus,
    SandboxStillRunningError,
    Secret,
    Snapshot,
    UnsupportedError,
    Volume,
    VolumeNotFoundError,
    all_sandbox_metrics,
    sync,
)
from tests.support import CASES, SCRATCH, SandboxCase, fresh_name, run_program, wait_until

CREATE = """
import asyncio, sys, os, signal
from microsandbox import Sandbox
async def main():
    sandbox = await Sandbox.create(sys.argv[1], image="host", detached={detached})
    {then}
    print("ready", flush=True)
    {wait}
asyncio.run(main())
"""


def status(name: str) -> str:
    try:
        return sync.Sandbox.get(name).status.value
    except SandboxNotFoundError:
        return "gone"


class LifecycleCases(SandboxCase):
    async def test_lifecycle_three_lines(self) -> None:
        sandbox = await self.make(cpus=1, memory=512)
        output = await sandbox.exec("echo", ["Hello!"])
        self.assertEqual(output.stdout_text, "Hello!\n")
        self.assertEqual(await sandbox.stop_and_wait(), (-1, True))
        self.assertEqual(status(await sandbox.name), "stopped")

    async def test_lifecycle_name_and_id(self) -> None:
        sandbox = await self.make()
        name, id = await sandbox.name, await sandbox.id
        handle = await Sandbox.get(name)
        self.assertEqual((handle.name, handle.id), (name, id))

    async def test_lifecycle_duplicate(self) -> None:
        sandbox = await self.make()
        with self.assertRaises(SandboxAlreadyExistsError):
            await Sandbox.create(await sandbox.name, image="host")

    async def test_lifecycle_replace(self) -> None:
        first = await self.make()
        name, id = await first.name, await first.id
        await first.fs.write("/tmp/file", b"")
        second = await self.make(name=name, replace=True)
        self.assertNotEqual(await second.id, id)
        self.assertFalse(await second.fs.exists("/tmp/file"))
        with self.assertRaises(SandboxReplacedError):
            await first.exec("true")

    async def test_lifecycle_replaced_handle(self) -> None:
        first = await self.make()
        handle = await Sandbox.get(await first.name)
        await self.make(name=handle.name, replace=True)
        with self.assertRaises(SandboxReplacedError):
            await handle.stop()

    async def test_lifecycle_get_list(self) -> None:
        mark = fresh_name()
        one = await self.make(labels={"mark": mark})
        two = await self.make(labels={"other": mark})
        handle = await Sandbox.get(await one.name)
        self.assertEqual(handle.status, SandboxStatus.RUNNING)
        names = {each.name for each in (await Sandbox.list()).sandboxes}
        self.assertLessEqual({await one.name, await two.name}, names)
        page = await Sandbox.list_with(labels={"mark": mark})
        self.assertEqual([each.name for each in page.sandboxes], [await one.name])
        first = await Sandbox.list_with(limit=1)
        self.assertEqual(len(first.sandboxes), 1)
        rest = await Sandbox.list_with(cursor=first.next_cursor)
        self.assertNotIn(first.sandboxes[0].name, [each.name for each in rest.sandboxes])

    async def test_lifecycle_get_missing(self) -> None:
        with self.assertRaises(SandboxNotFoundError):
            await Sandbox.get("no-such-sandbox")

    async def test_lifecycle_stop_start(self) -> None:
        sandbox = await self.make()
        await sandbox.fs.write("/root/file", b"kept")
        await sandbox.stop()
        handle = await Sandbox.get(await sandbox.name)
        self.assertEqual(handle.status, SandboxStatus.STOPPED)
        again = await handle.start()
        self.assertEqual(await again.fs.read("/root/file"), b"kept")
        self.assertTrue(await again.owns_lifecycle)

    async def test_lifecycle_connect(self) -> None:
        handle = await Sandbox.get(await self.sandbox.name)
        connected = await handle.connect()
        self.assertTrue((await connected.exec("true")).success)

    async def test_lifecycle_connect_or_create(self) -> None:
        name = fresh_name()
        first = await Sandbox.connect_or_create(name, image="host")
        self.addAsyncCleanup(self._remove, first)
        await first.fs.write("/tmp/file", b"")
        second = await Sandbox.connect_or_create(name, image="host")
        self.assertTrue(await second.fs.exists("/tmp/file"))

    async def test_lifecycle_remove(self) -> None:
        sandbox = await self.make()
        name = await sandbox.name
        with self.assertRaises(SandboxStillRunningError):
            await Sandbox.remove(name)
        await sandbox.stop()
        await Sandbox.remove(name)
        with self.assertRaises(SandboxNotFoundError):
            await Sandbox.get(name)

    async def test_lifecycle_kill(self) -> None:
        sandbox = await self.make()
        await sandbox.exec_stream("sleep", ["60"])
        await sandbox.kill()
        self.assertEqual(status(await sandbox.name), "stopped")

    async def test_lifecycle_wait_until_stopped(self) -> None:
        sandbox = await self.make()
        waiting = asyncio.ensure_future(sandbox.wait_until_stopped())
        await sandbox.stop()
        result = await waiting
        self.assertEqual(result.name, await sandbox.name)
        self.assertEqual(result.status, SandboxStatus.STOPPED)

    async def test_lifecycle_restart(self) -> None:
        sandbox = await self.make()
        again = await sandbox.restart()
        self.assertEqual(await again.id, await sandbox.id)
        self.assertTrue((await again.exec("true")).success)

    async def test_lifecycle_pause_resume(self) -> None:
        sandbox = await self.make()
        try:
            await sandbox.pause()
        except UnsupportedError:
            return
        self.assertEqual(status(await sandbox.name), "paused")
        await sandbox.resume()
        self.assertTrue((await sandbox.exec("true")).success)

    async def test_lifecycle_scope(self) -> None:
        name = fresh_name()
        with self.assertRaises(KeyError):
            async with await Sandbox.create(name, image="host") as sandbox:
                await sandbox.exec("true")
                raise KeyError
        self.assertEqual(status(name), "gone")

    async def test_lifecycle_killed_program(self) -> None:
        name = fresh_name()
        text = CREATE.format(detached=False, then="pass", wait="await asyncio.sleep(600)")
        with run_program(text, name) as program:
            assert program.stdout is not None
            self.assertEqual(program.stdout.readline(), "ready\n")
            program.send_signal(signal.SIGKILL)
        wait_until(lambda: status(name) == "stopped", "the sandbox of a killed program ends")
        await Sandbox.remove(name)

    async def test_lifecycle_detached(self) -> None:
        name = fresh_name()
        text = CREATE.format(detached=True, then="pass", wait="pass")
        with run_program(text, name) as program:
            self.assertEqual(program.wait(), 0)
        sandbox = await (await Sandbox.get(name)).connect()
        self.addAsyncCleanup(self._remove, sandbox)
        self.assertTrue((await sandbox.exec("true")).success)

    async def test_lifecycle_detach(self) -> None:
        name = fresh_name()
        text = CREATE.format(detached=False, then="await sandbox.detach()", wait="pass")
        with run_program(text, name) as program:
            self.assertEqual(program.wait(), 0)
        sandbox = await (await Sandbox.get(name)).connect()
        self.addAsyncCleanup(self._remove, sandbox)
        self.assertTrue((await sandbox.exec("true")).success)

    async def test_lifecycle_forked_child(self) -> None:
        name = fresh_name()
        then = (
            "if os.fork() == 0:\n"
            "        from microsandbox import sync\n"
            "        found = sync.Sandbox.get(sys.argv[1]).connect()\n"
            "        os._exit(found.exec('sh', ['-c', 'exit 9']).exit_code)\n"
            "    assert os.waitstatus_to_exitcode(os.wait()[1]) == 9\n"
            "    assert (await sandbox.exec('true')).success"
        )
        text = CREATE.format(detached=False, then=then, wait="pass")
        with run_program(text, name) as program:
            assert program.stdout is not None
            self.assertEqual(program.stdout.readline(), "ready\n")
            self.assertEqual(program.wait(), 0)
        wait_until(lambda: status(name) == "stopped", "the sandbox ends with its program")
        await Sandbox.remove(name)

    async def test_lifecycle_bad_arguments(self) -> None:
        with self.assertRaisesRegex(ValueError, "image= is required"):
            Sandbox.create("x")
        with self.assertRaisesRegex(TypeError, "unexpected keyword argument 'colour'"):
            Sandbox.create("x", image="host", colour=1)  # type: ignore[call-arg]
        with self.assertRaises(ValueError):
            Sandbox.create("x" * 200, image="host")

    async def test_replace_is_named(self) -> None:
        with self.assertRaisesRegex(TypeError, "Sandbox.restore"):
            Sandbox.create("x", image="host", from_snapshot="s")  # type: ignore[call-arg]

    async def test_lifecycle_max_duration(self) -> None:
        sandbox = await self.make(max_duration=1.0)
        result = await sandbox.wait_until_stopped()
        self.assertEqual(result.status, SandboxStatus.STOPPED)

    async def test_modify_labels_now(self) -> None:
        sandbox = await self.make()
        mark = fresh_name()
        plan = await sandbox.modify(labels={"mark": mark})
        self.assertTrue(plan["applied"])
        page = await Sandbox.list_with(labels={"mark": mark})
        self.assertEqual([each.name for each in page.sandboxes], [await sandbox.name])

    async def test_modify_dry_run(self) -> None:
        sandbox = await self.make(memory=256)
        plan = await sandbox.modify(memory=300, dry_run=True)
        self.assertFalse(plan["applied"])
        self.assertEqual(len(plan["changes"]), 1)
        self.assertEqual((await sandbox.metrics()).memory_limit_bytes, 256 << 20)

    async def test_ping_touch(self) -> None:
        ping = await self.sandbox.ping()
        self.assertEqual(ping.name, await self.sandbox.name)
        self.assertGreater(ping.latency_ms, 0)
        self.assertGreater((await self.sandbox.touch()).activity_seq, 0)

    async def test_metrics(self) -> None:
        metrics = await self.sandbox.metrics()
        self.assertGreater(metrics.memory_bytes, 0)
        self.assertEqual(metrics.memory_limit_bytes, 512 << 20)
        seen = []
        async for each in await self.sandbox.metrics_stream(0.05):
            seen.append(each.uptime_ms)
            if len(seen) == 2:
                break
        self.assertGreater(seen[1], seen[0])

    async def test_all_metrics(self) -> None:
        other = await self.make()
        found = await all_sandbox_metrics()
        self.assertLessEqual({await other.name, await self.sandbox.name}, found.keys())

    async def test_logs(self) -> None:
        sandbox = await self.make()
        await sandbox.exec("sh", ["-c", "echo a; sleep 0.05; echo b >&2"])
        entries = await sandbox.logs()
        self.assertEqual([each.text() for each in entries], ["a\n", "b\n"])
        self.assertEqual(entries[1].source, LogSource.STDERR)
        self.assertEqual([each.text() for each in await sandbox.logs(tail=1)], ["b\n"])
        only = await sandbox.logs(sources=[LogReadSource.STDOUT])
        self.assertEqual([each.text() for each in only], ["a\n"])
        after = await sandbox.log_stream(from_cursor=entries[0].cursor)
        self.assertEqual([each.text() async for each in after], ["b\n"])

    async def test_log_stream_follow(self) -> None:
        sandbox = await self.make()
        stream = await sandbox.log_stream(follow=True)
        await sandbox.exec("echo", ["later"])
        async for entry in stream:
            self.assertEqual(entry.text(), "later\n")
            break


class JobCases(SandboxCase):
    async def test_job_detached(self) -> None:
        job = await self.sandbox.exec_detached("sh", ["-c", "echo j; exit 6"])
        self.assertEqual((await job.wait()).code, 6)
        info = await job.inspect()
        self.assertEqual((info.state, info.exit_code), ("exited", 6))
        self.assertEqual([each.data for each in await job.logs()], [b"j\n"])

    async def test_job_list_kill(self) -> None:
        job = await self.sandbox.exec_detached("sleep", ["60"])
        self.assertIn(job.id, [each.id for each in (await self.sandbox.list_jobs()).items])
        await (await self.sandbox.get_job(job.id)).kill()
        self.assertEqual((await job.wait()).code, 137)

    async def test_job_attach(self) -> None:
        job = await self.sandbox.exec_detached("cat")
        attached = await job.attach()
        await attached.write_stdin(b"hello")
        event = await attached.recv()
        assert event is not None
        self.assertEqual(event.value.data, b"hello")  # type: ignore[union-attr]
        await attached.detach()
        self.assertEqual((await job.inspect()).state, "running")
        await job.eof()
        self.assertEqual((await job.wait()).code, 0)


class StorageCases(SandboxCase):
    async def test_volume_shared(self) -> None:
        name = fresh_name()
        await Volume.create(name)
        one = await self.make(volumes={"/data": Volume.named(name)})
        two = await self.make(volumes={"/data": Volume.named(name, readonly=True)})
        await one.fs.write("/data/x", b"shared")
        self.assertEqual(await two.fs.read("/data/x"), b"shared")
        self.assertFalse((await two.exec("touch", ["/data/y"])).success)

    async def test_volume_crud(self) -> None:
        name = fresh_name()
        await Volume.create(name, labels={"team": "a"})
        handle = await Volume.get(name)
        self.assertEqual((handle.name, handle.labels), (name, {"team": "a"}))
        self.assertIn(name, [each.name for each in await Volume.list()])
        await handle.fs.write("/x", b"data")
        self.assertEqual(await handle.fs.read_text("/x"), "data")
        await handle.remove()
        with self.assertRaises(VolumeNotFoundError):
            await Volume.get(name)

    async def test_volume_bind(self) -> None:
        host = SCRATCH / fresh_name()
        host.mkdir(mode=0o777)
        sandbox = await self.make(volumes={"/mnt/x": Volume.bind(str(host))})
        output = await sandbox.shell("echo inside > /mnt/x/file")
        self.assertTrue(output.success, output.stderr_bytes)
        self.assertEqual((host / "file").read_text(), "inside\n")

    async def test_volume_tmpfs(self) -> None:
        sandbox = await self.make(volumes={"/scratch": Volume.tmpfs(size_mib=1)})
        small = await sandbox.shell("head -c 100000 /dev/zero > /scratch/a")
        large = await sandbox.shell("head -c 2000000 /dev/zero > /scratch/b")
        self.assertEqual((small.success, large.success), (True, False))

    async def snapshot_of_stopped(self) -> Snapshot:
        sandbox = await self.make()
        await sandbox.fs.write("/root/file", b"saved")
        await sandbox.stop()
        return await Snapshot.create(fresh_name(), from_sandbox=await sandbox.name)

    async def restored(self, snapshot: object) -> bytes:
        sandbox = await Sandbox.restore(snapshot, name=fresh_name())  # type: ignore[arg-type]
        self.addAsyncCleanup(self._remove, sandbox)
        return await sandbox.fs.read("/root/file")

    async def test_snapshot_restore(self) -> None:
        snapshot = await self.snapshot_of_stopped()
        self.assertEqual(await self.restored(snapshot), b"saved")
        self.assertIn(snapshot.id, [each.id for each in await Snapshot.list()])

    async def test_snapshot_save_load(self) -> None:
        snapshot = await self.snapshot_of_stopped()
        archive = SCRATCH / fresh_name()
        await snapshot.save_to(archive)
        await (await Snapshot.get(snapshot.id)).remove(force=True)
        loaded = await Snapshot.load(archive)
        self.assertEqual(await self.restored(loaded), b"saved")

    async def test_snapshot_missing(self) -> None:
        with self.assertRaises(MicrosandboxError):
            await Snapshot.get("no-such-snapshot")
        with self.assertRaises(MicrosandboxError):
            await Snapshot.remove("no-such-snapshot")

    async def test_image_list_missing(self) -> None:
        self.assertIsInstance(await Image.list(), list)
        with self.assertRaises(ImageNotFoundError):
            await Image.inspect("no-such-image")

    async def test_image_missing_never(self) -> None:
        with self.assertRaises(ImageNotFoundError):
            await self.make(image="no-such-image", pull_policy=PullPolicy.NEVER)

    async def test_secret_placeholder(self) -> None:
        value = "s3cret-value-of-the-test"
        secret = Secret.env("API_KEY", value=value, allow=["example.com"])
        sandbox = await self.make(secrets=[secret])
        output = await sandbox.exec("printenv", ["API_KEY"])
        self.assertTrue(output.success)
        self.assertNotIn(value, output.stdout_text)
        for directory, _, files in os.walk(os.environ["MSB_HOME"]):
            for file in files:
                path = os.path.join(directory, file)
                if os.path.isfile(path) and not os.path.islink(path):
                    with open(path, "rb") as opened:
                        self.assertNotIn(value.encode(), opened.read())

    async def test_network_none(self) -> None:
        sandbox = await self.make(network=Network.none())
        script = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
        output = await sandbox.exec("python3", ["-c", script])
        self.assertIn("unreachable", output.stderr_text)

    async def test_network_ports(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        sandbox = await self.make(ports={port: 8000})
        await sandbox.fs.write("/tmp/www/file", b"served") if await sandbox.fs.exists(
            "/tmp/www"
        ) else None
        await sandbox.fs.mkdir("/tmp/www")
        await sandbox.fs.write("/tmp/www/file", b"served")
        await sandbox.exec_stream("python3", ["-m", "http.server", "8000", "-d", "/tmp/www"])

        def served() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/file", timeout=5) as got:
                    return bool(got.read() == b"served")
            except OSError:
                return False

        await asyncio.to_thread(wait_until, served, "the published port answers")

    async def workspace(self) -> tuple[Sandbox, str]:
        host = SCRATCH / fresh_name()
        host.mkdir()
        (host / "old").write_text("old\n")
        sandbox = await self.make(workspace=f"{host}:/work")
        await sandbox.fs.write("/work/new", b"new\n")
        return sandbox, str(host)

    async def test_workspace_diff_apply(self) -> None:
        sandbox, host = await self.workspace()
        changes = await sandbox.workspace.diff(patches=True)
        self.assertEqual([(each.path, each.what) for each in changes], [("new", "added")])
        self.assertFalse(os.path.exists(f"{host}/new"))
        done = await sandbox.workspace.apply()
        self.assertEqual([each.path for each in done.applied], ["new"])
        self.assertTrue(os.path.exists(f"{host}/new"))

    async def test_workspace_discard(self) -> None:
        sandbox, host = await self.workspace()
        await sandbox.stop()
        self.assertEqual(await sandbox.workspace.discard(), 1)
        self.assertEqual(await sandbox.workspace.diff(), [])
        self.assertEqual(os.listdir(host), ["old"])

    async def test_snapshot_with_memory_is_unsupported(self) -> None:
        with self.assertRaises(UnsupportedError):
            Snapshot.create("x", from_sandbox="y", full=True)


class Coverage(unittest.TestCase):
    def test_every_case_has_a_test(self) -> None:
        from tests import test_commands

        classes = (LifecycleCases, JobCases, StorageCases)
        classes += (test_commands.ExecCases, test_commands.FsCases)
        tests = {name for each in classes for name in dir(each)}
        missing = [case["name"] for case in CASES if f"test_{case['name']}" not in tests]
        self.assertEqual(missing, [])


if __name__ == "__main__":
    unittest.main()
