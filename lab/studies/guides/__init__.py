"""What a guide would do to a trained policy if the shaped objective were solved exactly."""
