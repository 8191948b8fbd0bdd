"""Run a long command quietly: `step.py NAME COMMAND...`.

It shows the last line that the command printed. A terminal has one line for that, which changes; elsewhere a new line
is written every STEP_EVERY_S seconds (15). At the end it says how long the command took. If the command fails, its last
lines are shown, and its exit status is returned. Codes for colours and cursors are removed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from types import FrameType

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
URL = re.compile(r"\S+://\S*/")
KEPT_LINES = 40
ON_TERMINAL_S = 0.2


def shown(line: str) -> str:
    """A line of pip or Maven without its level, and of an address only the file; "" for what pip replaces first."""
    if "ninstall" in line:
        return ""
    return URL.sub("", line).removeprefix("[INFO] ").strip()


def watch(name: str, begun: float, lines: deque[str], ended: threading.Event) -> None:
    terminal = sys.stdout.isatty()
    while not ended.wait(ON_TERMINAL_S if terminal else float(os.environ.get("STEP_EVERY_S", "15"))):
        last = next((words for line in reversed(lines) if (words := shown(line))), "")
        words = f"{name}: {time.monotonic() - begun:.0f} s" + (f": {last}" if last else "")
        if terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{words[:width]}", end="", flush=True)
        else:
            print(words[:120], flush=True)
    if terminal:
        print("\r\x1b[K", end="", flush=True)


def main(name: str, *command: str) -> int:
    begun = time.monotonic()
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None

    def end(number: int, frame: FrameType | None) -> None:
        process.terminate()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    ended = threading.Event()
    watcher = threading.Thread(target=watch, args=(name, begun, lines, ended))
    watcher.start()
    for line in process.stdout:
        if words := ESCAPES.sub("", line).rstrip():
            lines.append(words)
    status = process.wait()
    ended.set()
    watcher.join()
    seconds = f"{time.monotonic() - begun:.0f} s"
    if status:
        print(*lines, sep="\n")
        print(f"{name}: failed after {seconds}, with exit status {status}")
    else:
        print(f"{name}: done in {seconds}")
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
