"""What a KL term descends, measured on a small real policy."""
