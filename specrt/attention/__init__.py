"""Attention backends behind one seam (base.py)."""
