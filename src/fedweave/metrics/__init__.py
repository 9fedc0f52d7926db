"""Metrics: additive pairs of one client, and what is read from the merged ones."""
