"""Secure sums between sites: the server's part and a site's."""
