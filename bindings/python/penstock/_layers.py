"""Layers: a model that is larger than the memory for it, loaded group by group ahead of its use."""

from __future__ import annotations

import contextlib
import operator
import os
import threading
from types import TracebackType
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

from . import _core
from ._arguments import natural, seconds, truth
from ._closing import Closing
from ._context import Context, context_of
from ._errors import Error, invalid, make, missing_key
from ._frameworks import Spec, about_memory
from ._frameworks import framework as framework_named
from ._memory import count_as_written, device_domain
from ._models import Model
from ._report import size_text
from ._streaming import size_in_bytes
from ._streams import stream_handle

# Of the library: of slots, and of tensors in them.
_ALIGNMENT = 4096
_TENSOR_ALIGNMENT = 256
_MOST_SECONDS = 100_000_000

# A tensor of a group: its name, or rows of it: (name, row) or (name, (begin, end)).
GroupTensor = Union[str, tuple[str, Any]]


class _Tensor(NamedTuple):
    number: int  # in the model
    rows: Optional[tuple[int, int]]
    spec: Spec


class _Made(NamedTuple):
    """Tensors at offsets in the memory."""

    offsets: list[int]
    tensors: dict[str, Any]


class Layers(Closing):
    """The tensors of a model behind a budget of memory, loaded in groups ahead of their use.

        with penstock.Layers("models/llama", budget="4GiB") as layers:
            for name in layers.groups:
                with layers.use(name) as tensors:   # {name: tensor}, waited for
                    run(tensors)

    `layers.attach(module)` does that by hooks of a torch.nn.Module. Tensors lie in the budget's memory: after the block,
    or after `release`, other tensors take their place, once torch's current stream has passed. With `stream=`, and in
    hooks, it is the stream that waits for tensors, and the program runs ahead of it; `check` tells what went wrong.

    `groups` is None (by layer), a pattern or several ("model.layers.*.mlp.experts.*"; the rest goes by layer), or a dict
    of names of tensors by the names of groups; (name, row) and (name, (begin, end)) stand for rows. Without patterns,
    groups are first expected in their order; then the order is learnt, or told by `hint`. `timeout` is how long acquire
    waits. For inference: after `release`, a backward pass that needs the tensors is refused by torch, unless they stay
    where they are (all groups fit, or the group is pinned). With `debug`, `acquire` gives copies, which `release` fills
    with NaN (integers with ones), so that a program that uses a tensor for too long shows it at once. `cache` is "auto", "keep" or "bypass", as for a Context; None: as the context does, but what is loaded for a
    second time stays in the page cache, if all groups fit into half of the memory.
    """

    def __init__(self, model: Any, budget: Union[int, str], *, device: Any = None,
                 groups: Union[None, str, Sequence[str], Mapping[str, Sequence[GroupTensor]]] = None,
                 ahead: Union[int, str] = "256MiB", timeout: float = 100.0, in_order: Optional[bool] = None,
                 cache: Optional[str] = None, debug: bool = False, context: Optional[Context] = None) -> None:
        timeout_seconds = seconds("timeout", timeout)
        if not 0 <= timeout_seconds <= _MOST_SECONDS:
            raise invalid(f"timeout is {timeout!r}", f"choose from 0 to {_MOST_SECONDS} seconds")
        if cache is not None and not isinstance(cache, str):
            raise TypeError(f'cache must be "auto", "keep", "bypass" or None, and is {cache!r}')
        self._frame = framework_named("pt")
        torch = self._frame.torch
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self._domain = device_domain(device)
        self._frame.check_device(self._domain)
        self._context = context_of(context)
        self._model = Model(model, context=context)
        given = self._given(groups)
        self._tensors = [[self._tensor(*each) for each in tensors] for _, tensors in given]
        for (name, _), tensors in zip(given, self._tensors):
            if len({each.spec[0] for each in tensors}) != len(tensors):
                raise invalid(f"groups: {name!r} has a tensor twice", "make a group of each of its parts")
        self.groups: list[str] = [name for name, _ in given]
        self._numbers = {name: number for number, name in enumerate(self.groups)}
        # Where all groups fit, no more is taken.
        slots = list(map(_slot_bytes, self._tensors))
        budget_bytes = size_in_bytes(budget) // _ALIGNMENT * _ALIGNMENT
        if slots and max(slots) > budget_bytes:
            raise invalid(f"a budget of {budget!r}, rounded down to {budget_bytes} bytes (whole 4 KiB), is smaller than the "
                          f"group {self.groups[slots.index(max(slots))]!r}, which needs {max(slots)}",
                          "raise the budget, or make the groups smaller")
        memory_bytes = min(budget_bytes, sum(slots))
        self._all_stay = memory_bytes == sum(slots)
        self._pinned: set[int] = set()
        self._debug = truth("debug", debug)
        self._lock = threading.Lock()  # guards what follows
        self._held: dict[int, int] = {}  # by group: how often it was acquired and not released
        self._copies: dict[int, _Made] = {}  # with `debug`: of groups that are held
        with self._frame.normal_mode():
            self._memory = self._allocate(memory_bytes)
        self._frame.settle(self._domain)
        plain = [(name, [(each.number, each.rows) for each in tensors]) for name, tensors in zip(self.groups, self._tensors)]
        self._core = _core.open_layers(
            self._context._core, self._model.core, plain, self._memory.data_ptr(), memory_bytes, self._domain,
            natural("ahead", size_in_bytes(ahead)), timeout_seconds, cache,
            groups is None if in_order is None else truth("in_order", in_order),
            self._memory)
        self._process = os.getpid()
        self._made: dict[int, _Made] = {}  # tensors of groups, where they were last
        self._hooks: list[Any] = []
        self._attached: list[Any] = []  # submodules that have hooks of groups

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        try:
            self.close()
        except Error:
            if kind is None:  # otherwise something is told already
                raise

    def __repr__(self) -> str:
        state = ", closed" if self._core is None else ""
        return (f"<penstock.Layers of {self._model}: {len(self.groups)} groups through "
                f"{size_text(self._memory.numel())} on {self._domain}{state}>")

    @property
    def device(self) -> Any:
        """Where the tensors are."""
        return self._memory.device

    def acquire(self, group: Union[str, int], *, stream: Any = None) -> dict[str, Any]:
        """The tensors of a group, by name. They stay until `release`.

        They are there when the call returns, for any stream; `stream` may name one, of torch or CuPy or as CUDA's handle,
        and nothing is put on it.
        """
        return dict(self._acquire(self._number(group), self._handle(stream)).tensors)

    def release(self, group: Union[str, int], *, stream: Any = None) -> None:
        """The memory may be used again when `stream`, or torch's current one, has passed what it was given so far."""
        handle = self._current_stream() if stream is None else self._handle(stream)
        core, number = self._open(), self._number(group)
        with self._lock:
            left = self._held.get(number, 1) - 1
            self._held[number] = left
            if left <= 0:
                self._held.pop(number)
                self._invalidate(number, handle)
        core.release(number, handle or 0)

    def check(self) -> None:
        """Raises if the Layers are closed; loads that fail are raised by `acquire`."""
        self._open().check()

    @contextlib.contextmanager
    def use(self, group: Union[str, int], *, stream: Any = None) -> Iterator[dict[str, Any]]:
        """acquire, and release at the end of the block."""
        tensors = self.acquire(group, stream=stream)
        try:
            yield tensors
        finally:
            self.release(group, stream=stream)

    def hint(self, groups: Sequence[Union[str, int]]) -> None:
        """The groups that are acquired next, in this order. Replaces earlier hints."""
        if isinstance(groups, str):
            raise invalid(f"groups: {groups!r} is one name", "give a list of names or numbers")
        self._open().hint([self._number(each) for each in groups])

    def pin(self, group: Union[str, int]) -> None:
        """Loads a group soon, and keeps it at one place: CUDA graphs may use it there."""
        number = self._number(group)
        self._open().pin(number)
        self._pinned.add(number)

    def unpin(self, group: Union[str, int]) -> None:
        number = self._number(group)
        core = self._open()
        with self._lock:
            self._pinned.discard(number)
            if number not in self._held:
                self._invalidate(number, None)
        core.unpin(number)

    @property
    def report(self) -> dict[str, Any]:
        """hits, waits, wait_seconds, loads, loaded_bytes and failed_loads of all; `groups` has them by name; `slots` has (bytes, slots, groups, lost slots) of each size; `memory_bytes` is what all slots
        take."""
        everything, groups, slots, memory_bytes = self._open().report()
        report = {key: everything[key] for key in
                  ("hits", "waits", "wait_seconds", "loads", "loaded_bytes", "failed_loads")}
        return {**report, "groups": dict(zip(self.groups, groups)), "slots": slots, "memory_bytes": memory_bytes}

    def attach(self, module: Any, prefix: str = "") -> None:
        """Hooks into the submodules that groups are named by: before `forward` a group is acquired and its tensors become
        the submodule's parameters, after it they are released, both in the order of torch's current stream. `prefix` is
        what names in the file have in front.

        The module's code stays as it is; its own parameters of these names need no memory (torch.device("meta")).
        """
        self._open()
        plans = [(number, self._submodule(module, name, prefix), self._places(module, number, prefix))
                 for number, name in enumerate(self.groups)]
        if any(submodule is each for _, submodule, _ in plans for each in self._attached):
            raise invalid(f"attach: this {type(module).__name__} is attached already", "detach first")
        for number, submodule, places in plans:
            self._attached.append(submodule)
            hook = _Hook(self, number, places)
            self._hooks += hook.register(submodule)

    def attach_router(self, router: Any, experts: Sequence[Union[str, int]], top_k: int) -> None:
        """Hints the experts that a router has chosen: the `top_k` largest of its output's last dimension, of all tokens,
        those that most tokens chose first. Expert i is `experts[i]`."""
        self._open()
        numbers = [self._number(each) for each in experts]
        if not 1 <= natural("top_k", top_k) <= len(numbers):
            raise invalid(f"top_k is {top_k}, and there are {len(numbers)} experts", "give a number from 1 to theirs")

        def after(_: Any, __: Any, output: Any) -> None:
            logits = output[0] if isinstance(output, tuple) else output
            if logits.shape[-1] != len(numbers):
                raise invalid(f"router: its output has {logits.shape[-1]} columns for {len(numbers)} experts",
                              "give the module whose output has one for each expert")
            chosen = logits.detach().topk(top_k, -1).indices.flatten()
            counts = chosen.bincount(minlength=len(numbers)).tolist()
            order = sorted((each for each, count in enumerate(counts) if count), key=lambda each: -counts[each])
            self._open().hint([numbers[each] for each in order])

        self._hooks.append(router.register_forward_hook(after))

    def detach(self) -> None:
        """Takes the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._attached.clear()

    def close(self) -> None:
        """Cancels loads, but for those that streams wait for, and takes hooks away. Tensors that you still have keep the
        memory, and stay as they are then. Raises what `check` would."""
        self.detach()
        self._made = {}
        if os.getpid() != self._process:  # the parent's go on
            self._core = None
        super().close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # nobody could catch it
            super().close()  # before the memory goes

    def _closed_error(self) -> Exception:
        return make("closed", 0, f"the layers of {self._model} are closed", "open them again")

    def _handle(self, stream: Any) -> Optional[int]:
        """What the library is given: in host memory no stream has a part."""
        handle = None if stream is None else stream_handle(stream)
        return None if self._domain == "host" else handle

    def _current_stream(self) -> Optional[int]:
        return None if self._domain == "host" else stream_handle(self._frame.torch.cuda.current_stream(self._domain))

    def _acquire(self, number: int, stream: Optional[int]) -> _Made:
        """The same object as the last time, if the group is still where it was."""
        offsets = self._open().acquire(number, stream)
        made = self._made.get(number)
        if made is None or made.offsets != offsets:
            specs = [each.spec for each in self._tensors[number]]
            with self._frame.normal_mode():
                tensors = dict(zip((spec[0] for spec in specs), self._frame.views(self._memory, specs, offsets)))
            made = self._made[number] = _Made(offsets, tensors)
        with self._lock:
            self._held[number] = self._held.get(number, 0) + 1
            if not self._debug:
                return made
            if number not in self._copies:
                with self._frame.normal_mode(), self._on(stream):
                    self._copies[number] = _Made(offsets, {name: tensor.clone() for name, tensor in made.tensors.items()})
            return self._copies[number]

    def _invalidate(self, number: int, stream: Optional[int]) -> None:
        """Other tensors may soon be where those of a group are. REQUIRES: the lock."""
        copied = self._copies.pop(number, None)
        if copied is not None:
            torch = self._frame.torch
            with torch.no_grad(), self._on(stream):
                for tensor in copied.tensors.values():
                    bits = tensor if tensor.dtype == torch.bool else tensor.reshape(-1).view(torch.uint8)
                    bits.fill_(True if tensor.dtype == torch.bool else 255)  # of floating point a NaN
        made = self._made.get(number)
        if made is not None and not self._all_stay and number not in self._pinned:
            for tensor in made.tensors.values():
                count_as_written(tensor)

    def _on(self, stream: Optional[int]) -> contextlib.AbstractContextManager[Any]:
        """A block whose work is put on a stream."""
        if self._domain == "host" or stream is None:
            return contextlib.nullcontext()
        cuda = self._frame.torch.cuda
        on: contextlib.AbstractContextManager[Any] = cuda.stream(cuda.ExternalStream(stream, device=self._domain))
        return on

    def _allocate(self, size_bytes: int) -> Any:
        try:
            if self._domain != "host":
                return self._frame.bytes_on(self._domain, size_bytes)
            self._frame.check_room([size_bytes])
            memory = self._frame.bytes_on("cpu", size_bytes + _ALIGNMENT)  # direct reads want whole pages
        except RuntimeError as error:
            raise about_memory(error, f"no room for a budget of {size_bytes} bytes on {self._domain}",
                               "lower the budget") from None
        begin = -memory.data_ptr() % _ALIGNMENT
        return memory[begin:begin + size_bytes]

    def _number(self, group: Union[str, int]) -> int:
        if isinstance(group, bool) or group is None:
            raise TypeError(f"group must be a name or a number, and is {group!r}")
        number = self._numbers.get(group) if isinstance(group, str) else operator.index(group)
        if number is None or not 0 <= number < len(self.groups):
            raise missing_key(f"there is no group {group!r}", "groups lists them")
        return number

    def _given(self, groups: Any) -> list[tuple[str, list[tuple[int, Any]]]]:
        """Names, and (index of the tensor, rows): a number, a pair or None."""
        if groups is None or isinstance(groups, str) or not hasattr(groups, "items"):
            patterns = [] if groups is None else [groups] if isinstance(groups, str) else list(groups)
            found = _core.layer_groups(self._model.core, patterns)
            # Patterns cut row by row.
            return [(name, [(index, None if rows is None else rows[0]) for index, rows in tensors])
                    for name, tensors in found]
        for name, tensors in groups.items():
            if isinstance(tensors, str):
                raise invalid(f"groups: that of {name!r} is one name, {tensors!r}", "give a list of names")
        return [(name, [(self._model.find(each), None) if isinstance(each, str) else (self._model.find(each[0]), each[1])
                        for each in tensors]) for name, tensors in groups.items()]

    def _tensor(self, index: int, rows: Any) -> _Tensor:
        name, dtype, shape, size_bytes = self._model.tensors[index][:4]
        if rows is None:
            spec = (name, dtype, shape, size_bytes)
            self._frame.check([spec])
            return _Tensor(index, None, spec)
        pair = (rows, rows + 1) if isinstance(rows, int) else (int(rows[0]), int(rows[1]))
        if not shape or not 0 <= pair[0] <= pair[1] <= shape[0]:
            raise invalid(f"groups: tensor {name!r} of shape {tuple(shape)} has no rows {rows!r}",
                          "give rows of its first dimension")
        part = tuple(shape[1:]) if isinstance(rows, int) else (pair[1] - pair[0], *shape[1:])
        spec = (name, dtype, part, size_bytes // max(shape[0], 1) * (pair[1] - pair[0]))
        self._frame.check([spec])
        return _Tensor(index, pair, spec)

    def _submodule(self, module: Any, name: str, prefix: str) -> Any:
        try:
            if not name.startswith(prefix):
                raise AttributeError
            return module.get_submodule(name[len(prefix):])
        except AttributeError:
            raise invalid(f"attach: group {name!r} names no submodule of {type(module).__name__}",
                          "give groups by the names of submodules, or prefix=; or acquire this one yourself") from None

    def _places(self, module: Any, number: int, prefix: str) -> list[_Place]:
        places = []
        for each in self._tensors[number]:
            name = each.spec[0]
            path, _, leaf = name[len(prefix):].rpartition(".")
            owner = self._submodule(module, prefix + path, prefix)
            if leaf not in owner._parameters and leaf not in owner._buffers:
                raise invalid(f"attach: {type(module).__name__} has no parameter {name[len(prefix):]!r}",
                              "leave the tensor out of the groups")
            kept = owner._parameters if leaf in owner._parameters else owner._buffers
            there = kept[leaf]
            if there is not None and tuple(there.shape) != tuple(each.spec[2]):
                raise invalid(f"attach: tensor {name!r} has the shape {tuple(each.spec[2])}, and its parameter "
                              f"{tuple(there.shape)}", "give the model that the file was made of")
            places.append(_Place(kept, leaf, name, there, kept is owner._parameters))
        return places


class _Place(NamedTuple):
    """Where a tensor goes in a module."""

    kept: dict[str, Any]  # the parameters or buffers of a submodule
    leaf: str
    tensor: str
    own: Any  # what is there otherwise
    is_parameter: bool


class _Hook:
    """Of one group: its tensors are parameters of the module while it runs."""

    def __init__(self, layers: Layers, number: int, places: list[_Place]) -> None:
        self._layers, self._number, self._places = layers, number, places
        self._torch = layers._frame.torch
        self._lock = threading.Lock()  # several threads may run the module
        self._depth = 0
        self._own = threading.local()  # failed: this thread's last call of `before`, and `after` was not called since
        self._made: Optional[_Made] = None
        self._values: list[Any] = []  # for the places, of these tensors

    def register(self, module: Any) -> list[Any]:
        handles = [module.register_forward_pre_hook(self.before)]
        try:
            handles.append(module.register_forward_hook(self.after, always_call=True))  # also where a call raises
            self._always = True
        except TypeError:  # before torch 2.1
            handles.append(module.register_forward_hook(self.after))
            self._always = False
        return handles

    def before(self, module: Any, inputs: Any) -> None:
        self._own.failed = True
        if self._torch.is_grad_enabled():
            raise invalid("layers are for inference: a backward pass would find other weights",
                          "run the model within torch.no_grad()")
        # Nobody can be inside with a group that has to be waited for, so the lock keeps nobody from releasing one.
        with self._lock:
            made = self._layers._acquire(self._number, self._layers._current_stream())
            self._own.failed = False
            self._depth += 1
            if made is not self._made:
                values = [self._value(place, made.tensors[place.tensor]) for place in self._places]
                self._made, self._values = made, values
            for place, value in zip(self._places, self._values):
                place.kept[place.leaf] = value

    def _value(self, place: _Place, tensor: Any) -> Any:
        return self._torch.nn.Parameter(tensor, requires_grad=False) if place.is_parameter else tensor

    def after(self, module: Any, inputs: Any, output: Any) -> None:
        failed, self._own.failed = getattr(self._own, "failed", False) and self._always, False
        with self._lock:
            if failed or self._depth == 0:
                return
            self._depth -= 1
            if self._depth == 0:
                for place in self._places:
                    place.kept[place.leaf] = place.own
            self._layers.release(self._number)


def _slot_bytes(tensors: Sequence[_Tensor]) -> int:
    """What a group takes in memory."""
    total: int = sum(-(-each.spec[3] // _TENSOR_ALIGNMENT) * _TENSOR_ALIGNMENT for each in tensors)
    return -(-max(total, 1) // _ALIGNMENT) * _ALIGNMENT
