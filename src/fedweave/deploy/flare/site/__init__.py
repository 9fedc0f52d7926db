"""A site: its data, its state, its part in a run, its process."""
