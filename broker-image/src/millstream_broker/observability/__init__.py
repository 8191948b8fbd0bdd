"""Metrics for Prometheus, and probes."""
