"""Shared by tests, benchmarks and e2e: real processes, started on free ports and always stopped."""
