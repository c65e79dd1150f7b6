"""Further tasks, one in a file or folder: `sage_rlvr.tasks.TASKS` has them by name."""
