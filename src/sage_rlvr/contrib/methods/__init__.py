"""Methods of later papers: one file per paper with its parts, its factory, its recipe and the tests of its numbers."""
