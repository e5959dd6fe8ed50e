"""Cases of commands and files, on one real sandbox."""

from __future__ import annotations

import asyncio
import os
import unittest

from microsandbox import (
    ExecEventType,
    ExecFailedError,
    FilesystemError,
    FsEntryKind,
    MicrosandboxError,
    NoDefaultCommandError,
    PathNotFoundError,
    Rlimit,
    RlimitResource,
    SandboxNotRunningError,
    Stdin,
    UnsupportedError,
    errors,
)
from tests.support import CASES, SCRATCH, SandboxCase

BY_CODE = {
    each.code: each
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, MicrosandboxError) and "code" in vars(each)
}


class ExecCases(SandboxCase):
    async def check(self, case: dict) -> None:
        options = dict(case.get("options", {}))
        if "stdin" in options:
            options["stdin"] = options["stdin"].encode()
        if "rlimits" in options:
            options["rlimits"] = [
                Rlimit(RlimitResource(each["resource"]), each["soft"], each["hard"])
                for each in options["rlimits"]
            ]
        program, *args = case["command"]
        expected = case["expect"]
        if "error" in expected:
            with self.assertRaises(BY_CODE[expected["error"]]):
                await self.sandbox.exec(program, args, **options)
            return
        output = await self.sandbox.exec(program, args, **options)
        self.assertEqual(output.stdout_text, expected["stdout"])
        self.assertEqual(output.stderr_text, expected["stderr"])
        self.assertEqual(output.exit_code, expected["exit_code"])
        self.assertEqual(output.success, expected["exit_code"] == 0)

    async def test_exec_binary_output(self) -> None:
        output = await self.sandbox.exec("sh", ["-c", "printf '\\377\\000\\376'"])
        self.assertEqual(output.stdout_bytes, b"\xff\0\xfe")
        with self.assertRaises(UnicodeDecodeError):
            _ = output.stdout_text

    async def test_exec_large_output(self) -> None:
        output = await self.sandbox.exec("head", ["-c", "8000000", "/dev/zero"])
        self.assertEqual(output.stdout_bytes, bytes(8_000_000))

    async def test_exec_large_stdin(self) -> None:
        output = await self.sandbox.exec("wc", ["-c"], stdin=bytes(4_000_000))
        self.assertEqual(output.stdout_text.strip(), "4000000")

    async def test_exec_parallel(self) -> None:
        calls = [self.sandbox.exec("sh", ["-c", f"echo {n}"]) for n in range(64)]
        outputs = await asyncio.gather(*calls)
        self.assertEqual([o.stdout_text for o in outputs], [f"{n}\n" for n in range(64)])

    async def test_exec_stopped_sandbox(self) -> None:
        sandbox = await self.make()
        await sandbox.stop()
        with self.assertRaises(SandboxNotRunningError):
            await sandbox.exec("true")

    async def test_shell_script(self) -> None:
        output = await self.sandbox.shell("x=1; echo $((x+1)) | tr 2 3")
        self.assertEqual(output.stdout_text, "3\n")

    async def test_exec_default(self) -> None:
        sandbox = await self.make(cmd=["echo", "default"])
        self.assertEqual((await sandbox.exec_default()).stdout_text, "default\n")
        handle = await type(sandbox).get(await sandbox.name)
        again = await handle.connect()
        self.assertEqual((await again.exec_default()).stdout_text, "default\n")
        self.assertEqual(handle.labels, {})

    async def test_exec_default_missing(self) -> None:
        with self.assertRaises(NoDefaultCommandError):
            await self.sandbox.exec_default()

    async def test_stream_events_in_order(self) -> None:
        script = "echo a; sleep 0.1; echo b >&2; exit 4"
        handle = await self.sandbox.exec_stream("sh", ["-c", script])
        events = [event async for event in handle]
        kinds = [event.event_type for event in events]
        self.assertEqual(kinds[0], ExecEventType.STARTED)
        self.assertGreater(events[0].pid or 0, 0)
        self.assertEqual(events[1].data, b"a\n")
        self.assertEqual((kinds[2], events[2].data), (ExecEventType.STDERR, b"b\n"))
        self.assertEqual((kinds[-1], events[-1].code), (ExecEventType.EXITED, 4))
        self.assertIsNone(await handle.recv())

    async def test_stream_stdin_pipe(self) -> None:
        handle = await self.sandbox.exec_stream("cat", stdin=Stdin.pipe())
        sink = handle.take_stdin()
        assert sink is not None
        await handle.recv()
        for word in (b"one", b"two"):
            await sink.write(word)
            event = await handle.recv()
            assert event is not None
            self.assertEqual(event.data, word)
        await sink.close()
        self.assertEqual(await handle.wait(), (0, True))

    async def test_stream_stdin_taken_once(self) -> None:
        handle = await self.sandbox.exec_stream("cat", stdin=Stdin.pipe())
        sink = handle.take_stdin()
        assert sink is not None
        self.assertIsNone(handle.take_stdin())
        await sink.close()
        await handle.wait()
        self.assertIsNone((await self.sandbox.exec_stream("true")).take_stdin())

    async def test_stream_wait(self) -> None:
        handle = await self.sandbox.exec_stream("sh", ["-c", "echo x; exit 5"])
        self.assertEqual(await handle.wait(), (5, False))

    async def test_stream_collect(self) -> None:
        handle = await self.sandbox.exec_stream("sh", ["-c", "echo x"])
        self.assertEqual((await handle.collect()).stdout_text, "x\n")

    async def test_stream_signal(self) -> None:
        script = 'trap "exit 7" TERM; echo ready; while :; do sleep 0.05; done'
        handle = await self.sandbox.exec_stream("sh", ["-c", script])
        await handle.recv()
        await handle.recv()
        await handle.signal(15)
        self.assertEqual(await handle.wait(), (7, False))

    async def test_stream_kill(self) -> None:
        handle = await self.sandbox.exec_stream("sleep", ["60"])
        await handle.kill()
        self.assertEqual(await handle.wait(), (137, False))

    async def test_stream_resize(self) -> None:
        handle = await self.sandbox.exec_stream(
            "sh", ["-c", "while read x; do stty size; done"], tty=True, stdin=Stdin.pipe()
        )
        await handle.resize(40, 100)
        sink = handle.take_stdin()
        assert sink is not None
        seen = b""
        # Input may overtake the size: ask until the terminal has it.
        while b"40 100" not in seen:
            await sink.write(b"x\n")
            event = await handle.recv()
            assert event is not None
            seen += event.data or b""
        await handle.kill()

    async def test_stream_missing_program(self) -> None:
        with self.assertRaises(ExecFailedError) as raised:
            await self.sandbox.exec_stream("no-such-program")
        self.assertEqual(raised.exception.errno_name, "ENOENT")

    async def test_stream_cancel(self) -> None:
        task = asyncio.ensure_future(self.sandbox.exec("sleep", ["61.25"]))
        while not await self.runs("61.25"):
            await asyncio.sleep(0.02)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        while await self.runs("61.25"):
            await asyncio.sleep(0.02)
        self.assertTrue((await self.sandbox.exec("true")).success)

    async def runs(self, argument: str) -> bool:
        jobs = (await self.sandbox.list_jobs()).items
        return any(argument in " ".join(job.command) for job in jobs)

    async def test_stream_slow_reader(self) -> None:
        handle = await self.sandbox.exec_stream("head", ["-c", "20000000", "/dev/zero"])
        await handle.recv()
        self.assertEqual((await self.sandbox.exec("echo", ["x"])).stdout_text, "x\n")
        self.assertEqual(len((await handle.collect()).stdout_bytes), 20_000_000)

    async def test_hundred_megabytes_with_flat_memory(self) -> None:
        handle = await self.sandbox.exec_stream("cat", stdin=Stdin.pipe())
        sink = handle.take_stdin()
        assert sink is not None
        piece = os.urandom(1 << 20)

        async def feed() -> None:
            for _ in range(100):
                await sink.write(piece)
            await sink.close()

        before = _resident()
        feeding = asyncio.ensure_future(feed())
        total = 0
        async for event in handle:
            total += len(event.data or b"")
        await feeding
        self.assertEqual(total, 100 << 20)
        self.assertLess(_resident() - before, 32 << 20)


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _add_commands() -> None:
    for case in CASES:
        if "command" in case:

            async def test(self: ExecCases, case: dict = case) -> None:
                await self.check(case)

            setattr(ExecCases, f"test_{case['name']}", test)


_add_commands()


class FsCases(SandboxCase):
    async def test_fs_write_read(self) -> None:
        data = bytes(range(256))
        await self.sandbox.fs.write("/tmp/x", data)
        self.assertEqual(await self.sandbox.fs.read("/tmp/x"), data)
        output = await self.sandbox.exec("wc", ["-c", "/tmp/x"])
        self.assertEqual(output.stdout_text.split()[0], "256")

    async def test_fs_read_text(self) -> None:
        await self.sandbox.fs.write("/tmp/text", "grüße".encode())
        self.assertEqual(await self.sandbox.fs.read_text("/tmp/text"), "grüße")

    async def test_fs_read_missing(self) -> None:
        with self.assertRaises(PathNotFoundError) as raised:
            await self.sandbox.fs.read("/no/such/file")
        self.assertIsInstance(raised.exception, FilesystemError)

    async def test_fs_write_replaces(self) -> None:
        await self.sandbox.fs.write("/tmp/r", b"long contents")
        await self.sandbox.fs.write("/tmp/r", b"short")
        self.assertEqual(await self.sandbox.fs.read("/tmp/r"), b"short")

    async def test_fs_stream(self) -> None:
        piece = os.urandom(300_000)
        async with await self.sandbox.fs.write_stream("/tmp/s") as sink:
            for _ in range(10):
                await sink.write(piece)
        pieces = [each async for each in await self.sandbox.fs.read_stream("/tmp/s")]
        self.assertGreater(len(pieces), 1)
        self.assertEqual(b"".join(pieces), piece * 10)

    async def test_fs_list(self) -> None:
        fs = self.sandbox.fs
        await fs.mkdir("/tmp/d")
        await fs.write("/tmp/d/b", b"12345")
        await fs.mkdir("/tmp/d/a")
        await self.sandbox.exec("ln", ["-s", "b", "/tmp/d/c"])
        found = {entry.path: entry for entry in await fs.list("/tmp/d")}
        self.assertEqual(list(found), ["/tmp/d/a", "/tmp/d/b", "/tmp/d/c"])
        self.assertEqual(found["/tmp/d/a"].kind, FsEntryKind.DIRECTORY)
        self.assertEqual(found["/tmp/d/b"].kind, FsEntryKind.FILE)
        self.assertEqual(found["/tmp/d/b"].size, 5)
        self.assertEqual(found["/tmp/d/c"].kind, FsEntryKind.SYMLINK)

    async def test_fs_mkdir_remove_dir(self) -> None:
        fs = self.sandbox.fs
        await fs.mkdir("/tmp/m/n")
        await fs.write("/tmp/m/n/file", b"")
        self.assertTrue(await fs.exists("/tmp/m/n"))
        await fs.remove_dir("/tmp/m")
        self.assertFalse(await fs.exists("/tmp/m"))

    async def test_fs_remove(self) -> None:
        fs = self.sandbox.fs
        await fs.write("/tmp/gone", b"")
        await fs.remove("/tmp/gone")
        with self.assertRaises(PathNotFoundError):
            await fs.remove("/tmp/gone")

    async def test_fs_copy_rename(self) -> None:
        fs = self.sandbox.fs
        await fs.write("/tmp/1", b"contents")
        await fs.copy("/tmp/1", "/tmp/2")
        await fs.rename("/tmp/2", "/tmp/3")
        self.assertEqual(await fs.read("/tmp/3"), await fs.read("/tmp/1"))
        self.assertFalse(await fs.exists("/tmp/2"))

    async def test_fs_stat(self) -> None:
        fs = self.sandbox.fs
        await fs.write("/tmp/five", b"12345")
        await self.sandbox.exec("chmod", ["640", "/tmp/five"])
        found = await fs.stat("/tmp/five")
        self.assertEqual((found.kind, found.size, found.mode), (FsEntryKind.FILE, 5, 0o640))
        self.assertEqual((await fs.stat("/tmp")).kind, FsEntryKind.DIRECTORY)
        with self.assertRaises(PathNotFoundError):
            await fs.stat("/no/such")

    async def test_fs_exists(self) -> None:
        fs = self.sandbox.fs
        await fs.write("/tmp/here", b"")
        found = [await fs.exists(path) for path in ("/tmp/here", "/tmp", "/tmp/nothing")]
        self.assertEqual(found, [True, True, False])

    async def test_fs_copy_host(self) -> None:
        source, target = SCRATCH / "source", SCRATCH / "target"
        source.write_bytes(b"of the host")
        await self.sandbox.fs.copy_from_host(str(source), "/tmp/from-host")
        await self.sandbox.fs.copy_to_host("/tmp/from-host", str(target))
        self.assertEqual(target.read_bytes(), b"of the host")

    async def test_sftp_is_the_same_files(self) -> None:
        client = await self.sandbox.ssh().open_client()
        sftp = await client.sftp()
        await sftp.write("/tmp/sftp", b"s")
        self.assertEqual(await sftp.read("/tmp/sftp"), b"s")
        self.assertEqual(await sftp.real_path("/tmp/../tmp/sftp"), "/tmp/sftp")
        self.assertEqual((await client.exec("id -u")).stdout_text, "0\n")

    async def test_unsupported_is_typed(self) -> None:
        with self.assertRaises(UnsupportedError) as raised:
            await self.sandbox.fork("copy")
        self.assertEqual(raised.exception.operation, "fork")
        self.assertTrue(raised.exception.hint)


if __name__ == "__main__":
    unittest.main()
