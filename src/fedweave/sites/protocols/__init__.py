"""Cryptographic protocols between sites: secure aggregation, set intersection, certificates and pads."""
