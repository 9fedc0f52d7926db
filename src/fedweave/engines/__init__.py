"""Engines run an algorithm's steps on clients; no algorithm knows which one does."""
