"""Consuming: connectors, message streams, and two ways to share partitions among them."""
