"""Which topics may be mirrored: patterns, loops, and mirrors in each other's way."""
