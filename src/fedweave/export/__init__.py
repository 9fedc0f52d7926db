"""A finished run's model for use elsewhere: weights, a PyTorch Geometric module that loads them, a model card."""
