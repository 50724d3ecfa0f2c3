"""Answers in a shape: which tokens a grammar allows next, by llguidance (the extra grammar)."""
