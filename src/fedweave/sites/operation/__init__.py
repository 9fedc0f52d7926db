"""Federations of real sites from the command line: `fedweave sites …`."""
