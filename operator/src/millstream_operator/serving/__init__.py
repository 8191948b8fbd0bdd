"""Metrics and health over HTTP, and log lines."""
