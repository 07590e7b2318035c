"""Packed models: written and read by every way there is, and by a reader that is made from docs/packed.md alone."""

from __future__ import annotations

import json
import pathlib
import pickle
import struct

import numpy as np
import pytest

import penstock
import penstock.numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Of the page: bytes of a value, where its symbol is, and how wide, raw bits, bytes and low bytes.
DIVISIONS = {"BF16": (2, 7, 8, (), 1, 0), "F16": (2, 10, 5, (8, 9, 15), 0, 1), "F32": (4, 23, 8, (), 1, 2),
             "F8_E4M3": (1, 3, 4, (0, 1, 2, 7), 0, 0), "F8_E5M2": (1, 2, 5, (0, 1, 7), 0, 0)}
NUMBERS = {"BF16": 1, "F16": 2, "F32": 3, "F8_E4M3": 4, "F8_E5M2": 5}
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def round_up(value, to):
    return -(-value // to) * to


def crc32c(data):
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def keys(count):
    with np.errstate(over="ignore"):
        z = (np.arange(count, dtype=np.uint32) + np.uint32(1)) * np.uint32(0x9E3779B9)
        z = (z ^ z >> np.uint32(16)) * np.uint32(0x85EBCA6B)
        z = (z ^ z >> np.uint32(13)) * np.uint32(0xC2B2AE35)
        return z ^ z >> np.uint32(16)


def checksum(values, width):
    tiles = round_up(len(values), 1024) // 1024
    whole = np.zeros(tiles * 1024, values.dtype)
    whole[:len(values)] = values
    words = whole.view(np.uint32).reshape(tiles, 256 * width) + keys(256 * width)
    pairs = words.astype(np.uint64).reshape(tiles, -1, 2)
    with np.errstate(over="ignore"):
        z = (pairs[:, :, 0] * pairs[:, :, 1]).sum(axis=1, dtype=np.uint64)
        z += (np.arange(tiles, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return int((z ^ z >> np.uint64(31)).sum(dtype=np.uint64))


def planes_of(data, tiles, planes):
    """[tile, plane, value] of bits."""
    nibbles = np.frombuffer(data, np.uint8).reshape(tiles, planes, 128)
    places = np.stack([nibbles & 15, nibbles >> 4], axis=-1).reshape(tiles, planes, 1, 256)
    return (places >> np.arange(4, dtype=np.uint8)[:, None] & 1).reshape(tiles, planes, 1024)


def decode_chunk(data, dtype, number):
    width, shift, symbol_bits, raw_bits, has_byte, low_bytes = DIVISIONS[dtype]
    magic, length, values, form, k, zero, exceptions, place, wanted = struct.unpack_from("<IIIBBHIIQ", data)
    assert (magic, length, place, zero) == (0x314B4350, len(data), number, 0)
    dictionary = np.frombuffer(data[32:48], np.uint8)
    if form == 0:
        decoded = np.frombuffer(data[64:64 + values * width], WORDS[width])
    else:
        tiles, at = round_up(values, 1024) // 1024, 64
        planes = k + len(raw_bits)
        bits = planes_of(data[at:at + tiles * planes * 128], tiles, planes).astype(np.uint32)
        at += tiles * planes * 128
        code = sum((bits[:, j] << np.uint32(j) for j in range(k)), np.zeros((tiles, 1024), np.uint32))
        whole = np.zeros((tiles, 1024), np.uint32)
        for j, bit in enumerate(raw_bits):
            whole |= bits[:, k + j] << np.uint32(bit)
        if has_byte:
            byte = np.frombuffer(data[at:at + tiles * 1024], np.uint8).reshape(tiles, 1024).astype(np.uint32)
            at += tiles * 1024
            whole |= (byte & 0x80) << np.uint32(shift + 1) | (byte & 0x7F) << np.uint32(shift - 7)
        if low_bytes:
            low = np.frombuffer(data[at:at + tiles * 1024 * low_bytes], WORDS[low_bytes]).reshape(tiles, 1024)
            at += tiles * 1024 * low_bytes
            whole |= low.astype(np.uint32)
        symbols = dictionary[code].astype(np.uint32)
        if k:
            bases = np.frombuffer(data[at:at + 2 * tiles], np.uint16)
            at += round_up(2 * tiles, 16)
            listed = np.frombuffer(data[at:at + exceptions], np.uint8)
            is_exception = code == (1 << k) - 1
            assert list(np.concatenate([[0], is_exception.sum(axis=1).cumsum()[:-1]])) == list(bases)
            symbols[is_exception] = listed
        assert round_up(at + exceptions, 64) == length
        whole |= (symbols & np.uint32((1 << symbol_bits) - 1)) << np.uint32(shift)
        decoded = whole.reshape(-1)[:values].astype(WORDS[width])
    assert checksum(decoded, width) == wanted
    return decoded


def decode(data, dtype):
    magic, version, codec, number, of_chunk, values, length, chunks, crc = struct.unpack_from("<8sIIIIQQII", data)
    assert (magic, version, codec, number, of_chunk, length) == (b"PENSPACK", 1, 1, NUMBERS[dtype], 65536, len(data))
    index = data[64:64 + 4 * (chunks + 1)]
    assert crc == crc32c(data[:44] + index)
    starts = [64 * start for start in struct.unpack(f"<{chunks + 1}I", index)]
    assert starts[0] == round_up(64 + 4 * (chunks + 1), 64)
    parts = [decode_chunk(data[begin:end], dtype, i) for i, (begin, end) in enumerate(zip(starts, starts[1:]))]
    return np.concatenate(parts)


def header_of(path):
    data = pathlib.Path(path).read_bytes()
    length, = struct.unpack_from("<Q", data)
    return json.loads(data[8:8 + length])


def packed_in(path):
    """{name: (dtype, shape, bytes)} of the packed tensors of a file."""
    data = pathlib.Path(path).read_bytes()
    length, = struct.unpack_from("<Q", data)
    header = header_of(path)
    about = json.loads(header["__metadata__"].get("penstock.packed", '{"version": 1, "tensors": {}}'))
    assert about["version"] == 1 and (8 + length) % 4096 == 0
    found = {}
    for name, tensor in about["tensors"].items():
        begin, end = header[name]["data_offsets"]
        assert header[name]["dtype"] == "U8" and header[name]["shape"] == [(end - begin) // 4096, 4096]
        assert begin % 4096 == 0 and tensor["codec"] == "planes"
        found[name] = tensor["dtype"], tensor["shape"], data[8 + length + begin:8 + length + end]
    return found


def vector(dtype, exponent, count=70_000):
    """The values of the test vectors."""
    width, shift, symbol_bits, *_ = DIVISIONS[dtype]
    x, values = 1, np.zeros(count, WORDS[width])
    for i in range(count):
        high = x >> 16
        zeros = (high & -high).bit_length() - 1 if high else 16
        sign = (x >> 15 & 1) << (8 * width - 1)
        values[i] = sign | max(0, exponent - zeros) << shift | x & (1 << shift) - 1
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
    return values


def save_as(path, dtype, tensors):
    """Bits as tensors of that type, which NumPy may not have."""
    from penstock import _core
    from penstock._context import default_context

    saved = [(name, dtype, list(bits.shape), bits.ctypes.data, bits.nbytes, "host") for name, bits in tensors.items()]
    _core.save(default_context()._core, bytes(path), saved, None, 4096, False, False, True, None)


def vectors_on_the_page():
    lines = (ROOT / "docs/packed.md").read_text().split("## Test vectors")[1].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in rows if row[0] in DIVISIONS]


@pytest.mark.parametrize("dtype, exponent", [("BF16", 126), ("F16", 20), ("F32", 126), ("F8_E4M3", 13), ("F8_E5M2", 20)])
def test_the_vectors_on_the_page_are_what_is_written(tmp_path, dtype, exponent):
    values = vector(dtype, exponent)
    path = tmp_path / "v.safetensors"
    save_as(path, dtype, {"v": values})
    [(_, shape, data)] = packed_in(path).values()
    assert shape == [70_000]
    starts = struct.unpack_from("<3I", data, 64)
    heads = [struct.unpack_from("<IIIBBHIIQ", data, 64 * start) for start in starts[:2]]
    row = [dtype, str(exponent), str(len(data)), ", ".join(str(head[4]) for head in heads),
           ", ".join(str(head[6]) for head in heads), f"`{heads[0][8]:016x}`", f"`{crc32c(data):08x}`"]
    assert row in vectors_on_the_page(), "| " + " | ".join(row) + " |"
    assert np.array_equal(decode(data, dtype), values)


PATTERNS = {
    "equal": lambda i, mask, random: np.full(len(i), 77),
    "different": lambda i, mask, random: i,
    "alternating": lambda i, mask, random: np.where(i % 2 == 0, 0, mask),
    "not_numbers": lambda i, mask, random: np.full(len(i), mask),
    "two_in_a_tile": lambda i, mask, random: np.where(i % 1024 < 2, 1, 2),
    "skewed": lambda i, mask, random: 100 - random.geometric(0.5, len(i)),
}


@pytest.mark.parametrize("dtype", DIVISIONS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_reader_made_from_the_page_reads_what_is_written(tmp_path, dtype, pattern):
    width, shift, symbol_bits, *_ = DIVISIONS[dtype]
    random = np.random.default_rng(7)
    i = np.arange(200_001)
    mask = (1 << symbol_bits) - 1
    exponents = PATTERNS[pattern](i, mask, random).astype(np.uint32) & np.uint32(mask)
    noise = random.integers(0, 1 << 32, len(i), dtype=np.uint32)
    bits = (noise & ~np.uint32(mask << shift) | exponents << np.uint32(shift)).astype(WORDS[width])
    path = tmp_path / "p.safetensors"
    save_as(path, dtype, {"p": bits})
    for name, (_, shape, data) in packed_in(path).items():
        assert np.array_equal(decode(data, dtype), bits)
    [(_, loaded)] = penstock.deserialize(path.read_bytes())
    assert loaded["dtype"] == dtype and loaded["shape"] == [200_001]
    assert bytes(loaded["data"]) == bits.tobytes()


@pytest.fixture
def weights():
    random = np.random.default_rng(21)
    return {"layers.0.w": random.normal(0, 0.02, (512, 300)).astype(np.float16),
            "layers.1.w": random.normal(0, 0.02, (400, 300)).astype(np.float32),
            "noise": random.integers(0, 1 << 16, 50_000, dtype=np.uint16).view(np.float16),
            "ids": np.arange(1000), "one": np.float32([1.5])}


@pytest.fixture
def path(tmp_path, weights):
    name = tmp_path / "packed.safetensors"
    penstock.numpy.save_file(weights, name, {"format": "np"}, packed=True)
    return name


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def test_tensors_come_back(path, weights):
    tensors = penstock.numpy.load_file(path)
    assert set(tensors) == set(weights)
    assert all(same(tensors[name], value) for name, value in weights.items())
    assert tensors.metadata["format"] == "np"
    report = tensors.report
    packed = sum(weights[name].nbytes for name in ("layers.0.w", "layers.1.w"))
    assert report.packed_bytes == packed and 0 < report.stored_bytes < 0.95 * packed
    assert report.read_bytes < report.wanted_bytes
    assert "unpacked" in str(report)
    assert path.stat().st_size < sum(value.nbytes for value in weights.values())


def test_metadata_of_a_packed_file_makes_no_other_file_packed(path, weights, tmp_path):
    other = tmp_path / "plain.safetensors"
    for save in (penstock.save_file, penstock.numpy.save_file):
        save(weights, other, metadata=header_of(path)["__metadata__"])
        tensors = penstock.numpy.load_file(other)
        assert all(same(tensors[name], value) for name, value in weights.items())
        assert header_of(other)["__metadata__"] == {"format": "np"}


def test_mapping_leaves_packed_tensors_out(path, weights):
    for options in ({}, {"copy": True}, {"share": True}):
        tensors = penstock.numpy.load_file(path, **options)
        assert all(same(tensors[name], value) for name, value in weights.items()), options


def test_slices(path, weights):
    with penstock.safe_open(path, "np") as file:
        assert file.get_slice("layers.0.w").get_dtype() == "F16"
        assert file.get_slice("layers.0.w").get_shape() == [512, 300]
        for index in (np.s_[:], np.s_[3], np.s_[200:300], np.s_[:, 5:9], np.s_[::7], np.s_[-1:, ::2], np.s_[5:5]):
            assert same(np.ascontiguousarray(file.get_slice("layers.0.w")[index]),
                        np.ascontiguousarray(weights["layers.0.w"][index])), index
        assert all(same(file.get_tensor(name), value) for name, value in weights.items())


def test_parts_for_ranks(path, weights):
    parts = [penstock.load_file(path, framework="np", select="layers.1.w",
                                slices={"layers.1.w": (1, slice(rank * 100, rank * 100 + 100))})["layers.1.w"]
             for rank in range(3)]
    assert same(np.concatenate(parts, axis=1), weights["layers.1.w"])


def test_stream_and_load_into(path, weights):
    streamed = dict(penstock.stream(path, framework="np"))
    assert all(same(streamed[name], value) for name, value in weights.items())
    targets = {name: np.zeros_like(value) for name, value in weights.items()}
    report = penstock.load_into(targets, path)
    assert all(same(targets[name], value) for name, value in weights.items())
    assert report.packed_bytes > report.stored_bytes > 0


def test_verify(path):
    [checked] = penstock.verify(path)
    assert checked.verdict == "right", checked
    data = bytearray(path.read_bytes())
    data[4096 + 20_000] ^= 1
    path.write_bytes(data)
    [checked] = penstock.verify(path)
    assert checked.verdict == "wrong" and len(checked.wrong_tensors) == 1
    with pytest.raises(OSError, match=r"layers.*chunk \d+ of \d+, at byte \d+"):
        penstock.numpy.load_file(path)


def test_other_readers_see_bytes(path):
    safetensors = pytest.importorskip("safetensors.numpy")
    tensors = safetensors.load_file(path)
    assert tensors["layers.0.w"].dtype == np.uint8 and tensors["layers.0.w"].shape[1] == 4096
    assert tensors["ids"].tolist() == list(range(1000))


def test_torch_types_come_back(tmp_path):
    torch = pytest.importorskip("torch")
    import penstock.torch

    weights = {"bf16": torch.randn(300, 500).mul(0.02).to(torch.bfloat16), "f32": torch.randn(100_000)}
    weights["bf16"][3, 5] = float("nan")
    weights["bf16"][4, 5] = -0.0
    path = tmp_path / "t.safetensors"
    penstock.torch.save_file(weights, path, packed=True)
    assert path.stat().st_size < 0.85 * sum(value.numel() * value.element_size() for value in weights.values())
    for name, value in penstock.torch.load_file(path).items():
        assert value.dtype == weights[name].dtype
        assert torch.equal(value.view(torch.uint8), weights[name].view(torch.uint8))


def test_a_model_of_transformers_has_equal_logits(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=128, vocab_size=3000, n_positions=64)
    model = transformers.GPT2LMHeadModel(config).to(torch.bfloat16).eval()
    model.save_pretrained(tmp_path / "plain", safe_serialization=True)
    saved = penstock.load_file(tmp_path / "plain", framework="pt")
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed/config.json").write_bytes((tmp_path / "plain/config.json").read_bytes())
    penstock.save_file(saved, tmp_path / "packed/model.safetensors", {"format": "pt"}, packed=True)
    assert packed_in(tmp_path / "packed/model.safetensors")
    tokens = torch.arange(40)[None]
    penstock.patch()
    try:
        packed = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "packed", torch_dtype=torch.bfloat16).eval()
    finally:
        penstock.unpatch()
    with torch.no_grad():
        assert torch.equal(packed(tokens).logits, model(tokens).logits)


def rewritten(path, change):
    """The file with another header of the same length."""
    data = path.read_bytes()
    length, = struct.unpack_from("<Q", data)
    header = header_of(path)
    change(header)
    path.write_bytes(data[:8] + json.dumps(header).encode().ljust(length) + data[8 + length:])
    assert path.stat().st_size == len(data)


def set_version(header):
    header["__metadata__"]["penstock.packed"] = header["__metadata__"]["penstock.packed"].replace('n":1', 'n":2')


def cut_metadata(header):
    header["__metadata__"]["penstock.packed"] = header["__metadata__"]["penstock.packed"][:-1]


def flip_a_bit_of_the_key(header):
    header["__metadata__"]["penstock.qacked"] = header["__metadata__"].pop("penstock.packed")


def keep_everything(header):
    pass


@pytest.fixture
def patched():
    pytest.importorskip("safetensors")
    penstock.patch()
    yield
    penstock.unpatch()


@pytest.mark.parametrize("change, problem", [
    (set_version, "version 2"), (cut_metadata, r'metadata "penstock\.packed"'),
    (flip_a_bit_of_the_key, r'metadata "penstock\.qacked" should be "penstock\.packed"')])
def test_what_penstock_refuses_does_not_come_as_bytes(patched, path, change, problem):
    import safetensors.numpy

    rewritten(path, change)
    for load in (lambda: penstock.numpy.load_file(path), lambda: penstock.safe_open(path, "np"),
                 lambda: penstock.verify(path)):
        with pytest.raises(penstock.Error, match=problem):
            load()
    for load in (lambda: safetensors.numpy.load_file(path), lambda: safetensors.numpy.load(path.read_bytes()),
                 lambda: safetensors.safe_open(path, "np")):
        with pytest.raises(safetensors.SafetensorError, match=problem):
            load()


@pytest.mark.parametrize("change", [keep_everything, flip_a_bit_of_the_key])
def test_a_framework_that_penstock_does_not_know_gets_no_bytes(patched, path, change):
    import safetensors

    rewritten(path, change)
    with pytest.raises(safetensors.SafetensorError, match="is packed, and Penstock does not load it for framework 'flax'"):
        safetensors.safe_open(path, "flax")
    with pytest.raises(safetensors.SafetensorError, match="framework 'mlx', device 'mps'"):
        safetensors.safe_open(str(path), device="mps", framework="mlx")


def test_a_device_that_penstock_does_not_know_gets_no_bytes(patched, path):
    pytest.importorskip("torch")
    import safetensors.torch

    with pytest.raises(safetensors.SafetensorError, match="is packed, and Penstock does not load it for device 'meta'"):
        safetensors.torch.load_file(path, device="meta")


def test_a_type_that_the_framework_does_not_have_does_not_come_as_bytes(patched, tmp_path):
    import safetensors

    path = tmp_path / "f8.safetensors"
    save_as(path, "F8_E5M2", {"v": vector("F8_E5M2", 20)})
    assert packed_in(path)
    with safetensors.safe_open(path, "np") as file:
        with pytest.raises(safetensors.SafetensorError, match="F8_E5M2"):
            file.get_tensor("v")
        with pytest.raises(safetensors.SafetensorError, match="does not contain tensor nothing"):
            file.get_tensor("nothing")


def test_slices_are_of_the_weights_where_safetensors_has_other_rules(patched, path, weights):
    import safetensors

    with safetensors.safe_open(path, "np") as file:
        for name, index in (("layers.0.w", np.s_[::7]), ("layers.0.w", np.s_[:, 3:1]), ("layers.1.w", np.s_[[1, 5]])):
            assert np.array_equal(file.get_slice(name)[index], weights[name][index]), (name, index)


def test_a_process_that_is_not_patched_opens_what_was_pickled(path, weights):
    safetensors = pytest.importorskip("safetensors")
    penstock.patch()
    try:
        pickled = pickle.dumps(safetensors.safe_open(path, "np"))
    finally:
        penstock.unpatch()
    assert same(pickle.loads(pickled).get_tensor("layers.0.w"), weights["layers.0.w"])


def test_metadata_has_nothing_that_is_only_true_of_the_file(path, weights, tmp_path):
    checked = tmp_path / "checked.safetensors"
    penstock.numpy.save_file(weights, checked, {"format": "np"}, checksums=True)
    for name in (path, checked):
        assert penstock.numpy.load_file(name).metadata == {"format": "np"}
        with penstock.safe_open(name, "np") as file:
            assert file.metadata() == {"format": "np"}
    assert [each.verdict for each in penstock.verify(checked)] == ["right"]


def test_metadata_that_another_program_copied_is_named(path, weights, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    with safetensors.safe_open(path, "np") as file:
        metadata = file.metadata()
    other = tmp_path / "plain.safetensors"
    for kept in (weights, {"ids": weights["ids"]}):
        safetensors.save_file(kept, other, metadata)
        with pytest.raises(ValueError, match="that of a packed file, but no tensor here is packed: .*save the tensors"):
            penstock.numpy.load_file(other)
