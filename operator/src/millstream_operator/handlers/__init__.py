"""A thin module a kind: which function reconciles it, and whose changes wake it."""
