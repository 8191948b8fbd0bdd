"""Users: plan and actions."""
