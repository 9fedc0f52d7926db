"""What fedweave is timed against, and how fast the machine could be."""
