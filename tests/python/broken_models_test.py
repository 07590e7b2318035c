"""Files that break the rules of their format: each is refused, and loses nothing."""

import struct

import numpy
import pytest

import penstock
from models import header, write_gguf

torch = pytest.importorskip("torch")


def spoiled(path, change):
    head, size = header([("a", "F32", (2, 3)), ("b", "I8", (2,))])
    path.write_bytes(change(head, bytes(size)))
    return path


def entry(**changes):
    """The file with one entry of its header changed."""
    def change(head, data):
        entries = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
                   "b": {"dtype": "I8", "shape": [2], "data_offsets": [24, 26]}}
        entries["a"].update(changes)
        return header([], **entries)[0] + data

    return change


def alone(shape):
    return lambda head, data: header([], a={"dtype": "F32", "shape": shape, "data_offsets": [0, 0]})[0]


EMPTY_AND_TOO_LARGE = [[0, 1 << 63], [1 << 63, 0], [0, 1 << 40, 1 << 40], [1 << 40, 1 << 40, 0]]
BAD = {
    "nothing": lambda head, data: b"",
    "a length cut short": lambda head, data: head[:5],
    "a header cut short": lambda head, data: head[:30],
    "no data": lambda head, data: head,
    "data cut short": lambda head, data: head + data[:-1],
    "data left over": lambda head, data: head + data + b"x",
    "a header bomb": lambda head, data: struct.pack("<Q", 1 << 40) + head[8:] + data,
    "a header as large as a number": lambda head, data: struct.pack("<Q", (1 << 64) - 1) + head[8:] + data,
    "no JSON": lambda head, data: struct.pack("<Q", 9) + b"{not json" + data,
    "a list": lambda head, data: struct.pack("<Q", 2) + b"[]",
    "a key twice": lambda head, data: head.replace(b'"b"', b'"a"') + data,
    "bytes that are no text": lambda head, data: head.replace(b'"b"', b'"\xff"') + data,
    "an unknown type": entry(dtype="F99"),
    "a type that is a number": entry(dtype=7),
    "a negative shape": entry(shape=[-2, 3]),
    "a shape that overflows": entry(shape=[1 << 63, 1 << 63]),
    "a shape of another size": entry(shape=[2, 4]),
    **{f"an empty shape that overflows: {shape}": alone(shape) for shape in EMPTY_AND_TOO_LARGE},
    "a hole": entry(data_offsets=[4, 28]),
    "an overlap": entry(data_offsets=[0, 25]),
    "offsets backwards": entry(data_offsets=[24, 0]),
    "one offset": entry(data_offsets=[0]),
    "offsets past the end": entry(data_offsets=[0, 1 << 50]),
    "metadata that is no text": lambda head, data: header([("a", "U8", (1,))], {"a": 5})[0] + b"x",
}


@pytest.mark.parametrize("what", BAD)
def test_a_broken_file_is_refused_and_the_next_load_works(tmp_path, mixed, what):
    path = spoiled(tmp_path / "bad.safetensors", BAD[what])
    for call in (penstock.load_file, lambda path: penstock.safe_open(path, "pt"), penstock.stream,
                 lambda path: penstock.load_into({}, path), lambda path: penstock.torch.load(path.read_bytes())):
        with pytest.raises(penstock.Error) as caught:
            call(path)
        assert isinstance(caught.value, (ValueError, OSError)), caught.value
    assert len(penstock.load_file(mixed[0], select=["scalar"])) == 1


def test_broken_files_are_refused_where_safetensors_refuses_them(tmp_path):
    safetensors = pytest.importorskip("safetensors")
    for what, change in BAD.items():
        if "empty shape" in what:
            continue  # safetensors takes them, and leaves them to the framework
        with pytest.raises(Exception):
            safetensors.safe_open(spoiled(tmp_path / "bad", change), "np")


@pytest.mark.parametrize("shape", EMPTY_AND_TOO_LARGE)
def test_an_empty_shape_that_overflows_is_refused_in_gguf_too(tmp_path, shape):
    write_gguf(tmp_path / "bad.gguf", {}, [("a", 0, shape, b"")])
    for framework in ("pt", "np"):
        with pytest.raises(penstock.InvalidError, match='tensor "a": .* beside a dimension of 0'):
            penstock.load_file(tmp_path / "bad.gguf", framework=framework)


@pytest.mark.parametrize("shape", [[0, 1 << 40], [1 << 30, 0, 1 << 20], [0]])
def test_other_empty_shapes_are_loaded_as_the_framework_makes_them(tmp_path, shape):
    path = spoiled(tmp_path / "empty.safetensors", alone(shape))
    for framework in ("pt", "np"):
        for copy in (False, True):
            assert list(penstock.load_file(path, framework=framework, copy=copy)["a"].shape) == shape
    assert penstock.load_file(path)["a"].stride() == torch.empty(shape).stride()


def test_more_dimensions_than_numpy_has_are_refused_by_name(tmp_path):
    path = tmp_path / "deep.safetensors"
    head, size = header([("flat", "F32", (1,)), ("deep", "F32", (1,) * 64)])
    path.write_bytes(head + bytes(size))
    assert penstock.load_file(path)["deep"].dim() == 64
    most = getattr(numpy, "MAXDIMS", 64)
    for copy in (False, True):
        if most >= 64:
            assert penstock.load_file(path, framework="np", copy=copy)["deep"].ndim == 64
            continue
        with pytest.raises(penstock.UnsupportedError, match=f"'deep' has 64 dimensions.* {most}"):
            penstock.load_file(path, framework="np", copy=copy)


def test_bytes_that_are_no_model_are_called_that():
    with pytest.raises(OSError, match="^the bytes: it has 3 bytes"):
        penstock.numpy.load(b"bad")
