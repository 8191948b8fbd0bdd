"""What the reconciles of several kinds share."""
