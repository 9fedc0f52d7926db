"""An experiment: its configuration, what is built from it, its rounds and its runs."""
