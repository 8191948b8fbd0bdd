"""Millstream for its users: the ``millstream`` command and the functions behind it."""

__version__ = "0.1.0"
