"""KVStore: the tensors behind the slots. Knows no request, no token and no owner of a slot.

A slot holds one token: keys and values of all layers, and named extra planes (a draft head's row,
a fused feature). All planes of a slot are one unit: they move, leave and enter together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specrt.errors import ConfigError

Slots = Sequence[int] | npt.NDArray[np.int32]
KV_PLANE = "kv"
# Dimension of the slots in the tensor of keys and values.
_SLOT_DIM = 3


def bytes_per_slot(
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype = torch.float32,
    extra: Mapping[str, tuple[int, ...]] | None = None,
) -> int:
    """Bytes that one slot takes in a KVStore made with the same arguments."""
    values = 2 * num_layers * num_kv_heads * head_dim
    values += sum(math.prod(shape) for shape in (extra or {}).values())
    return values * dtype.itemsize


class KeysAndValues(Protocol):
    """Layers of keys and values over the same slots.

    Attributes:
        keys: one [num_slots, num_kv_heads, head_dim] a layer.
        values: like keys.
    """

    keys: list[Tensor]
    values: list[Tensor]


@dataclass(slots=True)
class OneLayer:
    """Keys and values of a single layer; see KeysAndValues."""

    keys: list[Tensor]
    values: list[Tensor]


class KVStore:
    """Keys, values and extra planes of `num_slots` slots.

    Memory is reserved, not touched: the operating system provides a page when a slot in it is
    first written.

    Attributes:
        num_slots: capacity in tokens.
        keys: one [num_slots, num_kv_heads, head_dim] view a layer; each head's rows lie together.
        values: like keys.
        extra: name -> [num_slots, *shape].
    """

    def __init__(
        self,
        num_slots: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        extra: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """Reserve the memory.

        Args:
            num_slots: capacity in tokens.
            num_layers: layers of the target model.
            num_kv_heads: key heads of a layer.
            head_dim: size of one head.
            dtype: of all planes.
            device: of all planes.
            extra: further planes, name -> shape of one slot's part.

        Raises:
            ConfigError: the memory cannot be reserved; the message has the numbers.
        """
        extra = extra or {}
        assert num_slots >= 1 and KV_PLANE not in extra
        self.num_slots = num_slots
        try:
            # One tensor, so that a move is one gather and one scatter for all layers. Heads before
            # slots: attention walks the slots of one head, and reads memory in order that way
            # (one row over 2000 tokens, 30 layers: 11 ms instead of 15 ms, 2-core AVX-512).
            self._kv = torch.empty(
                (num_layers, 2, num_kv_heads, num_slots, head_dim), dtype=dtype, device=device
            )
            self.extra: dict[str, Tensor] = {
                name: torch.empty((num_slots, *shape), dtype=dtype, device=device)
                for name, shape in extra.items()
            }
        except RuntimeError as error:  # torch has no narrower type for this on the CPU
            size = num_slots * bytes_per_slot(num_layers, num_kv_heads, head_dim, dtype, extra)
            raise ConfigError(
                f"a KV cache of {num_slots} slots takes {size / 1e9:.1f} GB, which cannot be "
                f"allocated ({error}); lower --max-total-tokens or --mem-fraction-static"
            ) from error
        self.keys: list[Tensor] = list(self._kv[:, 0].transpose(1, 2).unbind(0))
        self.values: list[Tensor] = list(self._kv[:, 1].transpose(1, 2).unbind(0))

    def layer_of(self, name: str) -> OneLayer:
        """An extra plane of shape (2, num_kv_heads, head_dim) as a layer of keys and values."""
        plane = self.extra[name]
        return OneLayer([plane[:, 0]], [plane[:, 1]])

    @torch.inference_mode()
    def move(self, source_slots: Slots, target_slots: Slots) -> None:
        """Copy slots to other slots; the two sets may overlap (all is read before any write).

        Args:
            source_slots: n slots.
            target_slots: n different slots, in the same order.
        """
        assert len(source_slots) == len(target_slots)
        if len(source_slots):
            self.adopt(target_slots, self.export(source_slots))

    @torch.inference_mode()
    def export(self, slots: Slots) -> dict[str, Tensor]:
        """Copies of all planes of n slots: "kv" [layers, 2, heads, n, dim], others [n, *shape]."""
        index = self._index(slots)
        planes = {KV_PLANE: self._kv.index_select(_SLOT_DIM, index)}
        planes.update((name, plane.index_select(0, index)) for name, plane in self.extra.items())
        return planes

    @torch.inference_mode()
    def adopt(self, slots: Slots, planes: Mapping[str, Tensor]) -> None:
        """Write planes as `export` returns them, of this store or of one of equal layout.

        Raises:
            ValueError: planes are missing, unknown, or of another shape or dtype.
        """
        index = self._index(slots)
        own: dict[str, tuple[Tensor, int]] = {KV_PLANE: (self._kv, _SLOT_DIM)}
        own.update((name, (plane, 0)) for name, plane in self.extra.items())
        if planes.keys() != own.keys():
            raise ValueError(f"expected the planes {sorted(own)}, got {sorted(planes)}")
        for name, (plane, dim) in own.items():
            shape = (*plane.shape[:dim], len(index), *plane.shape[dim + 1 :])
            if tuple(planes[name].shape) != shape or planes[name].dtype != plane.dtype:
                raise ValueError(
                    f"plane {name!r}: expected {plane.dtype} {shape}, got "
                    f"{planes[name].dtype} {tuple(planes[name].shape)}"
                )
        for name, (plane, dim) in own.items():
            plane.index_copy_(dim, index, planes[name].to(plane.device))

    def _index(self, slots: Slots) -> Tensor:
        index = torch.as_tensor(np.asarray(slots, dtype=np.int64))
        assert not len(index) or bool((index >= 0).all() and (index < self.num_slots).all())
        return index.to(self._kv.device)
