"""Kernels: sparse and dense products, attention, selected rows; for one client and for a whole batch of clients."""
