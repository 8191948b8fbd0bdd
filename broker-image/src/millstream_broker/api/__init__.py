"""Kafka's APIs: one module for each, which registers its handler (`handlers`)."""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import every module here, so that its handler is registered."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
