"""What a recipe will do, counted before anything is loaded: a dry run, and the footprint of a model."""
