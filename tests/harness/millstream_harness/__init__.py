"""What the tests, the benchmarks and e2e share: real processes, started on free ports and always stopped."""
