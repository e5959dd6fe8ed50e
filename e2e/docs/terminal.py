"""Runs a shell command at a terminal and answers `y` whenever it falls silent."""

import os
import pty
import select
import sys

# Seconds without output after which a command is taken to wait for an answer.
SILENCE = 0.5

pid, terminal = pty.fork()
if pid == 0:
    os.execvp("bash", ["bash", "-euo", "pipefail", "-c", sys.argv[1]])
while True:
    readable, _, _ = select.select([terminal], [], [], SILENCE)
    if not readable:
        os.write(terminal, b"y\n")
        continue
    try:
        output = os.read(terminal, 4096)
    except OSError:  # EIO: nothing has the terminal open any more
        break
    if not output:
        break
    sys.stdout.buffer.write(output)
    sys.stdout.flush()
_, status = os.waitpid(pid, 0)
sys.exit(os.waitstatus_to_exitcode(status))
