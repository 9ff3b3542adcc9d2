"""Sampling: one token from one target row; exact, and a function of row, seed and position."""

from specrt.sampling.history import TokenHistory
from specrt.sampling.sampler import Draw, sample
from specrt.sampling.scores import SamplingError
from specrt.sampling.ties import Tie, near_tie

__all__ = ["Draw", "SamplingError", "Tie", "TokenHistory", "near_tie", "sample"]
