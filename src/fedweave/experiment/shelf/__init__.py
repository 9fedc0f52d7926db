"""The shelf: what a member does alone with the tools that it has, as the reference for what joining brings."""
