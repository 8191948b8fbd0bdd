"""Runs Mutmut in the current folder with the changes that count here, then writes ``results.json``.

    python worker.py JOBS [PATTERN ...]        patterns of mutants' names; none: all that have not been tried

The changes: a comparison, an arithmetic or a logical operator becomes its neighbour; a number grows by one; True
becomes False; ``not`` goes; ``in`` becomes ``not in``, ``is`` becomes ``is not``, ``break`` becomes ``return``,
``continue`` becomes ``break``; the condition of a conditional expression is forced both ways.

``results.json``: a list of {"module", "function", "status", "old", "new"}, the last two for what no test noticed: the
lines of the change.
"""

from __future__ import annotations

import json
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from mutmut.__main__ import cli
from mutmut.mutation import file_mutation, mutators
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files

CHANGES = {
    mutators.operator_number,
    mutators.operator_name,
    mutators.operator_remove_unary_ops,
    mutators.operator_keywords,
    mutators.operator_swap_op,
    mutators.operator_if_exp,
}
UNNOTICED = ("survived", "no tests")


def results(patterns: list[str]) -> list[dict[str, Any]]:
    """Of the mutants of these names."""
    found = []
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        for name, code in data.exit_code_by_key.items():
            if patterns and not any(fnmatch(name, pattern) for pattern in patterns):
                continue
            function = name.rpartition(".")[2].rpartition("__mutmut_")[0].lstrip("x_ǁ").replace("ǁ", ".")
            one = {
                "module": str(path).removeprefix("src/"),
                "function": function,
                "status": status_by_exit_code[code],
            }
            if one["status"] in UNNOTICED:
                lines = get_diff_for_mutant(name, path=path).splitlines()
                one["old"] = _side(lines, "-")
                one["new"] = _side(lines, "+")
            found.append(one)
    return found


def _side(lines: list[str], sign: str) -> str:
    return "\n".join(
        line[1:].strip() for line in lines if line.startswith(sign) and not line.startswith(sign * 3)
    )


if __name__ == "__main__":
    chosen = [(node, change) for node, change in mutators.mutation_operators if change in CHANGES]
    vars(file_mutation)["mutation_operators"] = chosen
    jobs, *patterns = sys.argv[1:]
    cli(["run", "--max-children", jobs, *patterns], standalone_mode=False)
    Path("results.json").write_text(json.dumps(results(patterns), indent=1), "utf-8")
