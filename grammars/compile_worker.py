"""A child process in which untrusted schemas are compiled and checked.

What a schema can make a library do has no bound: Python's `re` backtracks for ever without giving
up the interpreter, an automaton outgrows the memory, a stack overflows. A job here has a deadline
and a memory limit, and a crash costs the child only. The child is started at the first use, kept
between jobs, and replaced when a job broke it. It imports nothing but what its jobs name.

What the jobs do is the callers' business: a job is any module-level function with arguments that
can be pickled. Needs a POSIX system; where the size of a process cannot be read (macOS) there is no
memory limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from specrt.grammars.compile_child import ANSWER, FAILED, JOB, NO_MEMORY, READY, REFUSED

Result = TypeVar("Result")

# The child takes its module path from its parent: nothing is imported from the current folder.
_BOOT = (
    "import json, sys; sys.path[:], modules, memory_bytes = json.loads(sys.argv[1]); "
    "from specrt.grammars.compile_child import serve; serve(modules, memory_bytes)"
)
_START_S = 30.0  # takes 0.1 s on an idle machine


class CompileError(Exception):
    """A job did not come to its end.

    Attributes:
        reason: what happened, to be read after "it": "took longer than 2 s", "crashed", ...
        details: the traceback in the child, "" when there is none.
    """

    def __init__(self, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.details = details


class CompileWorker:
    """Runs jobs in a child process, one at a time. Thread safe; other threads wait their turn."""

    def __init__(
        self,
        *,
        deadline_s: float = 2.0,
        memory_bytes: int = 1 << 30,
        queue_s: float = 10.0,
        modules: Sequence[str] = (),
    ) -> None:
        """Starts nothing yet.

        Args:
            deadline_s: what one job may take, in seconds of wall-clock time.
            memory_bytes: what a job may allocate, above what the child has at its start.
            queue_s: how long a caller waits for the jobs before its own, in seconds.
            modules: imported at the child's start, so that no job pays for it in time or memory.
        """
        self._deadline_s = deadline_s
        self._memory_bytes = memory_bytes
        self._queue_s = queue_s
        self._modules = tuple(modules)
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._end_child: Callable[[], object] = lambda: None
        self._is_closed = False

    def warm(self) -> None:
        """Start the child if there is none, without waiting until it is ready."""
        with self._lock, contextlib.suppress(OSError):
            if self._child is None:
                self._start()

    def run(
        self, function: Callable[..., Result], *args: object, deadline_s: float | None = None
    ) -> Result:
        """What `function(*args)` returns in the child.

        Args:
            function: one that a module has under its name; it and `args` must pickle.
            args: its arguments.
            deadline_s: for this job; None = the worker's own.

        Raises:
            CompileError: the job took too long or too much memory, crashed, failed with an error
                that is not specrt's, or did not get its turn.
            Exception: an error of specrt's own (UnsupportedError, SchemaError, ...) that the job
                raised.
        """
        try:
            job = pickle.dumps((function, args), protocol=5)
        except RecursionError:
            raise CompileError("was given arguments that are nested too deeply") from None
        if not self._lock.acquire(timeout=self._queue_s):
            raise CompileError(f"waited longer than {self._queue_s:g} s for its turn")
        try:
            status, answer = self._ask(job, self._deadline_s if deadline_s is None else deadline_s)
        finally:
            self._lock.release()
        value = pickle.loads(answer)
        if status == REFUSED:
            raise cast(Exception, value)
        if status == FAILED:
            raise CompileError(*value)
        return cast(Result, value)

    def close(self) -> None:
        """End the child, and with it a job that is running. Later jobs are refused."""
        self._is_closed = True
        child = self._child
        if child is not None:
            child.process.kill()  # the thread that waits for it then lets go of the lock
        with self._lock:
            self._retire()

    def _ask(self, job: bytes, deadline_s: float) -> tuple[int, bytearray]:
        """Status and answer of a job; the child is replaced unless it can take another."""
        child = self._ready_child()
        is_usable = False
        try:
            status, is_worn, answer = child.ask(job, deadline_s)
            if status == NO_MEMORY:
                raise CompileError(self._memory_reason())
            is_usable = not is_worn
        except TimeoutError:
            raise CompileError(f"took longer than {deadline_s:g} s") from None
        except OSError:
            raise CompileError(self._death_reason(child.exit_code(), deadline_s)) from None
        finally:  # an interrupt in the middle of an answer makes it unusable, too
            if not is_usable:
                self._retire()
                with contextlib.suppress(OSError):  # the next job tries again, and says why
                    self._start()
        return status, answer

    def _ready_child(self) -> _Child:
        if self._child is not None and self._child.process.poll() is not None:
            self._retire()  # it died between two jobs
        try:
            if self._child is None:
                self._start()
            if self._child is None:
                raise CompileError("was refused: the worker is closed")
            self._child.wait_until_ready()
        except OSError as error:
            self._retire()
            raise CompileError(f"found no process to run in: {error}") from error
        return self._child

    def _start(self) -> None:
        if not self._is_closed:
            self._child = _Child(self._modules, self._memory_bytes)
            # Also called at the worker's collection and at the interpreter's end.
            self._end_child = weakref.finalize(self, self._child.end)

    def _retire(self) -> None:
        self._end_child()  # a finalizer acts once
        self._child = None

    def _memory_reason(self) -> str:
        return f"needed more than {self._memory_bytes >> 20} MiB of memory"

    def _death_reason(self, exit_code: int, deadline_s: float) -> str:
        if self._is_closed:
            return "was given up: the worker is closed"
        if exit_code == -signal.SIGALRM:
            return f"took longer than {deadline_s:g} s"
        if exit_code == -signal.SIGABRT:  # so ends Rust code that gets no memory
            return f"crashed or {self._memory_reason()}"
        return "crashed"


class _Child:
    """The process, as its parent holds it.

    Attributes:
        process: alive or dead.
    """

    def __init__(self, modules: Sequence[str], memory_bytes: int) -> None:
        """Start it.

        Raises:
            OSError: there is no process or no descriptor to be had.
        """
        path = [os.path.abspath(entry) for entry in sys.path]
        settings = json.dumps([path, modules, memory_bytes])
        self._channel, theirs = socket.socketpair()
        try:
            # A session of its own: Ctrl-C in the terminal is the parent's business.
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", _BOOT, settings],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                # numpy's idle threads would take 40 MiB of the limit each.
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        except BaseException:
            self._channel.close()
            raise
        finally:
            theirs.close()
        self._is_ready = False

    def wait_until_ready(self) -> None:
        """Wait until it has imported its modules.

        Raises:
            OSError: it cannot, or not in time.
        """
        if not self._is_ready:
            status, _, answer = self._read_answer(time.monotonic() + _START_S)
            if status != READY:
                raise OSError(pickle.loads(answer)[0])
            self._is_ready = True

    def ask(self, job: bytes, deadline_s: float) -> tuple[int, bool, bytearray]:
        """(status, is the child worn out?, answer) of a job.

        Raises:
            TimeoutError: there is no whole answer within the deadline.
            OSError: the child died.
        """
        end = time.monotonic() + deadline_s
        self._channel.settimeout(deadline_s)
        self._channel.sendall(JOB.pack(deadline_s, len(job)) + job)
        return self._read_answer(end)

    def exit_code(self) -> int:
        """How it ended, or is ended by this; negative for a signal."""
        self.process.kill()
        return self.process.wait()

    def end(self) -> None:
        """Kill it and let go of it; more than once is fine."""
        self.exit_code()
        self._channel.close()

    def _read_answer(self, end: float) -> tuple[int, bool, bytearray]:
        status, is_worn, num_bytes = ANSWER.unpack(self._read(ANSWER.size, end))
        return status, is_worn, self._read(num_bytes, end)

    def _read(self, num_bytes: int, end: float) -> bytearray:
        data = bytearray(num_bytes)
        rest = memoryview(data)
        while rest:
            self._channel.settimeout(max(end - time.monotonic(), 1e-6))
            received = self._channel.recv_into(rest)
            if not received:
                raise ConnectionResetError("the process ended")
            rest = rest[received:]
        return data
