"""A module a kind: what is and what should be in, actions out (pure); and the actions done."""
