"""Federations between organizations: the application on NVFlare, and the commands that set one up and run it."""
