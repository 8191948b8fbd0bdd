"""Mirroring one partition, from opening it to sending its records; statistics."""
