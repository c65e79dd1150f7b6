"""Methods of later papers: one file per paper with its parts, its factory, its recipe and where its numbers are worked out."""
