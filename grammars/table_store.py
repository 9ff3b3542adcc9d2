"""Compiled tables on disk: numpy arrays by key, in files that prove themselves whole.

A file is a checksum over a header and the arrays as they lie in memory. What is damaged, cut short
or from elsewhere counts as missing and is removed: the caller compiles again. Nothing is unpickled.
Whether whole arrays also make sense is the caller's check.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import re
import struct
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

logger = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]

_MAGIC = b"specrt-tables\0\0\1"  # the last byte is the version of this layout
_HEAD = struct.Struct("<16s32sQ")  # magic, SHA-256 of all that follows it, length of the header
_DIGEST_END = 48
_ALIGNMENT = 64
_SUFFIX = ".tables"
_DTYPES = frozenset(["|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8"])
_KEY = re.compile("[0-9a-f]{64}")
_ABANDONED_S = 3600.0  # a temporary file of this age has no writer any more


def default_folder() -> Path:
    """`grammars` in $SPECRT_CACHE, $XDG_CACHE_HOME/specrt or ~/.cache/specrt."""
    own = os.environ.get("SPECRT_CACHE")
    if own:
        return Path(own).expanduser() / "grammars"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specrt" / "grammars"


class TableStore:
    """A folder of tables, shared by threads and processes.

    Where it cannot be written it keeps nothing, and one warning says so.
    """

    def __init__(self, folder: Path, max_bytes: int = 256 << 20) -> None:
        """Touches nothing yet.

        Args:
            folder: made when it is first written to.
            max_bytes: bound on the size of its files; those used longest ago go first.
        """
        self._folder = folder
        self._max_bytes = max_bytes
        self._has_warned = False

    def load(self, key: str, check: Callable[[Arrays], bool] | None = None) -> Arrays | None:
        """The arrays saved under a key.

        Args:
            key: SHA-256 in hex of all that the arrays depend on.
            check: do these arrays make sense (bounds of indices)? May raise LookupError, TypeError
                or ValueError where something is not there.

        Returns:
            Arrays that cannot be written to; None when there is no whole file of that key, and then
            there is none afterwards.
        """
        path = self._path(key)
        try:
            if not path.is_file():
                return None
            arrays = _unpack(path.read_bytes(), key)
            if check is not None and not check(arrays):
                raise ValueError("the arrays make no sense")
        except FileNotFoundError:
            return None  # another process made room
        except OSError as error:
            self._warn("read", error)
            return None
        except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
            logger.warning("%s: not usable (%s); it is made again", path, error)
            self._remove(path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return arrays

    def save(self, key: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Keep arrays under a key, in place of those that were there.

        Args:
            key: as for `load`.
            arrays: of numbers or booleans; more than fits the store is not kept.

        Raises:
            TypeError: an array holds something else.
        """
        path = self._path(key)
        data = _pack(key, arrays)
        if len(data) > self._max_bytes:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._make_room(path, len(data))
            self._write(path, data)
        except OSError as error:
            self._warn("written", error)

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"expected a SHA-256 in hex, got {key!r}")
        return self._folder / (key + _SUFFIX)

    def _write(self, path: Path, data: bytes) -> None:
        handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=self._folder)
        try:
            with open(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            self._remove(Path(temporary))
            raise

    def _make_room(self, path: Path, num_bytes: int) -> None:
        """Remove what was used longest ago until `num_bytes` more fit."""
        files = []
        total = num_bytes
        with os.scandir(self._folder) as listing:
            entries = list(listing)
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                if entry.name.endswith(_SUFFIX) and entry.name != path.name:
                    files.append((found.st_mtime_ns, found.st_size, entry.path))
                    total += found.st_size
                elif entry.name.endswith(".tmp") and time.time() - found.st_mtime > _ABANDONED_S:
                    self._remove(Path(entry.path))
        for _, size, name in sorted(files):
            if total <= self._max_bytes:
                break
            self._remove(Path(name))
            total -= size

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self._warn("cleared", error)

    def _warn(self, what: str, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s: compiled grammars cannot be %s (%s); going on without",
                self._folder,
                what,
                error,
            )


def _pack(key: str, arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    entries = []
    parts = []
    for name, given in arrays.items():
        array = np.asarray(given)
        array = np.asarray(array, dtype=array.dtype.newbyteorder("<"))
        if array.dtype.str not in _DTYPES:
            raise TypeError(f"array {name!r}: expected numbers or booleans, got {array.dtype}")
        entries.append({"name": name, "dtype": array.dtype.str, "shape": array.shape})
        parts.append(array.tobytes().ljust(_aligned(array.nbytes), b"\0"))
    header = json.dumps({"key": key, "arrays": entries}).encode()
    header = header.ljust(_aligned(_HEAD.size + len(header)) - _HEAD.size)
    rest = b"".join([struct.pack("<Q", len(header)), header, *parts])
    return _MAGIC + hashlib.sha256(rest).digest() + rest


def _aligned(num_bytes: int) -> int:
    """The next multiple of what a file's parts begin at."""
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _unpack(data: bytes, key: str) -> Arrays:
    """The arrays of a file, as views of `data`.

    Raises:
        ValueError: it is not a whole file of this key; or LookupError, OverflowError, TypeError,
            RecursionError for a header that only looks whole.
    """
    if len(data) < _HEAD.size:
        raise ValueError("cut short")
    magic, digest, header_bytes = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError("another kind of file")
    if hashlib.sha256(memoryview(data)[_DIGEST_END:]).digest() != digest:
        raise ValueError("damaged")
    # The checksum is no signature: what it covers may still come from elsewhere.
    offset = _HEAD.size + header_bytes
    header = json.loads(data[_HEAD.size : offset])
    if header["key"] != key:
        raise ValueError("the file of another key")
    arrays = {}
    for entry in header["arrays"]:
        dtype, shape = entry["dtype"], entry["shape"]
        if dtype not in _DTYPES or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"expected numbers or booleans, got {dtype!r} {shape!r}")
        count = math.prod(shape)
        arrays[entry["name"]] = np.frombuffer(data, dtype, count, offset).reshape(shape)
        offset += _aligned(count * np.dtype(dtype).itemsize)
    if offset != len(data):
        raise ValueError("its length is wrong")
    return arrays
