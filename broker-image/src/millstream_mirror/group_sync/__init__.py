"""Positions of consumer groups, translated to the target."""
