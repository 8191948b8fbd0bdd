#!/usr/bin/env bash
# cel-python 0.5.0: with the CompiledRunner, a condition that starts with has(…) fails with "no such overload".
#
# `!has(self.c) || self.c > 1` ("if it is set, it must be greater than one") and `has(self.c) ? self.c > 1 : true` are the two
# usual forms of a rule for an optional field in a Kubernetes CustomResourceDefinition. The documentation offers two runners for
# the same expressions, and promises of CompiledRunner only that it is faster. There, has() returns Python's bool and not
# CEL's, and "||", "!" and "?:" do not take it. `has(self.c)` alone is right, so a first try does not show it. Where the left
# side of "||" fails and the right side is true, the result is true, so such a rule fails for some values only.
#
# Seen: the InterpretedRunner gives True for all; the CompiledRunner gives True, no such overload, no such overload.
#
# Needs Python 3.11 and a network for pip; half a minute. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check cel-python==0.5.0
cat > "$folder/rules.py" <<'PY'
import logging
import sys

import celpy

logging.disable(logging.CRITICAL)
RUNNER = getattr(celpy, sys.argv[1])


def result(rule: str, fields: dict[str, int]) -> str:
    environment = celpy.Environment(runner_class=RUNNER)
    program = environment.program(environment.compile(rule))
    try:
        return str(bool(program.evaluate({"self": celpy.json_to_cel(fields)})))
    except celpy.CELEvalError as error:
        return "no such overload" if "no such overload" in str(error) else str(error)


print(
    result("has(self.c)", {"c": 2}),
    result("!has(self.c) || self.c > 1", {"a": 1}),
    result("has(self.c) ? self.c > 1 : true", {"c": 2}),
    sep=", ",
)
PY
interpreted=$("$folder/venv/bin/python" "$folder/rules.py" InterpretedRunner 2> /dev/null | tail -1)
compiled=$("$folder/venv/bin/python" "$folder/rules.py" CompiledRunner 2> /dev/null | tail -1)
echo "InterpretedRunner: $interpreted"
echo "CompiledRunner:    $compiled"
[ "$interpreted" = "True, True, True" ]
[ "$compiled" = "True, no such overload, no such overload" ]
