"""What a program in Python does: fancy indexing of a memmap. Answers as the measuring programs do."""

import json
import sys
import time

import numpy


def main(file, row_bytes, output_bytes):
    table = numpy.memmap(file, dtype=numpy.uint8, mode="r")
    table = table[:len(table) // row_bytes * row_bytes].reshape(-1, row_bytes)
    numbers = numpy.random.default_rng(1).integers(0, len(table), output_bytes // row_bytes)
    memory = numpy.empty((len(numbers), row_bytes), numpy.uint8)
    memory[:] = table[numbers]
    print(json.dumps({"version": numpy.__version__}), flush=True)
    for line in sys.stdin:
        seconds = float(line.split()[1])
        gathers, start, cpu = 0, time.perf_counter(), time.process_time()
        while not gathers or time.perf_counter() - start < seconds:
            memory[:] = table[numbers]
            gathers += 1
        print(json.dumps({"bytes": gathers * memory.nbytes, "operations": gathers * len(numbers),
                          "seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
