"""Core dumps, which would write passwords and keys in memory to a disk, or send them elsewhere.

The kernel writes no core file below a page, and starts no program of `core_pattern` for a limit of 1 byte; for 0 bytes,
it would start that.
"""

from __future__ import annotations

import contextlib
import resource

LIMIT = 1


def forbid() -> None:
    """From now on, this process and its children dump no core."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    limit = LIMIT if hard == resource.RLIM_INFINITY else min(LIMIT, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
