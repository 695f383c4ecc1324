"""Tensors as a safetensors file, written and read with torch and the standard library alone.

The format is that of the `safetensors` package: eight bytes with the header's length, the header as JSON (name ->
dtype, shape, place of the bytes), then the bytes. Nothing in it can execute. The header is padded so that the bytes
begin at a multiple of 4096: a header that changes a little moves none of them.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import struct
from pathlib import Path
from typing import IO, Any, Mapping

from allpass.training.noted_file import NotedFile

_ALIGNMENT = 4096
_LARGEST_HEADER_BYTES = 100_000_000
MAPPED_FROM_BYTES = 1 << 30
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write named tensors. What is on a GPU, or has gaps, is copied on the way; anything else is written from where it
    is. Raises TypeError naming a tensor whose kind the format does not have."""
    names = {f"torch.{torch_name}": name for name, torch_name in _DTYPES.items()}
    header: "dict[str, Any]" = {}
    end = 0
    for name, tensor in tensors.items():
        kind = names.get(str(tensor.dtype))
        if kind is None or tensor.layout is not _torch().strided:
            raise TypeError(f"{name} is {tensor.dtype}, {tensor.layout}: a safetensors file has no such tensors")
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    with NotedFile(Path(path), 8 + len(text) + end) as file:
        file.write(memoryview(struct.pack("<Q", len(text)) + text))
        for tensor in tensors.values():
            ready = tensor.detach().to("cpu").contiguous()
            file.write(_memory(ready), ready)


def read_tensors(path: Path) -> "dict[str, Any]":
    """All tensors of the file, on the CPU. Raises ValueError for a file that is none.

    Each has memory of its own. That of a large file is the file's, mapped, so that the host need not have room for all
    of it: what is written to such a tensor is not written to the file, which must not be changed meanwhile, but may be
    removed.
    """
    torch = _torch()
    size_bytes = Path(path).stat().st_size
    with Path(path).open("rb", buffering=0) as file:
        header, begin = _header(file, size_bytes, path)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if size_bytes >= MAPPED_FROM_BYTES else None
        tensors: "dict[str, Any]" = {}
        end = 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            first, last = entry["data_offsets"]
            dtype = getattr(torch, _DTYPES.get(entry["dtype"], ""), None)
            if first != end or dtype is None:
                raise ValueError(f"{path}: {name!r} has a kind or a place that no safetensors file gives it")
            item = torch.empty(0, dtype=dtype).element_size()
            if math.prod(entry["shape"]) * item != last - first:
                raise ValueError(f"{path}: {name!r} has {last - first} bytes, which is not what its shape takes")
            if begin + last > size_bytes:
                raise ValueError(f"{path} ends too early")
            if mapped is not None and last > first and (begin + first) % item == 0:
                flat = torch.frombuffer(mapped, dtype=dtype, count=(last - first) // item, offset=begin + first)
                tensor = flat.view(entry["shape"])
            else:
                tensor = torch.empty(entry["shape"], dtype=dtype)
                file.seek(begin + first)
                _read_into(file, _memory(tensor), path)
            tensors[name] = tensor
            end = last
    if begin + end != size_bytes:
        raise ValueError(f"{path}: {size_bytes} bytes, but {begin + end} were expected")
    return {name: tensors[name] for name in header}


def _header(file: IO[bytes], size_bytes: int, path: Path) -> "tuple[dict[str, Any], int]":
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if not 0 < length <= min(_LARGEST_HEADER_BYTES, size_bytes - 8):
        raise ValueError(f"{path} is not a safetensors file")
    try:
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        is_sound = all(_is_sound(entry) for entry in header.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error
    if not is_sound:
        raise ValueError(f"{path} is not a safetensors file: a shape or a place is no list of whole numbers")
    return header, 8 + length


def _is_sound(entry: "dict[str, Any]") -> bool:
    first, last = entry["data_offsets"]
    return all(type(one) is int and one >= 0 for one in (*entry["shape"], first, last))


def _memory(tensor: Any) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, as they are. Its memory must outlive the view."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def _read_into(file: IO[bytes], data: memoryview, path: Path) -> None:
    while data:
        count = file.readinto(data)  # type: ignore[attr-defined]  # buffered files have it; the stub of IO does not
        if not count:
            raise ValueError(f"{path} ends too early")
        data = data[count:]


def _torch() -> Any:
    import torch

    return torch
