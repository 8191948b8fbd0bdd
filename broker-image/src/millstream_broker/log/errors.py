"""Errors of the disk that logs raise themselves.

A module of their own, because the compiled build cannot compile subclasses of OSError.
"""

from __future__ import annotations


class SyncError(OSError):
    """An fsync failed. For any reason, the kernel may have dropped unwritten data."""


class TornWriteError(OSError):
    """A write failed half-way, and its remains could not be removed."""


class DeletedError(OSError):
    """The log was deleted; the disk is not at fault."""
