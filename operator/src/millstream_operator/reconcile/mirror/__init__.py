"""MirrorMakers: rules, status, promotions."""
