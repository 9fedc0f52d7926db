"""A run: its directory, checkpoints, stopping and resuming. `run.run` is the way in."""
