"""Replay: losses on stored right answers (`sage_rlvr.core.extras.replay`), one file per paper, as in `contrib.methods`."""
