"""The tables of the papers: grids of experiments, each run and printed next to the paper's numbers."""
