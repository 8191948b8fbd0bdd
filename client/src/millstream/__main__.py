"""`millstream` and `python -m millstream`: the command, whose packages come with an extra of the library."""

from __future__ import annotations

import sys
from importlib.util import find_spec

PACKAGES = ("click", "rich", "millstream_kafka")
"""What the extra ``command`` adds."""


def main() -> None:
    """Run the command, or say what to install: the library alone has no command."""
    if missing := next((package for package in PACKAGES if find_spec(package) is None), ""):
        sys.exit(f"millstream: the command needs {missing}: pip install 'millstream[command]'")
    from millstream.cli import main as run

    run()


if __name__ == "__main__":
    main()
