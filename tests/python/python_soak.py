"""What scripts/soak.sh tries for longer: forks at random moments, and awaited reads whose tensors get another storage while
an executor is busy.

    python_soak.py ROUNDS

Prints what it did; ends with 1 if a child hung or failed, or if a read gave wrong bytes or ended the process.
"""

import asyncio
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).parent
CHILDREN = 12
FILE_BYTES = 32 << 20


def read_beside_changes(path, seed):
    """In a process of its own, since what is tried here may end it."""
    import torch

    import penstock

    with open(path, "rb") as file:
        content = file.read()
    random_ = random.Random(seed)
    right = 0

    def change(tensor):
        kind = random_.randrange(5)
        if kind == 0:
            tensor.data = torch.empty(random_.randrange(1, 1000), dtype=torch.uint8)
        elif kind == 1:
            tensor.set_(torch.empty(3, dtype=torch.uint8))
        elif kind == 2:
            try:
                tensor.resize_(2 * tensor.numel())
            except RuntimeError:
                pass
        elif kind == 3:
            try:
                penstock._memory.storage_of(tensor).resize_(0)
            except RuntimeError:
                pass

    async def one(store):
        nonlocal right
        size = random_.choice([1, 4096, 100_000, 1 << 20, 8 << 20])
        offset = random_.randrange(FILE_BYTES - size)
        tensor = torch.empty(size, dtype=torch.uint8)
        kept = tensor.detach()
        reading = asyncio.ensure_future(store.read_into_async(tensor, offset) if random_.random() < 0.5 else
                                        penstock.read_into_async(tensor, path, offset))
        await asyncio.sleep(random_.choice([0, 0, 0.0001, 0.001]))
        change(tensor)
        if random_.random() < 0.2:
            reading.cancel()
        try:
            await asyncio.wait_for(reading, 60)
            if kept.numpy().tobytes() == content[offset:offset + size]:
                right += 1
        except asyncio.CancelledError:
            right += 1

    async def main():
        busy = threading.Event()
        for _ in range(40):
            asyncio.get_running_loop().run_in_executor(None, busy.wait)
        try:
            with penstock.open(path) as store:
                for _ in range(20):
                    await asyncio.gather(*(one(store) for _ in range(20)))
        finally:
            busy.set()

    asyncio.run(main())
    assert right == 400, right


def main(rounds):
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "data")
        with open(path, "wb") as file:
            file.write(os.urandom(FILE_BYTES))
        programs = [lambda seed: [HERE / "forking.py", path, str(seed), str(CHILDREN)],
                    lambda seed: [__file__, "--read", path, str(seed)]]
        for seed in range(rounds):
            for program in programs:
                command = [sys.executable, "-B", "-W", "ignore", *program(seed)]
                try:
                    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
                    wrong = done.stderr or f"ended with {done.returncode}" if done.returncode else ""
                except subprocess.TimeoutExpired:
                    wrong = "hung"
                if wrong:
                    failed += 1
                    print(f"seed {seed}: {' '.join(map(str, command[4:]))}: {wrong}", flush=True)
    print(f"{rounds * CHILDREN} forks and {rounds * 400} awaited reads, {failed} of {2 * rounds} programs failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        read_beside_changes(sys.argv[2], int(sys.argv[3]))
    elif len(sys.argv) == 2:
        sys.exit(main(int(sys.argv[1])))
    else:
        sys.exit(__doc__)
