"""Statistics: arrays in, numbers with intervals out. numpy and scipy only; no folder, no sentence of a page."""
