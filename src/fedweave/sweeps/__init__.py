"""Many runs of one experiment: seeds, algorithms and settings."""
