"""Conformance tests that every algorithm passes, also for algorithms from outside the package."""
