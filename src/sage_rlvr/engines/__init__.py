"""Engines run a method: `loop`, the readable reference and the CPU default. TRL and verl adapters stand beside it later."""
