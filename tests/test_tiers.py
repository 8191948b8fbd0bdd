"""The tiers: their recorded durations keep to the limits, shares are complete, a failure runs again once at most."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from millstream_harness.run_tests import MOST, Failure, again, verdict
from millstream_harness.tiers import (
    PROCESS,
    ROOT,
    SOAK,
    TIERS,
    UNIT,
    Durations,
    chosen,
    files_in,
    in_share,
    recorded,
    share,
    tier_names,
    tier_of,
    tiers_in,
)

HARNESS = ROOT / "tests/harness"


@pytest.mark.parametrize("tier", [UNIT, PROCESS, SOAK])
def test_a_tier_keeps_to_its_time(tier: str) -> None:
    """By what its files took when they were last recorded (``make durations``)."""
    took = recorded()[tier]
    longest = sorted(took, key=lambda file: -took[file])[:10]
    assert sum(took.values()) <= TIERS[tier].seconds, {file: took[file] for file in longest}


def test_recorded_files_exist() -> None:
    gone = {file for files in recorded().values() for file in files if not (ROOT / file).exists()}
    assert not gone, "make durations"


def test_shares_have_each_file_once_and_take_equally_long() -> None:
    files = {f"tests/test_{number}.py": float(number * number % 97) for number in range(100)}
    shares = [in_share(files, number, 5) for number in range(1, 6)]
    assert sorted(file for one in shares for file in one) == sorted(files)
    loads = [sum(files[file] for file in one) for one in shares]
    assert max(loads) - min(loads) <= max(files.values())
    assert shares[2] == in_share(dict(reversed(files.items())), 3, 5), "in whichever order they are collected"


def test_all_fifths_of_soak_together_are_everything() -> None:
    files = files_in(ROOT)
    assert len(files) > 300
    parts = [chosen(files, TIERS, soak=(number, 5)) for number in range(1, 6)]
    for part in parts:
        assert {(file, tier) for file, of in files.items() for tier in of if tier != SOAK} <= pairs(part)
    soak = Counter(file for part in parts for file, tier in pairs(part) if tier == SOAK)
    assert soak == Counter(file for file, of in files.items() if SOAK in of)


def test_all_shards_together_are_everything_once() -> None:
    files = files_in(ROOT)
    parts = [chosen(files, TIERS, shard=(number, 3)) for number in range(1, 4)]
    assert Counter(pair for part in parts for pair in pairs(part)) == Counter(pairs(files))


def pairs(files: Mapping[str, Collection[str]]) -> set[tuple[str, str]]:
    return {(file, tier) for file, of in files.items() for tier in of}


def test_the_text_of_a_file_tells_its_tiers() -> None:
    mark = "pytest.mark."
    assert tiers_in("import pytest\n") == {UNIT}
    assert tiers_in(f"\npytestmark = {mark}soak\n") == {SOAK}
    assert tiers_in(f"\npytestmark = [\n    {mark}process,\n    {mark}timeout(3),\n]\n") == {PROCESS}
    assert tiers_in(f"\npytestmark = {mark}timeout(3)\n@{mark}soak\n") == {UNIT, SOAK}


def test_the_text_of_each_file_is_right(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        assert tier_of(item) in tiers_in(item.path.read_text("utf-8")), item.nodeid


@pytest.mark.parametrize("text", ["", "2", "0/5", "6/5", "1/", "/5", "a/b", "-1/5", "1/5/5", "1.0/5"])
def test_a_share_is_k_of_n(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"expected K/N, such as 2/5"):
        share(text)
    assert share("5/5") == (5, 5)


@pytest.mark.parametrize("text", ["", "units", "unit,", "unit, process", "e2e"])
def test_a_tier_has_a_name(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is none of unit, process, soak"):
        tier_names(text)
    assert tier_names("process,unit") == ("process", "unit")


def test_durations_of_a_share_leave_those_of_the_others(tmp_path: Path) -> None:
    here, other, gone = "tests/test_tiers.py", "tests/test_repository.py", "tests/test_gone.py"
    path = tmp_path / "durations.json"
    path.write_text(json.dumps({SOAK: {here: 60.0, other: 7.0, gone: 3.0}, UNIT: {here: 1.0}}))
    durations = Durations()
    durations.add(SOAK, f"{here}::test_a", 1.25)
    durations.add(SOAK, f"{here}::test_b", 2.5)
    durations.write(path)
    assert json.loads(path.read_text()) == {SOAK: {here: 3.8, other: 7.0}, UNIT: {here: 1.0}}


def test_a_file_that_takes_far_longer_than_recorded_is_named() -> None:
    durations = Durations()
    for file, seconds in (
        ("longer", 90.0),
        ("shorter", 20.0),
        ("alike", 70.0),
        ("unknown", 20.0),
        ("short", 10.0),
    ):
        durations.add(SOAK, f"{file}::test", seconds)
    known = {SOAK: {"longer": 25.0, "shorter": 60.0, "alike": 60.0, "short": 0.1}, UNIT: {"alike": 1.0}}
    assert durations.unlike(known) == [
        "soak: longer took 90 s, 25 s are recorded",
        "soak: shorter took 20 s, 60 s are recorded",
        "soak: unknown took 20 s, 2 s are recorded",
    ]


def test_a_failure_that_stands_or_has_a_cause_gets_no_second_run() -> None:
    chance = Failure("tests/test_a.py::test_a", once=False)
    model = Failure("tests/test_b.py::test_b", once=True)
    assert verdict([chance]) == ""
    assert verdict([chance] * MOST) == ""
    assert "at most" in verdict([chance] * (MOST + 1))
    assert "tests/test_b.py::test_b" in verdict([chance, model])
    assert verdict([]) != ""


def test_the_second_run_has_the_failed_tests_alone() -> None:
    failures = [Failure("tests/test_a.py::test_a[1/2]", once=False)]
    assert again(["-m", "not soak", "tests/test_tiers.py::test_recorded_files_exist", "tests"], failures) == [
        *("-m", "not soak"),
        "tests/test_a.py::test_a[1/2]",
    ]


TESTS = {
    "chance": """
        def test_chance(pytestconfig):
            seen = pytestconfig.rootpath / "seen"
            before = seen.exists()
            seen.touch()
            assert before
        """,
    "stands": """
        import pytest

        @pytest.mark.once
        def test_stands(pytestconfig):
            seen = pytestconfig.rootpath / "seen"
            before = seen.exists()
            seen.touch()
            assert before
        """,
    "generated": """
        import hypothesis

        @hypothesis.given(hypothesis.strategies.just(1))
        def test_generated(number):
            assert number == 2
        """,
    "broken": "def test_broken(): assert 1 == 2",
    "passes": "def test_passes(): pass",
    "starts a process": """
        import subprocess

        def test_starts():
            subprocess.run(["true"])
        """,
    "starts one where it may": """
        import subprocess, pytest

        @pytest.mark.process
        def test_starts():
            subprocess.run(["true"], check=True)
        """,
}
FLAKY = "FLAKY tests/test_chance.py::test_chance"


@pytest.mark.process
@pytest.mark.parametrize(
    ("names", "status", "last"),
    [
        (["passes"], 0, ""),
        (["passes", "chance"], 0, FLAKY),
        (["broken", "chance"], 1, FLAKY),
        (["broken"], 1, ""),
        (["stands", "passes"], 1, ""),
        (["generated"], 1, ""),
        (["starts a process"], 1, ""),
        (["starts one where it may"], 0, ""),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, list) else None,
)
def test_what_a_run_says_and_how_it_ends(names: list[str], status: int, last: str, tmp_path: Path) -> None:
    folder, flaky = tmp_path / "tests", tmp_path / "flaky"
    folder.mkdir()
    (folder / "conftest.py").write_text('pytest_plugins = ["millstream_harness.tier_plugin"]')
    settings = ["[pytest]", "testpaths = tests", f"pythonpath = {HARNESS}", "addopts = -p no:cacheprovider"]
    (tmp_path / "pytest.ini").write_text("\n".join(settings))
    for name in names:
        (folder / f"test_{name.replace(' ', '_')}.py").write_text(textwrap.dedent(TESTS[name]))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [
            *(sys.executable, "-P", str(HARNESS / "millstream_harness/run_tests.py")),
            *("--workers", "2" if len(names) > 1 else "0", "--"),
        ],
        cwd=tmp_path,
        env={**environment, "FLAKY": str(flaky)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("FLAKY")] == ([last] if last else [])
    if last:
        assert done.stdout.splitlines()[-1] == last
        assert flaky.read_text() == f"{last}\n"
    if names == ["starts a process"]:
        assert "mark it with pytest.mark.process" in done.stdout


HANGING = """
    import concurrent.futures, signal, time
    import uvloop

    def hang():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        time.sleep(60)

    def test_a_call_that_no_signal_interrupts():
        hang()

    class Executor(concurrent.futures.ThreadPoolExecutor):
        def shutdown(self, **_):
            hang()

    def test_a_loop_that_does_not_close():
        loop = uvloop.new_event_loop()
        loop.set_default_executor(Executor())
        loop.close()

    def test_another():
        pass
    """


@pytest.mark.process
def test_what_no_signal_ends_fails_with_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "conftest.py").write_text(
        "from millstream_harness import watchdog\n"
        "watchdog.GRACE_S, watchdog.CLOSE_S = 0.2, 0.5\n"
        'pytest_plugins = ["millstream_harness.tier_plugin"]'
    )
    settings = ["[pytest]", "testpaths = tests", f"pythonpath = {HARNESS}", "timeout = 1"]
    (tmp_path / "pytest.ini").write_text("\n".join([*settings, "addopts = -p no:cacheprovider -ra"]))
    (folder / "test_hanging.py").write_text(textwrap.dedent(HANGING))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-n", "1"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    file = "tests/test_hanging.py::"
    assert f"HANGS {file}test_a_call_that_no_signal_interrupts: " in done.stderr
    assert f"HANGS {file}test_a_loop_that_does_not_close, in a loop's close: " in done.stderr
    assert "2 failed, 1 passed" in done.stdout
    assert f"crashed while running '{file}test_a_loop_that_does_not_close'" in done.stdout
