"""One curve over restarts, with the real trackers of experiments, offline."""
