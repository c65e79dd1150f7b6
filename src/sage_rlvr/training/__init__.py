"""Training: `loop`, the readable reference and the CPU default; `trl`, the adapter for the TRL trainer."""
