"""Parties of a vertical federation: who they are, which nodes all have, what they have to say alike."""
