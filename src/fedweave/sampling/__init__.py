"""Sampled parts of a client's graph: ego-graphs of fixed fan-out, and layer-wise sampled neighborhoods."""
