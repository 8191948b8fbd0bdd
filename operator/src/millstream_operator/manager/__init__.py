"""When which resource is reconciled, and by which operator."""
