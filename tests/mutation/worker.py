"""Runs Mutmut in the current folder with our kinds of changes, then writes ``results.json``.

    python worker.py JOBS SAMPLE SEED [PATTERN ...]

SAMPLE: how many mutants to try, chosen at random by SEED; 0: all. Patterns of mutants' names; none: all.

Mutants that the tests noticed before are not tried again unless their function has changed; the others are, because the
tests may have changed, except those listed as equivalent. The fastest tests of a mutant run first.

The changes: a comparison, an arithmetic or a logical operator becomes its neighbour; a number grows by one; True
becomes False; ``not`` is dropped; ``in`` becomes ``not in``, ``is`` becomes ``is not``, ``break`` becomes ``return``,
``continue`` becomes ``break``; the condition of a conditional expression is forced both ways.

``results.json``: a list of {"module", "function", "status", "old", "new"}; the last two, for mutants that no test
noticed, are the lines of the change.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from mutmut import __main__ as mutmut
from mutmut.core import MutmutCallStack
from mutmut.mutation import file_mutation, mutators
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files

from mutate import equivalents, key_of

CHANGES = {
    mutators.operator_number,
    mutators.operator_name,
    mutators.operator_remove_unary_ops,
    mutators.operator_keywords,
    mutators.operator_swap_op,
    mutators.operator_if_exp,
}
UNNOTICED = ("survived", "no tests")


Choice = Callable[[Iterable[str]], set[str]]
"""Of the names of all mutants, those to try."""


def choice(sample: int, seed: int, patterns: list[str]) -> Choice:
    def chosen(names: Iterable[str]) -> set[str]:
        """Of the names that match a pattern, a sample: the same one each time, while the code is the same."""
        of_patterns = sorted(
            name for name in names if not patterns or any(fnmatch(name, pattern) for pattern in patterns)
        )
        if not 0 < sample < len(of_patterns):
            return set(of_patterns)
        return set(random.Random(seed).sample(of_patterns, sample))

    return chosen


def choose(choice: Choice) -> None:
    """Make Mutmut try these mutants, if no test has noticed them so far and they are not equivalent."""
    collect = mutmut.collect_source_file_mutation_data
    equivalent = equivalents(Path.cwd().name)

    def is_open(data: SourceFileMutationData, name: str, code: int | None) -> bool:
        if code is None:
            return True
        return (
            status_by_exit_code[code] in UNNOTICED
            and key_of(describe(Path(data.path), name, code)) not in equivalent
        )

    def collect_chosen(*, mutant_names: Iterable[str]) -> tuple[list[tuple[Any, str, int | None]], Any]:
        mutants, by_path = collect(mutant_names=())
        names = choice(name for _, name, _ in mutants)
        return [
            (data, name, None if is_open(data, name, code) else code)
            for data, name, code in mutants
            if name in names
        ], by_path

    vars(mutmut)["collect_source_file_mutation_data"] = collect_chosen


def run_fast_tests_first() -> None:
    run = PytestRunner.run_tests

    def run_sorted(self: PytestRunner, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        durations = state().duration_by_test
        return run(
            self, mutant_name=mutant_name, tests=sorted(tests, key=lambda test: durations.get(test, 0.0))
        )

    PytestRunner.run_tests = run_sorted  # type: ignore[method-assign]


def results(choice: Choice) -> list[dict[str, Any]]:
    """Results of these mutants."""
    found = {}
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        found.update({name: (path, code) for name, code in data.exit_code_by_key.items()})
    return [describe(found[name][0], name, found[name][1]) for name in sorted(choice(found))]


def describe(path: Path, name: str, code: int | None) -> dict[str, Any]:
    """A mutant of the module at ``path``, with its outcome, as in ``results.json``."""
    mangled = name.rpartition(".")[2].rpartition("__mutmut_")[0]  # x_FUNCTION or xǁCLASSǁMETHOD
    function = mangled.removeprefix("xǁ" if mangled.startswith("xǁ") else "x_").replace("ǁ", ".")
    one = {
        "module": str(path).removeprefix("src/"),
        "function": function,
        "status": status_by_exit_code[code],
    }
    if one["status"] in UNNOTICED:
        lines = get_diff_for_mutant(name, path=path).splitlines()
        one["old"] = _side(lines, "-")
        one["new"] = _side(lines, "+")
    return one


def _side(lines: list[str], sign: str) -> str:
    return "\n".join(
        line[1:].strip() for line in lines if line.startswith(sign) and not line.startswith(sign * 3)
    )


if __name__ == "__main__":
    # Who calls whom is not needed, and to note it in a context variable ended Python 3.11.7 in the tests of log/.
    MutmutCallStack.get = classmethod(lambda cls: (None, 0))  # type: ignore[method-assign,assignment]
    MutmutCallStack.set = classmethod(lambda cls, value: None)  # type: ignore[method-assign,assignment]
    MutmutCallStack.reset = classmethod(lambda cls, token: None)  # type: ignore[method-assign,assignment]
    changes = [(node, change) for node, change in mutators.mutation_operators if change in CHANGES]
    vars(file_mutation)["mutation_operators"] = changes
    jobs, sample, seed, *patterns = sys.argv[1:]
    chosen = choice(int(sample), int(seed), patterns)
    choose(chosen)
    run_fast_tests_first()
    mutmut.cli(["run", "--max-children", jobs], standalone_mode=False)
    Path("results.json").write_text(json.dumps(results(chosen), indent=1), "utf-8")
