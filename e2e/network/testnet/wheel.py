"""Makes the smallest package that pip installs."""
import base64
import hashlib
import sys
import zipfile

NAME = "tiny_world-1.0-py3-none-any.whl"
FILES = {
    "tiny_world.py": "WORDS = 'hello from the index'\n",
    "tiny_world-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny-world\nVersion: 1.0\n",
    "tiny_world-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: world\nRoot-Is-Purelib: true\n"
    "Tag: py3-none-any\n",
}

record = []
with zipfile.ZipFile(f"{sys.argv[1]}/{NAME}", "w") as wheel:
    for path, text in FILES.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record.append(f"{path},sha256={digest.decode()},{len(text)}\n")
        wheel.writestr(path, text)
    record.append("tiny_world-1.0.dist-info/RECORD,,\n")
    wheel.writestr("tiny_world-1.0.dist-info/RECORD", "".join(record))
with open(f"{sys.argv[1]}/index.html", "w") as index:
    index.write(f'<!DOCTYPE html><html><body><a href="{NAME}">{NAME}</a></body></html>\n')
