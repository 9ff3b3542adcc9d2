"""The child's side of compile_worker.py: takes jobs from its channel and answers them.

Runs in a process of its own, started by compile_worker.py; nothing else imports `serve`. Both sides
agree on the frames below: a job is the pickle of (function, arguments), an answer that of what its
status says.
"""

from __future__ import annotations

import importlib
import os
import pickle
import resource
import signal
import struct
import traceback
from collections.abc import Sequence

# A child whose parent was killed ends by itself this long after the deadline of its job.
ORPHAN_S = 1.0

JOB = struct.Struct("<dQ")  # deadline in seconds, bytes that follow
ANSWER = struct.Struct("<B?Q")  # status, is the child worn out?, bytes that follow
READY = 0  # None: the modules are imported
RESULT = 1  # what the job returned
REFUSED = 2  # the specrt error that it raised
FAILED = 3  # (reason, traceback text) of any other error
NO_MEMORY = 4  # None

_PIECE_BYTES = 1 << 20
_MAX_REASON = 500  # characters


def serve(modules: Sequence[str], memory_bytes: int) -> None:
    """Answer jobs until the parent is gone.

    Args:
        modules: to import before the first job.
        memory_bytes: what the process may allocate from then on.
    """
    # Jobs get no hold of the channel: what they read and print goes nowhere.
    channel = os.dup(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    try:
        for module in modules:
            importlib.import_module(module)
    except Exception as error:
        _send(channel, FAILED, _failure(error))
        return
    worn_size = _limit_memory(memory_bytes)
    _send(channel, READY, pickle.dumps(None))
    os.dup2(null, 2)  # until here a failure may be read; from here on it is a client's doing
    while header := _receive(channel, JOB.size):
        deadline_s, num_bytes = JOB.unpack(header)
        # The kernel's clock: it also ends C code that never returns to Python.
        signal.setitimer(signal.ITIMER_REAL, deadline_s + ORPHAN_S)
        status, answer = _do(_receive(channel, num_bytes))
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(channel, status, answer, is_worn=worn_size is not None and _size() > worn_size)


def _do(job: bytes) -> tuple[int, bytes]:
    """Status and answer of one job."""
    try:
        function, arguments = pickle.loads(job)
        return RESULT, pickle.dumps(function(*arguments), protocol=5)
    except MemoryError:
        return NO_MEMORY, pickle.dumps(None)
    except BaseException as error:  # a panic in Rust code is no Exception
        if type(error).__module__.startswith("specrt."):
            try:
                answer = pickle.dumps(error)
                pickle.loads(answer)
            except Exception:
                return FAILED, _failure(error)
            return REFUSED, answer
        return FAILED, _failure(error)


def _failure(error: BaseException) -> bytes:
    reason = f"failed: {type(error).__name__}: {error}"[:_MAX_REASON]
    return pickle.dumps((reason, "".join(traceback.format_exception(error))))


def _limit_memory(memory_bytes: int) -> int | None:
    """Bound what the process may allocate from here on.

    Returns:
        The size in bytes above which it has kept so much that a new process should take over;
        None where sizes cannot be known, and then nothing is bounded.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        size = _size()
    except OSError:
        return None
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = size + memory_bytes
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return size + memory_bytes // 4


def _size() -> int:
    """Address space of this process in bytes.

    Raises:
        OSError: the system does not tell.
    """
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _receive(channel: int, num_bytes: int) -> bytes:
    """So many bytes from the parent; b"" when it is gone."""
    pieces = []
    while num_bytes:
        try:
            piece = os.read(channel, min(num_bytes, _PIECE_BYTES))
        except ConnectionError:
            piece = b""
        if not piece:
            return b""
        pieces.append(piece)
        num_bytes -= len(piece)
    return b"".join(pieces)


def _send(channel: int, status: int, answer: bytes, *, is_worn: bool = False) -> None:
    for part in (ANSWER.pack(status, is_worn, len(answer)), answer):
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(channel, rest) :]
