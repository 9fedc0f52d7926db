"""How FairGFL's server learns which clients hold the same nodes: codes, and what can be counted in noisy ones."""
