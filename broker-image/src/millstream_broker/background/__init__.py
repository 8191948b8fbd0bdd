"""Periodic work: retention, compaction, checkpoints."""
