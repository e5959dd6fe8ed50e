"""Finds the executable `msb`, and runs it as the console scripts do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from .errors import IoError, RuntimeNotInstalledError

_chosen: str | None = None
_found: tuple[tuple[str | None, str | None, str | None, str | None], str] | None = None


def bundled() -> str:
    """The path at which a wheel has its executable."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "_bundled", "bin", "msb")


def home() -> str:
    """The state directory of msb."""
    return os.environ.get("MSB_HOME") or os.path.join(os.path.expanduser("~"), ".msb")


def _is_executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def candidates() -> list[tuple[str, str]]:
    """Places of the executable with their origins, in the order in which they are tried."""
    found: list[tuple[str, str]] = []
    if _chosen is not None:
        found.append((_chosen, "configuration"))
    named = os.environ.get("MSB_PATH")
    if named:
        found.append((named, "environment"))
    found.append((bundled(), "sdk_package"))
    on_path = _on_path()
    if on_path:
        found.append((on_path, "installed"))
    found.append((os.path.join(home(), "bin", "msb"), "home"))
    return found


def _on_path() -> str | None:
    # A console script of this package is called `msb` too: only an ELF file is the executable.
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = shutil.which("msb", path=directory) if directory else None
        if path is not None:
            try:
                with open(path, "rb") as file:
                    if file.read(4) == b"\x7fELF":
                        return path
            except OSError:
                continue
    return None


def find() -> tuple[str, str]:
    """The executable and its origin. Raises RuntimeNotInstalledError."""
    for path, origin in candidates():
        if _is_executable(path):
            return os.path.abspath(path), origin
        if origin in ("configuration", "environment"):
            raise RuntimeNotInstalledError(f"no executable `msb` at `{path}`")
    raise RuntimeNotInstalledError(
        "the executable `msb` was not found (set MSB_PATH, or install it on PATH or in ~/.msb/bin)"
    )


def msb_path() -> str:
    """The path of the executable, looked up again only if the environment has changed."""
    global _found
    environ = os.environ
    key = (_chosen, environ.get("MSB_PATH"), environ.get("PATH"), environ.get("MSB_HOME"))
    if _found is None or _found[0] != key:
        _found = (key, find()[0])
    return _found[1]


def set_msb_path(path: str | None) -> None:
    """Names the executable for sessions that start later."""
    global _chosen
    _chosen = path


def run_cli(*arguments: str) -> str:
    """Runs a verb of msb that the session protocol lacks, and gives its output."""
    done = subprocess.run([msb_path(), *arguments], capture_output=True, check=False)
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip()
        raise IoError(text.removeprefix("error: ") or f"msb ended with {done.returncode}")
    return done.stdout.decode(errors="replace")


def _become(*arguments: str) -> None:
    try:
        path = msb_path()
    except RuntimeNotInstalledError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(127) from None
    os.execv(path, ["msb", *arguments])


def main() -> None:
    """The console scripts `msb` and `microsandbox`."""
    _become(*sys.argv[1:])


def opensandbox_mcp() -> None:
    """The console script `opensandbox-mcp`: the MCP server in that dialect."""
    _become("mcp", "--dialect", "opensandbox", *sys.argv[1:])


def sandbox_mcp() -> None:
    """The console script `sandbox-mcp`: the MCP server in that dialect."""
    _become("mcp", "--dialect", "sandbox-mcp", *sys.argv[1:])
