"""The command `millstream-broker [server.properties]… [--override KEY=VALUE]…`.

If several files and overrides set a key, the last one wins. Values may refer to environment variables and to other
files (config/config_providers.py).

Exit status: 0 stopped by SIGTERM or SIGINT, 1 could not start or lost a disk that it needs, 2 the command
line or the configuration is wrong.
Once the broker serves, it prints one line on stdout: `ready: broker.id=1 listeners=… http=… cluster.id=…`; the log goes
to stderr, in the form that `log.format` names.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from millstream_process import core_dumps, logs, supervision
from millstream_process.loop import loop_factory

from . import __version__
from .config.check import check
from .config.config import BrokerConfig, parse_properties
from .config.config_providers import resolve
from .config.config_types import ConfigError
from .config.zookeeper_keys import with_jaas_file

COLLECTOR = 1000, 2, 2300
"""Thresholds of the garbage collector. A pass over all objects takes a millisecond for ten thousand of them, and with
Python's default, 10, a request of 10,000 partitions would cause several. It finds next to nothing: connections and
requests leave no reference cycles behind."""
COLLECTOR_AT_START = 100_000, 10, 10
"""Objects created meanwhile stay."""

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    core_dumps.forbid()
    arguments = _parser().parse_args(argv)
    if arguments.check:
        print(json.dumps(check(json.load(sys.stdin))))
        return 0
    try:
        config = read_config(arguments.properties, arguments.override)
    except ConfigError as error:
        print(f"millstream-broker: {error}", file=sys.stderr)
        return 2
    logs.configure(config.text("log.format"), broker=config.integer("broker.id"))
    for key, reason in config.without_effect():
        log.warning("%s has no effect: %s", key, reason)
    _raise_open_file_limit()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(config))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="millstream-broker", description="A Kafka-compatible broker.")
    parser.add_argument(
        "properties",
        nargs="*",
        type=Path,
        help="configuration, in Kafka's server.properties format; of several files the last one that sets a key wins; "
        "values may be ${env:NAME} or ${file:PATH:KEY}",
    )
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a key, over what the file says",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="start nothing: read configurations from stdin and print what is wrong with them, both as JSON",
    )
    parser.add_argument("--version", action="version", version=f"millstream-broker {__version__}")
    return parser


def read_config(properties: Sequence[Path], overrides: Sequence[str]) -> BrokerConfig:
    """Raises ConfigError."""
    given: dict[str, str] = {}
    for path in properties:
        given.update(_read_properties(path))
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise ConfigError(f"--override {override}: expected KEY=VALUE")
        given[key.strip()] = value
    resolved = resolve(given, os.environ, lambda path: _read_properties(Path(path)))
    return BrokerConfig(with_jaas_file(resolved, os.environ, lambda path: Path(path).read_text("utf-8")))


def _read_properties(path: Path) -> dict[str, str]:
    try:
        return parse_properties(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None


def _raise_open_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(config: BrokerConfig) -> int:
    from .broker import StartError
    from .startup import start

    # While a thread computes (compaction, reading records), the loop waits this long after each system call: 5 ms
    # by default, and a Produce makes four.
    sys.setswitchinterval(0.0005)
    gc.set_threshold(*COLLECTOR_AT_START)
    loop, stop, stop_now = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    stopping = asyncio.create_task(stop.wait())
    loop.set_exception_handler(supervision.unhandled)
    for which in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(which, lambda: (stop_now if stop.is_set() else stop).set())
    try:
        starting = await supervision.ended(start(config), stopped=stopping)
        if starting.cancelled():  # stopped before it was ready, perhaps while waiting for ZooKeeper
            return 0
        broker, ready = starting.result()
    except ConfigError as error:
        print(f"millstream-broker: {error}", file=sys.stderr)
        return 2
    except StartError as error:
        print(f"millstream-broker: {error}", file=sys.stderr)
        return 1
    gc.set_threshold(*COLLECTOR)
    # Objects from start-up stay: the garbage collector need not look at them again.
    gc.collect()
    gc.freeze()
    print(ready, flush=True)
    broker.failure.add_done_callback(lambda _: stop.set())
    await stopping
    log.info("stopping")
    await broker.drain(stop_now)
    await broker.stop()
    if broker.failure.done():
        print(f"millstream-broker: {broker.failure.result()}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
