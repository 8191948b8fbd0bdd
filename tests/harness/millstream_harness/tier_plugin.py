"""Pytest and the tiers: marks tests, keeps shares of them, guards tier ``unit``, and adds up what took how long."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream_harness.tiers import (
    E2E,
    RECORD,
    SOAK,
    TIERS,
    UNIT,
    Durations,
    in_share,
    recorded,
    runs_once,
    share,
    tier_of,
    weights,
)

STARTS = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec"}
"""Events of Python's audit hooks that start a process."""
SHARES = {"--soak": {SOAK}, "--shard": set(TIERS)}
"""The tiers that an option divides."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--soak", metavar="K/N", help="of the soak tests, only share K of N")
    group.addoption("--shard", metavar="K/N", help="of all chosen tests, only share K of N")
    group.addoption("--failures", type=Path, metavar="FILE", help="write the tests that fail into FILE")
    group.addoption(
        "--record-durations", action="store_true", help=f"write the seconds of each file into {RECORD.name}"
    )


def pytest_configure(config: pytest.Config) -> None:
    for name, tier in TIERS.items():
        config.addinivalue_line("markers", f"{name}: {tier.content}")
    config.addinivalue_line(
        "markers", "once: a comparison or a model: its failure stands, without a second run"
    )
    for option in SHARES:
        if text := config.getoption(option):
            try:
                share(text)
            except ValueError as error:
                raise pytest.UsageError(f"{option}: {error}") from None
    if not hasattr(config, "workerinput"):  # not one of pytest-xdist's workers
        config.pluginmanager.register(Outcomes(config))
    config.pluginmanager.register(Guard())


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark each test with its tier before pytest chooses; of the chosen ones, keep shares, the longest files first."""
    for item in items:
        tier = tier_of(item)
        item.add_marker(tier)
        item.user_properties += [("tier", tier), ("once", runs_once(item))]
    yield
    seconds = recorded()
    for option, tiers in SHARES.items():
        if text := config.getoption(option):
            kept = set[tuple[str, str]]()
            for tier in tiers:
                files = {_file(item) for item in items if tier_of(item) == tier}
                kept |= {
                    (tier, file) for file in in_share(weights(files, seconds.get(tier, {})), *share(text))
                }
            left_out = {
                item for item in items if tier_of(item) in tiers and (tier_of(item), _file(item)) not in kept
            }
            config.hook.pytest_deselected(items=list(left_out))
            items[:] = [item for item in items if item not in left_out]
    if not any(tier_of(item) == E2E for item in items):  # those have an order of their own
        took = weights(
            map(_file, items), {file: s for files in seconds.values() for file, s in files.items()}
        )
        items.sort(key=lambda item: (-took[_file(item)], _file(item)))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


class Guard:
    """Fails a unit test that starts a process."""

    def __init__(self) -> None:
        self._runs_unit_test = False
        sys.addaudithook(self._look)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._runs_unit_test = tier_of(item) == UNIT
        try:
            return (yield)
        finally:
            self._runs_unit_test = False

    def _look(self, event: str, _: object) -> None:
        if self._runs_unit_test and event in STARTS:
            raise AssertionError("a unit test starts a process: mark it with pytest.mark.process")


class Outcomes:
    """Keeps what failed and how long everything took, in the process that has all reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._durations = Durations()
        self._failed: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        known = dict(report.user_properties)
        if report.failed:
            self._failed[report.nodeid] = bool(known.get("once"))
        self._durations.add(str(known.get("tier", UNIT)), report.nodeid, report.duration)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self._durations.table():
            terminalreporter.write_line(line)

    def pytest_sessionfinish(self) -> None:
        if self._config.getoption("--record-durations"):
            self._durations.write(RECORD)
        if path := self._config.getoption("--failures"):
            lines = [json.dumps({"test": test, "once": once}) for test, once in self._failed.items()]
            path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
