"""`millstream` and `python -m millstream`: the command, whose packages come with an extra of the library."""

from __future__ import annotations

import sys

PACKAGES = ("click", "rich")
"""What the extra ``command`` adds."""


def main() -> None:
    """Run the command, or say what to install: the library alone has no command."""
    try:
        from millstream.cli import main as run
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in PACKAGES:
            raise
        sys.exit(f"millstream: the command needs {missing}: pip install 'millstream[command]'")
    run()


if __name__ == "__main__":
    main()
