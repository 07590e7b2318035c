"""Layers in Python: tensors of groups, hooks of modules, and what is refused."""

import gc
import os
import pathlib
import resource
import signal
import threading
import types

import pytest

import penstock
from models import write_model

torch = pytest.importorskip("torch")

WIDTH, LAYERS = 32, 8
GROUP_BYTES = 8192  # of a layer, rounded up to pages


class Block(torch.nn.Module):
    def __init__(self, experts=0, **where):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH, **where)
        if experts:
            self.router = torch.nn.Linear(WIDTH, experts, **where)
            self.experts = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH, **where) for _ in range(experts))

    def forward(self, x):
        x = torch.tanh(self.linear(x))
        if hasattr(self, "router"):
            chosen = self.router(x).topk(2, -1).indices.unique().tolist()
            x = x + sum(self.experts[each](x) for each in chosen)
        return x


def make_model(experts=0, **where):
    torch.manual_seed(1)
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(Block(experts, **where) for _ in range(LAYERS))
    return model.eval()


def run(model, x):
    for layer in model.layers:
        x = layer(x)
    return x


@pytest.fixture
def saved(tmp_path):
    model = make_model()
    path = tmp_path / "model.safetensors"
    penstock.save_file(model.state_dict(), path)
    return model, path


def test_groups_come_as_tensors(saved):
    model, path = saved
    weights = model.state_dict()
    with penstock.Layers(path, budget=3 * GROUP_BYTES, device="cpu") as layers:
        assert layers.groups == [f"layers.{i}" for i in range(LAYERS)]
        for _ in range(3):
            for name in layers.groups:
                with layers.use(name) as tensors:
                    assert set(tensors) == {f"{name}.linear.weight", f"{name}.linear.bias"}
                    for key, tensor in tensors.items():
                        assert torch.equal(tensor, weights[key])
        report = layers.report
        assert report["hits"] + report["waits"] == 3 * LAYERS
        assert report["memory_bytes"] <= 3 * GROUP_BYTES
        assert report["groups"]["layers.0"]["loads"] >= 1
        assert "8 groups" in repr(layers)
    assert "closed" in repr(layers)


def test_hooks_run_a_module_without_weights_of_its_own(saved):
    model, path = saved
    x = torch.randn(3, WIDTH)
    empty = make_model(device="meta")
    with penstock.Layers(path, budget=3 * GROUP_BYTES, device="cpu") as layers, torch.no_grad():
        layers.attach(empty)
        for _ in range(3):
            assert torch.allclose(run(empty, x), run(model, x), atol=1e-6)
        assert empty.layers[0].linear.weight.is_meta
        assert all(each["held"] == 0 for each in layers.report["groups"].values())
    assert not empty.layers[0]._forward_pre_hooks


class Recorded:
    """The layers of the library, which hold host memory, as if they were a GPU's: the streams that they are given."""

    def __init__(self, core):
        self.core, self.acquired, self.released = core, [], []

    def acquire(self, number, stream):
        self.acquired.append(stream)
        return self.core.acquire(number, None)

    def release(self, number, stream):
        self.released.append(stream)
        self.core.release(number, 0)

    def __getattr__(self, name):
        return getattr(self.core, name)


def test_streams_are_taken_as_torch_or_cuda_names_them(saved, monkeypatch):
    model, path = saved
    x = torch.randn(3, WIDTH)
    empty = make_model(device="meta")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=77))
    with penstock.Layers(path, budget=3 * GROUP_BYTES, device="cpu") as layers, torch.no_grad():
        core = layers._core = Recorded(layers._core)
        layers._domain = "cuda:0"
        layers.acquire(0)
        layers.release(0)
        layers.acquire(0, stream=types.SimpleNamespace(cuda_stream=5))
        layers.release(0, stream=5)
        with layers.use(0, stream=0):
            pass
        with pytest.raises(TypeError, match="stream must be one of torch or CuPy.*'x'"):
            layers.acquire(0, stream="x")
        assert core.acquired == [None, 5, 0] and core.released == [77, 5, 0]
        layers.attach(empty)
        core.acquired.clear()
        assert torch.allclose(run(empty, x), run(model, x), atol=1e-6)
        assert core.acquired == LAYERS * [77], "hooks use the current stream"


def test_in_host_memory_a_stream_has_no_part(saved):
    model, path = saved
    with penstock.Layers(path, budget=3 * GROUP_BYTES, device="cpu") as layers:
        for name in 2 * layers.groups:
            with layers.use(name, stream=1) as tensors:
                assert torch.equal(tensors[f"{name}.linear.weight"], model.state_dict()[f"{name}.linear.weight"])
        layers.check()
    with pytest.raises(penstock.Error, match="closed"):
        layers.check()


def test_an_exception_is_not_hidden_by_what_closing_tells(saved):
    _, path = saved

    class Failing(Recorded):
        def close(self):
            self.core.close()
            raise penstock.TransferError("work on a stream ran without it")

    for error, body in ((penstock.TransferError, lambda: None), (ZeroDivisionError, lambda: 1 / 0)):
        with pytest.raises(error):
            with penstock.Layers(path, budget=3 * GROUP_BYTES, device="cpu") as layers:
                layers._core = Failing(layers._core)
                body()


def test_a_prefix_of_the_names_in_the_file_is_left_out(tmp_path):
    model = make_model()
    path = tmp_path / "model.safetensors"
    penstock.save_file({f"model.{name}": tensor for name, tensor in model.state_dict().items()}, path)
    x = torch.randn(3, WIDTH)
    empty = make_model(device="meta")
    with penstock.Layers(path, budget=3 * GROUP_BYTES, device="cpu") as layers, torch.no_grad():
        with pytest.raises(penstock.InvalidError, match="names no submodule"):
            layers.attach(empty)
        layers.attach(empty, prefix="model.")
        assert torch.allclose(run(empty, x), run(model, x), atol=1e-6)


def test_experts_are_acquired_by_what_the_router_chose(tmp_path):
    model = make_model(experts=6)
    path = tmp_path / "model.safetensors"
    penstock.save_file(model.state_dict(), path)
    empty = make_model(experts=6, device="meta")
    with penstock.Layers(path, budget=20 * GROUP_BYTES, device="cpu", groups="layers.*.experts.*") as layers:
        layers.attach(empty)
        for i, layer in enumerate(empty.layers):
            layers.attach_router(layer.router, [f"layers.{i}.experts.{j}" for j in range(6)], top_k=2)
        with torch.no_grad():
            for seed in range(4):
                x = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(seed))
                assert torch.allclose(run(empty, x), run(model, x), atol=1e-5)
        groups = layers.report["groups"]
        used = [name for name, each in groups.items() if each["hits"] + each["waits"]]
        assert any(".experts." in name for name in used)
        with pytest.raises(penstock.InvalidError, match="columns"):
            layers.attach_router(empty.layers[0].router, ["layers.0.experts.0"], top_k=1)
            with torch.no_grad():
                run(empty, x)


def test_groups_can_be_given_and_be_rows(saved):
    model, path = saved
    weight = model.layers[2].linear.weight
    given = {"first": ["layers.0.linear.bias"], "rows": [("layers.2.linear.weight", (4, 9))],
             "row": [("layers.2.linear.weight", 5)]}
    with penstock.Layers(path, budget="1MiB", device="cpu", groups=given) as layers:
        with layers.use("rows") as tensors:
            assert torch.equal(tensors["layers.2.linear.weight"], weight[4:9])
        with layers.use("row") as tensors:
            assert torch.equal(tensors["layers.2.linear.weight"], weight[5])
    with penstock.Layers(path, budget="1MiB", device="cpu", groups="layers.*/linear.weight") as layers:
        assert len(layers.groups) == LAYERS * (WIDTH + 1)
        with layers.use("layers.2/5") as tensors:
            assert torch.equal(tensors["layers.2.linear.weight"], weight[5])
    twice = {"a": [("layers.2.linear.weight", (0, 2)), ("layers.2.linear.weight", (4, 6))]}
    with pytest.raises(penstock.InvalidError, match="twice"):
        penstock.Layers(path, budget="1MiB", device="cpu", groups=twice)
    for rows in (WIDTH, (3, WIDTH + 1), (5, 4), -1):
        with pytest.raises(penstock.InvalidError, match="rows"):
            penstock.Layers(path, budget="1MiB", device="cpu", groups={"a": [("layers.2.linear.weight", rows)]})


def test_hints_and_pins(saved):
    _, path = saved
    with penstock.Layers(path, budget=4 * GROUP_BYTES, device="cpu", in_order=False) as layers:
        layers.hint(["layers.5", 6])
        with pytest.raises(penstock.InvalidError, match="is one name"):
            layers.hint("layers.5")
        layers.pin("layers.1")
        for _ in range(2):
            for number in range(LAYERS):
                with layers.use(number):
                    pass
        assert layers.report["groups"]["layers.1"]["loads"] == 1
        layers.unpin("layers.1")
        with pytest.raises(penstock.NoMemoryError):
            for number in range(LAYERS):
                layers.pin(number)


def test_what_is_refused(saved):
    _, path = saved
    with pytest.raises(penstock.InvalidError, match="budget"):
        penstock.Layers(path, budget=4096, device="cpu")
    with pytest.raises(penstock.InvalidError, match="budget of '1KiB', rounded down to 0 bytes .whole 4 KiB.*needs 8192"):
        penstock.Layers(path, budget="1KiB", device="cpu")
    for wrong in (-1, 1e9, float("nan")):
        with pytest.raises(penstock.InvalidError, match="timeout is"):
            penstock.Layers(path, budget="1MiB", device="cpu", timeout=wrong)
    for wrong in (None, "x", True):
        with pytest.raises(TypeError, match="timeout must be a number of seconds"):
            penstock.Layers(path, budget="1MiB", device="cpu", timeout=wrong)
    with pytest.raises(penstock.InvalidError, match="ahead is"):
        penstock.Layers(path, budget="1MiB", device="cpu", ahead=1 << 64)
    with pytest.raises(TypeError, match='cache must be "auto"'):
        penstock.Layers(path, budget="1MiB", device="cpu", cache=1)
    with pytest.raises(penstock.InvalidError, match="size"):
        penstock.Layers(path, budget="much", device="cpu")
    with pytest.raises(penstock.NotFoundError, match="pattern"):
        penstock.Layers(path, budget="1MiB", device="cpu", groups="blk.*")
    with pytest.raises(penstock.Error):
        penstock.Layers(path, budget="1MiB", device="cpu", groups={"a": ["nothing"]})
    layers = penstock.Layers(path, budget="1MiB", device="cpu")
    with pytest.raises(penstock.NotFoundError, match="no group"):
        layers.acquire("layers.9")
    with pytest.raises(penstock.NotFoundError, match="no group"):
        layers.acquire(-1)
    for wrong in (True, None):
        with pytest.raises(TypeError, match="group must be"):
            layers.acquire(wrong)
    with pytest.raises(penstock.InvalidError, match="not held"):
        layers.release(0)
    empty = make_model(device="meta")
    for top_k in (0, 2):
        with pytest.raises(penstock.InvalidError, match=f"top_k is {top_k}, and there are 1"):
            layers.attach_router(empty.layers[0], ["layers.0"], top_k)
    layers.attach(empty)
    with pytest.raises(penstock.InvalidError, match="attached already"):
        layers.attach(empty)
    layers.attach(make_model(device="meta"))  # another one
    layers.detach()
    layers.attach(empty)
    layers.close()
    with pytest.raises(penstock.Error, match="closed"):
        layers.acquire(0)
    layers.close()


def test_a_backward_pass_is_refused(saved):
    _, path = saved
    empty = make_model(device="meta")
    with penstock.Layers(path, budget="1MiB", device="cpu") as layers:
        layers.attach(empty)
        with pytest.raises(penstock.InvalidError, match="inference"):
            run(empty, torch.randn(1, WIDTH))


def test_another_model_is_refused(saved):
    _, path = saved
    other = make_model(device="meta")
    other.layers[3].linear = torch.nn.Linear(WIDTH, WIDTH + 1, device="meta")
    with penstock.Layers(path, budget="1MiB", device="cpu") as layers:
        with pytest.raises(penstock.InvalidError, match="shape"):
            layers.attach(other)
        other.layers[3].linear = torch.nn.Identity()
        with pytest.raises(penstock.InvalidError, match="no parameter"):
            layers.attach(other)


def test_a_call_within_a_call_that_fails_releases_nothing(saved):
    model, path = saved
    x = torch.randn(3, WIDTH)
    empty = make_model(device="meta")

    class Nested(Block):
        def forward(self, x):
            with pytest.raises(penstock.InvalidError, match="inference"), torch.enable_grad():
                self(x)
            return super().forward(x)

    empty.layers[3].__class__ = Nested
    with penstock.Layers(path, budget=3 * GROUP_BYTES, device="cpu") as layers, torch.no_grad():
        layers.attach(empty)
        assert torch.allclose(run(empty, x), run(model, x), atol=1e-6)
        assert all(each["held"] == 0 for each in layers.report["groups"].values())


def test_the_page_cache_is_used_as_told(saved):
    _, path = saved
    with pytest.raises(penstock.InvalidError, match="bypass"):
        penstock.Layers(path, budget="1MiB", device="cpu", cache="always")
    with penstock.Layers(path, budget=3 * GROUP_BYTES, device="cpu", cache="keep") as layers:
        for name in 2 * layers.groups:
            with layers.use(name):
                pass
        assert layers.report["failed_loads"] == 0


def test_threads_share_groups(saved):
    model, path = saved
    weights = model.state_dict()
    failures = []
    with penstock.Layers(path, budget=5 * GROUP_BYTES, device="cpu") as layers:
        def work(seed):
            random = torch.Generator().manual_seed(seed)
            for _ in range(100):
                name = layers.groups[int(torch.randint(LAYERS, (1,), generator=random))]
                with layers.use(name) as tensors:
                    if not torch.equal(tensors[f"{name}.linear.weight"], weights[f"{name}.linear.weight"]):
                        failures.append(name)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_threads_run_a_module_with_hooks(saved):
    own, name = saved
    module = make_model(device="meta")
    x = torch.randn(3, WIDTH)
    wanted, right = run(own, x).detach(), []

    def work():
        with torch.no_grad():
            right.extend(torch.equal(run(module, x), wanted) for _ in range(60))

    with penstock.Layers(name, budget=3 * GROUP_BYTES, device="cpu") as layers:
        layers.attach(module)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert right == [True] * 240
        assert not any(each["held"] for each in layers.report["groups"].values())


def test_who_is_interrupted_holds_nothing(saved):
    with penstock.Layers(saved[1], budget=2 * GROUP_BYTES, device="cpu", timeout=20) as layers:
        for group in range(2):
            layers.acquire(group)
        timers = [threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)),
                  threading.Timer(0.3, layers.release, (0,))]
        with pytest.raises(KeyboardInterrupt):
            for timer in timers:
                timer.start()
            with layers.use(5):
                pass
        for timer in timers:
            timer.join()
        assert layers.report["groups"][layers.groups[5]]["held"] == 0
        layers.release(1)


def test_tensors_keep_the_memory(saved):
    model, path = saved
    layers = penstock.Layers(path, budget="1MiB", device="cpu")
    tensor = layers.acquire(0)["layers.0.linear.weight"]
    layers.close()
    del layers
    gc.collect()
    assert torch.equal(tensor, model.layers[0].linear.weight)


@pytest.mark.skipif(bool(os.environ.get("PENSTOCK_SANITIZE")), reason="sanitizers take more memory than a limit leaves")
def test_a_budget_that_there_is_no_room_for_is_a_memory_error(tmp_path):
    path = tmp_path / "model.safetensors"
    write_model(path, [("layers.0.weight", "U8", (1 << 30,))], content=None)
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20), before[1]))
    try:
        with pytest.raises(penstock.NoMemoryError, match="budget") as caught:
            penstock.Layers(path, budget="1GiB", device="cpu")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert caught.value.code == "out_of_memory"


def test_a_forked_child_closes_quietly_and_the_parent_goes_on(saved):
    model, path = saved
    with penstock.Layers(path, budget=3 * GROUP_BYTES, device="cpu") as layers:
        layers.acquire(0)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                layers.close()
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        layers.release(0)
        with layers.use(1) as tensors:
            assert torch.equal(tensors["layers.1.linear.weight"], model.layers[1].linear.weight)


def test_a_backward_pass_that_needs_released_tensors_is_refused(saved):
    """Other tensors may be there by then."""
    path = saved[1]
    x = torch.randn(2, WIDTH, requires_grad=True)
    with penstock.Layers(path, 3 * GROUP_BYTES, device="cpu") as layers:
        y = x
        for name in layers.groups:
            with layers.use(name) as tensors:
                y = torch.nn.functional.linear(y, tensors[f"{name}.linear.weight"])
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        with layers.use(layers.groups[0]) as tensors:  # what is held is right
            z = torch.nn.functional.linear(x, tensors[f"{layers.groups[0]}.linear.weight"])
            z.sum().backward()
            assert torch.allclose(x.grad, tensors[f"{layers.groups[0]}.linear.weight"].sum(0).expand(2, -1))
        layers.pin(layers.groups[1])
        with layers.use(layers.groups[1]) as tensors:
            z = torch.nn.functional.linear(x, tensors[f"{layers.groups[1]}.linear.weight"]).sum()
        z.backward(retain_graph=True)  # it stays where it is
        layers.unpin(layers.groups[1])
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()


def test_where_all_groups_fit_a_backward_pass_finds_them(saved):
    path = saved[1]
    x = torch.randn(2, WIDTH, requires_grad=True)
    with penstock.Layers(path, "1GiB", device="cpu") as layers:
        y = x
        for name in layers.groups:
            with layers.use(name) as tensors:
                y = torch.nn.functional.linear(y, tensors[f"{name}.linear.weight"])
        y.sum().backward()
    assert x.grad.isfinite().all()


def test_debugging_shows_what_is_used_after_its_release(saved):
    path = saved[1]
    with penstock.Layers(path, 3 * GROUP_BYTES, device="cpu", debug=True) as layers:
        [first, *_] = layers.groups
        kept = layers.acquire(first)
        again = layers.acquire(first)
        layers.release(first)
        right = {name: tensor.clone() for name, tensor in penstock.load_file(path, copy=True).items()}
        assert all(torch.equal(tensor, right[name]) for name, tensor in kept.items()), "it is still held"
        layers.release(first)
        assert all(tensor.isnan().all() for held in (kept, again) for tensor in held.values())
        with layers.use(first) as tensors:
            assert all(torch.equal(tensor, right[name]) for name, tensor in tensors.items())
