"""The small core: trees, randomness, graphs, models, clients, and the one primitive `Federation.map`."""
