"""Topics: plan and actions."""
