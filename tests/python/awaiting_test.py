"""Awaited reads: what else the program does meanwhile, and what becomes of their memory."""

import asyncio
import concurrent.futures
import gc
import os
import threading

import pytest

import penstock

torch = pytest.importorskip("torch")


def is_mapped(pointer):
    with open("/proc/self/maps", encoding="ascii") as maps:
        spans = [[int(each, 16) for each in line.split()[0].split("-")] for line in maps]
    return any(begin <= pointer < end for begin, end in spans)


def replace_data(tensor):
    tensor.data = torch.empty(3, dtype=tensor.dtype)


def set_another(tensor):
    tensor.set_(torch.empty(3, dtype=tensor.dtype))


@pytest.mark.parametrize("replace", [replace_data, set_another])
@pytest.mark.parametrize("how", ["path", "store"])
def test_the_storage_of_a_tensor_stays_while_it_is_read_into(slow_context, large_file, replace, how):
    async def main():
        tensor = torch.empty(64 << 20, dtype=torch.uint8)
        begin = tensor.data_ptr()
        if how == "store":
            with penstock.open(large_file, context=slow_context) as store:
                reading = asyncio.ensure_future(store.read_into_async(tensor))
                await asyncio.sleep(0.05)
        else:
            reading = asyncio.ensure_future(slow_context.read_into_async(tensor, large_file))
            await asyncio.sleep(0.05)
        replace(tensor)
        assert not reading.done() and is_mapped(begin), "it is written now"
        reading.cancel()
        await asyncio.wait([reading])
        del reading
        assert not is_mapped(begin), "it is not kept for longer"

    asyncio.run(main())


@pytest.mark.parametrize("resize", [lambda tensor: tensor.resize_(1 << 30),
                                    lambda tensor: penstock._memory.storage_of(tensor).resize_(0)])
def test_a_tensor_that_is_read_into_is_not_resized(slow_context, large_file, resize):
    async def main():
        tensor = torch.empty(1 << 20, dtype=torch.bfloat16)
        reading = asyncio.ensure_future(slow_context.read_into_async(tensor, large_file))
        await asyncio.sleep(0.05)
        with pytest.raises(RuntimeError, match="not resizable"):
            resize(tensor)
        reading.cancel()

    asyncio.run(main())


def test_tensors_of_all_kinds_are_awaited(file, content):
    async def main():
        whole = torch.empty(1000, dtype=torch.uint8)
        parameter = torch.nn.Parameter(torch.zeros(25, 10))
        with torch.inference_mode():
            inference = torch.empty(500, dtype=torch.int16)
        shared = torch.empty(1000, dtype=torch.uint8).share_memory_()
        for target in (whole, whole[100:200], parameter, inference, shared, torch.empty(0), torch.zeros((), dtype=torch.float64)):
            await penstock.read_into_async(target, file)
            size_bytes = target.numel() * target.element_size()
            read = target.detach().clone().reshape(-1).view(torch.uint8).numpy().tobytes()
            assert read == content[:size_bytes]

    asyncio.run(main())


def test_awaited_reads_need_no_executor(file, content, tmp_path):
    """All its threads are busy here."""
    done = threading.Event()
    penstock.save_file({"a": torch.arange(9)}, tmp_path / "model")

    async def main():
        asyncio.get_running_loop().set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
        asyncio.get_running_loop().run_in_executor(None, done.wait)
        penstock.default_context().close()  # so that it is made anew
        target = bytearray(1000)
        await penstock.read_into_async(target, file, 5)
        assert target == content[5:1005]
        with penstock.open(file) as store:
            assert bytes(await store.read_async(7, 100, framework="np")) == content[7:107]
            large = await store.read_async(framework="np")
            assert large.tobytes() == content
        assert (await penstock.load_file_async(tmp_path / "model"))["a"].tolist() == list(range(9))

    async def limited():
        try:
            await asyncio.wait_for(main(), 30)
        finally:
            done.set()

    asyncio.run(limited())


@pytest.mark.parametrize("opened", [False, True])
def test_the_loop_comes_round_while_many_reads_begin(file, content, opened):
    async def main():
        with penstock.open(file) as store:
            begun = 0
            most = 0
            start = type(store._context)._start

            def counted(*arguments, **more):
                nonlocal begun
                begun += 1
                return start(*arguments, **more)

            async def watch():
                nonlocal begun, most
                while True:
                    most, begun = max(most, begun), 0
                    await asyncio.sleep(0)

            watching = asyncio.ensure_future(watch())
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(penstock.Context, "_start", counted)
                targets = [bytearray(100) for _ in range(1000)]
                await asyncio.gather(*(store.read_into_async(target, number) if opened else
                                       penstock.read_into_async(target, file, number)
                                       for number, target in enumerate(targets)))
            watching.cancel()
            assert all(target == content[number:number + 100] for number, target in enumerate(targets))
            assert 0 < most <= 64

    asyncio.run(main())


def test_a_loop_that_goes_takes_its_descriptor_along(file):
    async def main():
        await asyncio.gather(*(penstock.read_into_async(bytearray(100), file) for _ in range(10)))

    asyncio.run(main())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        asyncio.run(main())
        gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_tensor_that_is_moved_to_shared_memory_while_it_is_read_into_is_reported(file, monkeypatch):
    """As torch.multiprocessing does with tensors that it sends. Torch frees the memory that is being filled."""
    async def main():
        target = torch.empty(1 << 20, dtype=torch.uint8)
        end_of = penstock._context.AwaitedReads.end_of

        async def end_of_and_share(reads, number):
            await end_of(reads, number)  # so that nothing is written any more
            target.share_memory_()

        monkeypatch.setattr(penstock._context.AwaitedReads, "end_of", end_of_and_share)
        with penstock.open(file) as store:
            with pytest.raises(penstock.TransferError, match="moved to shared memory") as caught:
                await store.read_into_async(target)
            assert caught.value.code == "changed"
            assert (await store.read_into_async(target)).bytes == 1 << 20, "it stays where it is now"

    asyncio.run(main())
