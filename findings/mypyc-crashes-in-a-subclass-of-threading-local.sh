#!/usr/bin/env bash
# mypyc 2.4.1: it compiles a subclass of threading.local without a word, and the process dies when it is asked for an
# attribute that it does not have.
#
# mypyc refuses a subclass of most built-in types ("Inheriting from most builtin types is unimplemented"). It recognises
# them by the module builtins alone. For any other type written in C, the compiled class has a layout that does not fit
# its base; a comment in mypyc/irbuild/prepare.py says "bad things will happen and we won't catch it here".
#
# Seen: "Python: None, compiled: status 139" (a segmentation fault).
#
# Needs Python 3.11 with its headers, a C compiler and a network for pip; a minute. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mypy==2.4.1 setuptools==84.2.1
cd "$folder"
cat >own.py <<'PY'
import threading


class Own(threading.local):
    def __init__(self) -> None:
        self.room = bytes(10)
PY
look() { venv/bin/python -c 'import own; print(getattr(own.Own(), "other", None))' 2>/dev/null || echo "status $?"; }
seen="Python: $(look), "
venv/bin/mypyc own.py >/dev/null
seen+="compiled: $(look)"
echo "$seen"
[ "$seen" = "Python: None, compiled: status 139" ]
