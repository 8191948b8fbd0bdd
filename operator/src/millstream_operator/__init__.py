"""Millstream's operator: custom resources reconciled on Kubernetes, or as local processes."""

__version__ = "0.1.0"
