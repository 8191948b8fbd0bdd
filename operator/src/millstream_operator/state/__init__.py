"""What reconciles share: cached resources, status and Event writers, metrics."""
