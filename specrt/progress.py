"""Progress of a long job on stderr: one line, with rate and time left."""

from __future__ import annotations

import sys
import time

# Seconds between lines: rewritten in place on a terminal, appended to a log file.
_TERMINAL_INTERVAL_S = 1.0
_LOG_INTERVAL_S = 30.0


class Progress:
    """Counts towards a total; what was done before this run does not enter the rate."""

    def __init__(self, label: str, total: int, done: int = 0) -> None:
        """Start the clock.

        Args:
            label: what is counted.
            total: count at the end.
            done: count of earlier runs.
        """
        self._label, self._total = label, total
        self._done = self._first = done
        self._start = time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        self._last_line = float("-inf")

    def update(self, done: int) -> None:
        """Set the count; prints when it is time to."""
        self._done = done
        now = time.monotonic()
        interval = _TERMINAL_INTERVAL_S if self._is_terminal else _LOG_INTERVAL_S
        if now - self._last_line >= interval:
            self._print(now)

    def close(self) -> None:
        """Print the last state and end the line."""
        self._print(time.monotonic())
        if self._is_terminal:
            print(file=sys.stderr)

    def _print(self, now: float) -> None:
        self._last_line = now
        elapsed = now - self._start
        rate = (self._done - self._first) / elapsed if elapsed > 0 else 0.0
        left = f", {_clock((self._total - self._done) / rate)} left" if rate > 0 else ""
        line = f"{self._label}: {self._done}/{self._total}, {rate:.1f}/s{left}"
        if self._is_terminal:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
