"""Every example runs to its end."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest

from tests.support import PACKAGE


class Examples(unittest.TestCase):
    def test_all_examples(self) -> None:
        for path in sorted((PACKAGE / "examples").glob("*.py")):
            with self.subTest(path.name):
                environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
                done = subprocess.run(
                    [sys.executable, path], capture_output=True, text=True, env=environment
                )
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertTrue(done.stdout)


if __name__ == "__main__":
    unittest.main()
