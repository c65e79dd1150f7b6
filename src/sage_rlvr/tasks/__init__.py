"""Tasks: problems, how they are rendered for a model, and how a completion is verified. One task a file."""
