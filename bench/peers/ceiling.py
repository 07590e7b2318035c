"""What this machine can do at most, where the measuring programs of the sources are not at hand.

    ceiling.py cached|cold DEVICE FILE

Plain parallel reads of a file, past the page cache when cold; for a cached file and a GPU, copies from pinned memory.
Answers each line `run SECONDS` or `sample SECONDS` on standard input with one line of JSON, as plain_read does.
"""

import json
import mmap
import os
import resource
import sys
import threading
import time

CHUNK = 2 << 20
PINNED, COPY = 256 << 20, 64 << 20


def read_for(seconds, descriptor, size, threads):
    """Threads that take chunks in order, over and over, each into memory of its own; the bytes that they read."""
    end, lock, state = time.monotonic() + seconds, threading.Lock(), {"next": 0, "bytes": 0}

    def work():
        memory, own = mmap.mmap(-1, CHUNK), 0
        while time.monotonic() < end:
            with lock:
                offset = state["next"]
                state["next"] = (offset + CHUNK) % size
            own += os.preadv(descriptor, [memory], offset)
        with lock:
            state["bytes"] += own

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return state["bytes"]


def reader(state, path):
    size = os.path.getsize(path) // CHUNK * CHUNK
    if size == 0:
        sys.exit(f"{path} is too small")
    descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECT if state == "cold" else 0))
    threads = min(16, len(os.sched_getaffinity(0))) * (4 if state == "cold" else 1)
    return lambda seconds: read_for(seconds, descriptor, size, threads)


def copier(device):
    import torch
    source = torch.empty(PINNED, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(PINNED, dtype=torch.uint8, device=device)

    def copy(seconds):
        end, done = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            for begin in range(0, PINNED, COPY):
                target[begin:begin + COPY].copy_(source[begin:begin + COPY], non_blocking=True)
            torch.cuda.synchronize(device)
            done += PINNED
        return done

    return copy


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main():
    state, device, path = sys.argv[1:]
    run = copier(device) if state == "cached" and device != "cpu" else reader(state, path)
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        cpu, start = cpu_seconds(), time.monotonic()
        done = run(float(line.split()[1]))
        print(json.dumps({"bytes": done, "seconds": time.monotonic() - start, "cpu_seconds": cpu_seconds() - cpu}),
              flush=True)


if __name__ == "__main__":
    main()
