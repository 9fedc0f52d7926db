"""Protection of values before they leave, and its guarantees."""
