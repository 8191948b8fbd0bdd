"""The reconciles, by kind: pure planners (observed and desired state in, actions out), and the modules that act."""
