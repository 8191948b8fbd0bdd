"""Producing: the producer, its asyncio version, and partitioners."""
