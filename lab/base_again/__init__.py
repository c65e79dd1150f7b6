"""An experiment without training: the base of both rooms, drawn again (README.md)."""
