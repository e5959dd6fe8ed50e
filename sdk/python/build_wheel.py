"""Builds a wheel offline, with the standard library only and the same bytes every time.

python3 build_wheel.py MSB [--out DIR] [--arch x86_64]
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
# The first moment that a zip file can hold: a wheel has no times of its own.
EPOCH = (1980, 1, 1, 0, 0, 0)


def setting(name: str) -> str:
    """A text of `[project]` in pyproject.toml."""
    found = re.search(rf'^{name} = "([^"]*)"', (ROOT / "pyproject.toml").read_text(), re.M)
    if found is None:
        raise SystemExit(f"error: pyproject.toml has no `{name}`")
    return found[1]


def scripts() -> str:
    """The console scripts, as `entry_points.txt` has them."""
    text = (ROOT / "pyproject.toml").read_text()
    section = text.split("[project.scripts]")[1].split("[")[0]
    lines = re.findall(r'^([\w-]+) = "([^"]+)"', section, re.M)
    return "[console_scripts]\n" + "".join(f"{name} = {target}\n" for name, target in lines)


def build(msb: Path, out: Path, arch: str) -> Path:
    """Writes the wheel and gives its path."""
    name, version = setting("name").replace("-", "_"), setting("version")
    tags = [f"py3-none-manylinux_2_17_{arch}", f"py3-none-musllinux_1_1_{arch}"]
    platform = ".".join(tag.split("-")[2] for tag in tags)
    info = f"{name}-{version}.dist-info"
    files: dict[str, tuple[bytes, int]] = {}
    for path in sorted((ROOT / "microsandbox").glob("*")):
        if path.suffix == ".py" or path.name == "py.typed":
            files[f"microsandbox/{path.name}"] = (path.read_bytes(), 0o644)
    files["microsandbox/_bundled/bin/msb"] = (msb.read_bytes(), 0o755)
    metadata = (
        f"Metadata-Version: 2.1\nName: {setting('name')}\nVersion: {version}\n"
        f"Summary: {setting('description')}\nRequires-Python: {setting('requires-python')}\n"
        "License: Apache-2.0\nDescription-Content-Type: text/markdown\n\n"
    )
    readme = (ROOT / "README.md").read_text()
    files[f"{info}/METADATA"] = ((metadata + readme).encode(), 0o644)
    wheel = "Wheel-Version: 1.0\nGenerator: build_wheel.py\nRoot-Is-Purelib: false\n"
    wheel += "".join(f"Tag: {tag}\n" for tag in tags)
    files[f"{info}/WHEEL"] = (wheel.encode(), 0o644)
    files[f"{info}/entry_points.txt"] = (scripts().encode(), 0o644)
    record = ""
    for path_name, (data, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path_name},sha256={digest},{len(data)}\n"
    record += f"{info}/RECORD,,\n"
    files[f"{info}/RECORD"] = (record.encode(), 0o644)
    out.mkdir(parents=True, exist_ok=True)
    target = out / f"{name}-{version}-py3-none-{platform}.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path_name, (data, mode) in files.items():
            entry = zipfile.ZipInfo(path_name, EPOCH)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data, compresslevel=9)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds the wheel of the Python SDK")
    parser.add_argument("msb", type=Path, help="the static executable that goes into the wheel")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--arch", default="x86_64", choices=["x86_64", "aarch64"])
    options = parser.parse_args()
    print(build(options.msb, options.out, options.arch))


if __name__ == "__main__":
    main()
