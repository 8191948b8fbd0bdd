"""Consuming: connectors, message streams, and two ways to divide partitions among them."""
