"""BatchLoads: a state machine over runs, and what carries it out."""
