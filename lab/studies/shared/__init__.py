"""What objectives do to coverage where prompts share parameters."""
