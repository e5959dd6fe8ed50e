"""The surface: every name exists, takes its arguments, has its defaults. Starts no sandbox."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import inspect
import json
import subprocess
import sys
import unittest
import zipfile
from pathlib import Path

import microsandbox
from microsandbox import errors, sync
from microsandbox._options import CreateOptions, RestoreOptions
from tests.support import PACKAGE, SCRATCH

SURFACE = json.loads((Path(__file__).parent / "surface.json").read_text())


class Contract(unittest.TestCase):
    def test_errors(self) -> None:
        for name, code in SURFACE["errors"].items():
            with self.subTest(name):
                found = getattr(errors, name)
                self.assertTrue(issubclass(found, errors.MicrosandboxError))
                self.assertEqual(found.code, code)
                self.assertIs(getattr(microsandbox, name), found)
        self.assertTrue(issubclass(errors.StopTimeoutError, TimeoutError))
        self.assertTrue(issubclass(errors.PathNotFoundError, errors.FilesystemError))

    def test_enums(self) -> None:
        for name, members in SURFACE["enums"].items():
            with self.subTest(name):
                found = getattr(microsandbox, name)
                self.assertTrue(issubclass(found, enum.Enum))
                self.assertEqual({each.name: each.value for each in found}, members)

    def test_dataclasses(self) -> None:
        for name, fields in SURFACE["dataclasses"].items():
            with self.subTest(name):
                found = getattr(microsandbox, name)
                self.assertEqual([each.name for each in dataclasses.fields(found)], fields)

    def test_methods(self) -> None:
        for name, methods in SURFACE["classes"].items():
            for method, parameters in methods.items():
                with self.subTest(f"{name}.{method}"):
                    for module in (microsandbox, sync):
                        found = getattr(getattr(module, name), method)
                        taken = list(inspect.signature(found).parameters)
                        taken = [each for each in taken if each not in ("self", "options")]
                        self.assertEqual(taken, parameters)

    def test_options(self) -> None:
        self.assertLessEqual(set(SURFACE["create"]), set(CreateOptions.__annotations__))
        self.assertEqual(set(SURFACE["restore"]), set(RestoreOptions.__annotations__))

    def test_arguments_are_checked_at_the_call(self) -> None:
        create = microsandbox.Sandbox.create
        wrong = [
            ({"image": "host", "pull_policy": "always"}, "expected PullPolicy, got str"),
            ({"image": "host", "volumes": {"/x": {}}}, "expected MountConfig, got dict"),
            ({"image": "host", "ports": [80]}, "expected PortBinding, got int"),
            ({"image": "host", "memory": 1.5}, "must be int"),
        ]
        for options, message in wrong:
            with self.subTest(message), self.assertRaisesRegex(TypeError, message):
                create("x", **options)  # type: ignore[arg-type]
        with self.assertRaisesRegex(RuntimeError, "no running event loop"):
            create("x", image="host")

    def test_exec_arguments(self) -> None:
        sandbox = microsandbox.Sandbox._made(
            {"name": "x", "created": 1, "image": "host", "labels": {}},  # type: ignore[typeddict-item]
            None,
        )
        for args, options, message in [
            ("text", {}, "args must be"),
            ({"colour": 1}, {}, "unknown exec option"),
            (None, {"stdin": "text"}, "stdin must be Stdin"),
            (None, {"rlimits": [1]}, "rlimit must be Rlimit"),
        ]:
            with self.subTest(message), self.assertRaisesRegex(TypeError, message):
                sandbox.exec("true", args, **options)  # type: ignore[arg-type]

        async def consumed() -> None:
            sandbox._is_consumed = True
            with self.assertRaisesRegex(RuntimeError, "sandbox has been consumed"):
                sandbox.exec("true")

        asyncio.run(consumed())

    def test_sync_is_up_to_date(self) -> None:
        done = subprocess.run([sys.executable, PACKAGE / "tools/gen_sync.py", "--check"])
        self.assertEqual(done.returncode, 0)

    def test_wheel_is_reproducible(self) -> None:
        binary = SCRATCH / "binary"
        binary.write_bytes(b"\x7fELF")
        wheels = []
        for name in ("one", "two"):
            command = [sys.executable, PACKAGE / "build_wheel.py", binary, "--out", SCRATCH / name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            wheels.append(Path(done.stdout.strip()))
        self.assertEqual(wheels[0].read_bytes(), wheels[1].read_bytes())
        self.assertIn("manylinux_2_17_x86_64.musllinux_1_1_x86_64", wheels[0].name)
        with zipfile.ZipFile(wheels[0]) as archive:
            info = archive.getinfo("microsandbox/_bundled/bin/msb")
            self.assertEqual(info.external_attr >> 16, 0o100755)


if __name__ == "__main__":
    unittest.main()
