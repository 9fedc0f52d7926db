"""The server of a federation of sites, and its administrator."""
