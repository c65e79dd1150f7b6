"""Replay: losses on stored right answers (`sage_rlvr.core.buffers`), one file per paper, as in `contrib.methods`."""
