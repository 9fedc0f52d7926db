"""The tables of the papers, each a grid of experiments: run, and printed beside the papers' numbers."""
