"""Settings that every test shares."""

from __future__ import annotations

import os

# Two threads: the size of the smallest machine the suite is meant for.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
