"""Replays of recorded traces: through the production cache, or through a policy alone.

Knows no model and no backend.
"""
