"""A bare program that forks at random moments while its threads make their first reads. The children read as well, and
with an odd seed a signal handler does, first within the main thread's first read.

    forking.py FILE SEED CHILDREN

Prints how many children read what is in the file; the others hung, or failed.
"""

import faulthandler
import os
import random
import signal
import sys
import threading
import time

import penstock

BYTES = 4096
DEADLINE_SECONDS = 15


def read(path, expected, context=None):
    target = bytearray(BYTES)
    penstock.read_into(target, path, BYTES)
    with penstock.open(path) as store:
        store.read_into(target, 0, BYTES)
    assert target == expected, "other bytes than those of the file"


def child(path, expected):
    faulthandler.dump_traceback_later(DEADLINE_SECONDS, exit=True)
    try:
        for _ in range(3):
            read(path, expected)
        os._exit(0)
    except BaseException as error:
        print(f"in a child: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)


def main(path, seed, children):
    random_ = random.Random(seed)
    with open(path, "rb") as file:
        expected = file.read(BYTES)
    stop = threading.Event()
    failed = []

    def go_on():
        try:
            while not stop.is_set():
                read(path, expected)
        except BaseException as error:
            failed.append(error)
            raise

    def handle(*_):
        read(path, expected)

    if seed % 2:
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, random_.uniform(0.0001, 0.01), 0.01)
        read(path, expected)
    threads = [threading.Thread(target=go_on) for _ in range(4)]
    for thread in threads:
        thread.start()
    made = []
    for _ in range(children):
        time.sleep(random_.choice([0, 0.0002, 0.001, 0.003, 0.01]))
        made.append(os.fork())
        if made[-1] == 0:
            signal.setitimer(signal.ITIMER_REAL, 0)
            child(path, expected)
    read(path, expected)
    stop.set()
    for thread in threads:
        thread.join()
    signal.setitimer(signal.ITIMER_REAL, 0)
    read_all = sum(os.waitpid(each, 0)[1] == 0 for each in made)
    print(f"{read_all} of {children}")
    return 0 if read_all == children and not failed else 1


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
