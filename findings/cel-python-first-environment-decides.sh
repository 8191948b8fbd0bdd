#!/usr/bin/env bash
# cel-python 0.5.0: the first Environment of a process decides for all others: after one with the default runner, each
# CompiledRunner fails with AttributeError on every expression.
#
# The runner is a parameter of Environment, so two environments look independent. The parser is made once for the class,
# with the kind of syntax tree that the first environment wants; an environment with CompiledRunner then gets trees without
# the attributes that it reads. A library that uses the default runner thus breaks an application that chose the other one,
# and which of them fails depends on the order of imports and tests. The reverse order works.
#
# Seen: "compiled then default: 3 3, default then compiled: 3 AttributeError" for the expression 1 + 2.
#
# Needs Python 3.11 and a network for pip; half a minute. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check cel-python==0.5.0
cat > "$folder/sum.py" <<'PY'
import sys

import celpy

for name in sys.argv[1:]:
    environment = celpy.Environment(runner_class=getattr(celpy, name))
    try:
        print(int(environment.program(environment.compile("1 + 2")).evaluate({})))
    except AttributeError:
        print("AttributeError")
PY
first=$("$folder/venv/bin/python" "$folder/sum.py" CompiledRunner InterpretedRunner | xargs)
second=$("$folder/venv/bin/python" "$folder/sum.py" InterpretedRunner CompiledRunner | xargs)
seen="compiled then default: $first, default then compiled: $second"
echo "$seen"
[ "$seen" = "compiled then default: 3 3, default then compiled: 3 AttributeError" ]
