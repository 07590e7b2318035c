"""A model whose embedding table stays on disk: only the rows of the tokens at hand are read.

    embedding_on_disk.py [FOLDER]

Makes a small language model with a large table, saves it, loads all but the table, and compares. Runs on the CPU, or on
a GPU where torch has one. Needs torch.
"""

import importlib.util
import os
import sys
import tempfile

import penstock

VOCABULARY, WIDTH = 20_000, 64


def make_model(torch):
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(),
                               torch.nn.Linear(WIDTH, 8))


def main(folder):
    import torch

    path = os.path.join(folder, "model.safetensors")
    whole = make_model(torch).eval()
    penstock.save_file(whole.state_dict(), path)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    # All weights but the table, which is by far the largest.
    weights = penstock.load_file(path, device, "pt", select=lambda name: name != "0.weight")
    model = make_model(torch).eval()
    model[0] = penstock.nn.Embedding(path, "0.weight")
    model.load_state_dict(weights)
    model.to(device)

    tokens = torch.randint(VOCABULARY, (2, 16))
    with torch.no_grad():
        got = model(tokens.to(device)).cpu()
        expected = whole(tokens)
    assert torch.allclose(got, expected, atol=1e-5)
    report = model[0].table.report
    print(f"{tokens.numel()} tokens took {report.bytes} of the {VOCABULARY * WIDTH * 4} bytes of the table, "
          f"in {report.seconds * 1e6:.0f} µs")


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        print("skipped: torch is not installed")
        sys.exit(77)
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as made:
            main(made)
