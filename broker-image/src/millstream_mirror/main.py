"""The command `millstream-mirror CONFIG.json`.

Exit status: 0 stopped by SIGTERM or SIGINT, 1 could not start, 2 the command line or the configuration is wrong, or
the configured mirror is not allowed. Once it runs, it prints one line on stdout: `ready: mirror=NAME http=HOST:PORT`;
the log goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from millstream_kafka import __version__
from millstream_process import core_dumps, logs
from millstream_process.listening import host_port, why_not
from millstream_process.loop import loop_factory

from .config.config import MirrorConfig, parse
from .config.fields import MirrorConfigError
from .membership.ownership import CREATED, UID, Owner, owner_in_environment
from .source import MirrorRefused
from .worker import MirrorWorker

PROGRAM = "millstream-mirror"


def main(argv: Sequence[str] | None = None) -> int:
    core_dumps.forbid()
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Mirrors topics of Kafka clusters into another."
    )
    parser.add_argument(
        "config", type=Path, metavar="CONFIG.json", help="what to mirror, from where, to where"
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    path: Path = parser.parse_args(argv).config
    try:
        config = parse(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        return _say(f"{path}: cannot be read: {reason}", 2)
    except MirrorConfigError as error:
        return _say(f"{path}: {error}", 2)
    try:
        owner = owner_in_environment(os.environ, config.namespace)
    except ValueError as error:
        return _say(f"{UID}, {CREATED}: {error}", 2)
    logs.configure(config.log_format, mirror=config.name)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_run(config, owner))


async def _run(config: MirrorConfig, owner: Owner | None) -> int:
    worker = MirrorWorker(config, owner)
    try:
        ready = await worker.start()
    except OSError as error:
        where = host_port(config.http_host, config.http_port)
        return _say(f"http: {where}: cannot listen there: {why_not(error)}", 1)
    running = asyncio.create_task(worker.run())
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, running.cancel)
    print(ready, flush=True)
    try:
        await running
    except asyncio.CancelledError:
        return 0
    except BaseExceptionGroup as group:
        refused, rest = group.split(MirrorRefused)
        if refused is None or rest is not None:
            raise
        return _say(str(_first(refused)), 2)
    return 0


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _say(line: str, status: int) -> int:
    print(f"{PROGRAM}: {line}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
