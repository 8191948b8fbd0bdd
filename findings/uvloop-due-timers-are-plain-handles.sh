#!/usr/bin/env bash
# uvloop 0.23.0: call_at and call_later return no TimerHandle for a time that is less than half a millisecond ahead.
#
# asyncio's documentation promises a TimerHandle, whose when() gives the time; asyncio's own loop returns one for every
# time, also a past one. uvloop rounds the delay to whole milliseconds, and for 0 of them returns a plain Handle, which
# has no when(). Code that sorts or cancels its timers by when() works in every test with a comfortable delay, and fails
# with AttributeError when a busy process comes late.
#
# Seen: "asyncio TimerHandle TimerHandle, uvloop Handle TimerHandle" (a timer that is due, one a second ahead).
#
# Needs Python 3.11 and a network for pip. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check uvloop==0.23.0
seen=$("$folder/venv/bin/python" - <<'PY'
import asyncio

import uvloop


async def kinds():
    loop = asyncio.get_running_loop()
    return [type(loop.call_at(loop.time() + ahead, int)).__name__ for ahead in (0, 1)]


print("asyncio", *asyncio.run(kinds()), end=", ")
print("uvloop", *uvloop.run(kinds()))
PY
)
echo "$seen"
[ "$seen" = "asyncio TimerHandle TimerHandle, uvloop Handle TimerHandle" ]
