"""State as bytes without pickle: plain Python values, tensors and arrays, and nothing that could run code.

Used for what is too irregular for the tensor manifest: RNG state, data position, scheduler and scaler
state, user objects. Layout: 4-byte length, JSON with `{"~": kind, ...}` for what JSON lacks, raw buffers.
Floats keep all their bits (Python writes the shortest form that reads back the same).
"""

from __future__ import annotations

import collections
import json
import struct
from typing import Any

import numpy as np
import torch

_LENGTH = struct.Struct(">I")
_TAG = "~"


class CannotMove(TypeError):
    """A value that has no safe byte form; the message names where it sits."""


def encode(value: Any, name: str = "state") -> bytes:
    """`value` as bytes. Raises CannotMove naming the path of the first value that cannot move."""
    buffers: list[bytes] = []
    header = json.dumps(_pack(value, buffers, name), separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(header)), header, *buffers])


def decode(data: bytes | memoryview) -> Any:
    """The value that `encode` was given. Raises ValueError on malformed input."""
    view = memoryview(data)
    (size,) = _LENGTH.unpack(view[: _LENGTH.size])
    header = json.loads(bytes(view[_LENGTH.size : _LENGTH.size + size]))
    return _unpack(header, _Buffers(view[_LENGTH.size + size :]))


class _Buffers:
    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._view):
            raise ValueError("encoded state ends too early")
        part = bytes(self._view[self._at : end])
        self._at = end
        return part


def _pack(value: Any, buffers: list[bytes], path: str) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if type(value) in (int, float):
        return value
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        buffers.append(value.tobytes())
        return {_TAG: "scalar", "dtype": value.dtype.str}
    if isinstance(value, (bytes, bytearray)):
        buffers.append(bytes(value))
        return {_TAG: "bytes", "size": len(value)}
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        buffers.append(flat)
        kind = str(value.dtype).removeprefix("torch.")
        return {_TAG: "tensor", "dtype": kind, "shape": list(value.shape), "size": len(flat)}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        flat = np.ascontiguousarray(value).tobytes()
        buffers.append(flat)
        return {_TAG: "array", "dtype": value.dtype.str, "shape": list(value.shape), "size": len(flat)}
    if isinstance(value, list):
        return [_pack(item, buffers, f"{path}[{index}]") for index, item in enumerate(value)]
    if type(value) in (tuple, set, frozenset, collections.deque):
        kind = type(value).__name__
        return {_TAG: kind, "items": [_pack(item, buffers, f"{path}[…]") for item in value]}
    if type(value) in (dict, collections.OrderedDict, collections.Counter, collections.defaultdict):
        plain = type(value) is dict and all(type(key) is str for key in value) and _TAG not in value
        if plain:
            return {key: _pack(item, buffers, f"{path}.{key}") for key, item in value.items()}
        kind = "dict" if type(value) is collections.defaultdict else type(value).__name__
        pairs = [
            [_pack(key, buffers, f"{path} key"), _pack(item, buffers, f"{path}.{key}")] for key, item in value.items()
        ]
        return {_TAG: kind, "items": pairs}
    raise CannotMove(
        f"{path} is a {type(value).__qualname__}, which cannot move to another worker; "
        "keep numbers, strings, lists, dicts, tensors or arrays in state_dict()"
    )


def _unpack(packed: Any, buffers: _Buffers) -> Any:
    if isinstance(packed, list):
        return [_unpack(item, buffers) for item in packed]
    if not isinstance(packed, dict):
        return packed
    kind = packed.get(_TAG)
    if kind is None:
        return {key: _unpack(item, buffers) for key, item in packed.items()}
    if kind == "bytes":
        return buffers.take(packed["size"])
    if kind == "scalar":
        dtype = np.dtype(packed["dtype"])
        return np.frombuffer(buffers.take(dtype.itemsize), dtype)[0]
    if kind == "array":
        flat = np.frombuffer(buffers.take(packed["size"]), np.dtype(packed["dtype"]))
        return flat.reshape(packed["shape"]).copy()
    if kind == "tensor":
        dtype = getattr(torch, packed["dtype"])
        raw = torch.frombuffer(bytearray(buffers.take(packed["size"])) or bytearray(1), dtype=torch.uint8)
        return raw[: packed["size"]].view(dtype).reshape(packed["shape"]).clone()
    items = packed["items"]
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_unpack(item, buffers) for item in items)
    if kind in _MAPPINGS:
        pairs = [(_unpack(key, buffers), _unpack(item, buffers)) for key, item in items]
        return _MAPPINGS[kind](pairs)
    raise ValueError(f"unknown kind {kind!r} in encoded state")


_SEQUENCES: dict[str, Any] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": collections.deque,
}
_MAPPINGS: dict[str, Any] = {
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
    "Counter": lambda pairs: collections.Counter(dict(pairs)),
}
