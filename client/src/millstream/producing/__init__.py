"""Producing: the producer, its asyncio face, and partitioners."""
