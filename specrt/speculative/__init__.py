"""Drafters, the merged draft tree and its cost model."""
