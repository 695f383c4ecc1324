"""Tensors as safetensors files: what the package writes we read, and the other way round; anything else is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from allpass.training import safe_file
from allpass.training.safe_file import read_tensors, write_tensors

pytestmark = pytest.mark.training
KINDS = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.uint16, torch.uint32,
    torch.uint64,
]  # fmt: skip


@pytest.fixture(autouse=True, params=["read", "mapped"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How large files are taken, all are taken once."""
    monkeypatch.setattr(safe_file, "MAPPED_FROM_BYTES", 0 if request.param == "mapped" else 1 << 60)


def samples() -> dict[str, Any]:
    """One of each kind, and the shapes that are easily forgotten."""
    found = {str(kind): torch.arange(-3, 9).to(torch.float32).abs().to(kind).reshape(3, 4) for kind in KINDS}
    base = torch.randn(6, 8)
    return found | {
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "transposed": base.t(),
        "with gaps": base[:, ::2],
        "same memory": base,
        "same memory again": base,
        "needs a gradient": torch.nn.Parameter(torch.ones(3)),
    }


def same(one: Any, other: Any) -> bool:
    def raw(tensor: Any) -> bytes:
        return bytes(tensor.detach().contiguous().flatten().view(torch.uint8).tolist()) if tensor.numel() else b""

    return (one.dtype, one.shape, raw(one)) == (other.dtype, other.shape, raw(other))


def test_what_we_write_the_package_reads(tmp_path: Path) -> None:
    """Every kind and shape, bit for bit."""
    there = samples()
    write_tensors(tmp_path / "file", there)
    back = load_file(str(tmp_path / "file"))
    assert back.keys() == there.keys()
    assert all(same(back[name], there[name]) for name in there)


def test_what_the_package_writes_we_read(tmp_path: Path) -> None:
    """Every kind and shape, bit for bit, with its order of the bytes; and our own files as well."""
    there = {name: value.detach().clone().contiguous() for name, value in samples().items()}
    save_file(there, str(tmp_path / "theirs"), metadata={"format": "pt"})
    write_tensors(tmp_path / "ours", there)
    for name in ("theirs", "ours"):
        back = read_tensors(tmp_path / name)
        assert back.keys() == there.keys()
        assert all(same(back[key], there[key]) for key in there)


def test_a_header_that_grows_a_little_moves_no_bytes(tmp_path: Path) -> None:
    """So that what did not change is not sent again."""
    tensor = torch.randn(1000)
    write_tensors(tmp_path / "a", {"x": tensor})
    write_tensors(tmp_path / "b", {"a much longer name than before": tensor})
    assert (tmp_path / "a").read_bytes()[-4000:] == (tmp_path / "b").read_bytes()[-4000:]
    assert (tmp_path / "a").stat().st_size == (tmp_path / "b").stat().st_size == 4096 + 4000


def test_tensors_that_the_format_lacks_are_refused_by_name(tmp_path: Path) -> None:
    """With nothing written that somebody could take for a checkpoint."""
    for odd in (torch.zeros(2, dtype=torch.complex128), torch.zeros(3, 3).to_sparse()):
        with pytest.raises(TypeError, match=r"^odd is "):
            write_tensors(tmp_path / "file", {"odd": odd})
    assert not (tmp_path / "file").exists()


def _file(header: object, data: bytes = b"\0" * 8) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _entry(**change: object) -> dict[str, object]:
    return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **change}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x10",
        struct.pack("<Q", 2**60),
        b"\x80\x04\x95" + b"pickle" * 10,
        _file([1, 2]),
        _file({"x": 3}),
        _file(_entry(dtype="PICKLE")),
        _file(_entry(shape=[3])),
        _file(_entry(shape=[-2])),
        _file(_entry(shape=[2.0])),
        _file(_entry(data_offsets=[4, 12])),
        _file(_entry(data_offsets=[0, 2**40])),
        _file(_entry(data_offsets=[0])),
        _file(_entry(), b"\0" * 7),
        _file(_entry(), b"\0" * 9),
        _file({**_entry(), "y": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    """By name, before any memory is taken that its size does not justify."""
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match="file"):
        read_tensors(tmp_path / "file")


def test_what_was_read_is_one_s_own(tmp_path: Path) -> None:
    """Written to, it changes neither the file nor a second reading; and it outlives the file."""
    path = tmp_path / "file"
    write_tensors(path, {"odd": torch.ones(3, dtype=torch.uint8), "next": torch.arange(5, dtype=torch.float64)})
    before = path.read_bytes()
    one, other = read_tensors(path), read_tensors(path)
    one["next"].add_(1)
    assert path.read_bytes() == before
    path.unlink()
    assert other["next"].tolist() == [0, 1, 2, 3, 4]
    assert one["next"].tolist() == [1, 2, 3, 4, 5]
    assert other["odd"].tolist() == [1, 1, 1]
