"""Further tasks, one per file or folder: `sage_rlvr.tasks.TASKS` has them by name."""
