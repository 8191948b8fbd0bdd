"""ConsumerGroups: lag, resets, workloads."""
