"""Programs that use safetensors, unchanged: its functions are replaced by ours, and so transformers and diffusers load
through Penstock."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence

from . import _errors
from ._arguments import truth
from ._context import Context, context_of
from ._memory_file import deserialize as our_deserialize
from ._models import Tensors, how_to_map
from ._packed import is_packed
from ._safe_open import Slice
from ._safe_open import safe_open as ours

OPENED = "filename", "framework", "device"
FILE = "filename", "device"
MODULE = "model", "filename", "strict", "device"
# What safetensors may judge otherwise, or in words that programs look for.
JUDGED_TWICE = _errors.InvalidError, _errors.NotFoundError, _errors.UnsupportedError

Pairs = list[tuple[Any, Any]]  # what safetensors has, and what stands in its place
_replaced: Pairs = []
_count = itertools.count()


class Patched:
    """What patch() returns: at the end of a `with` block all is as it was before."""

    def __init__(self, before: Optional[dict[str, Any]]) -> None:
        self._before = before  # options that were in force; None: it was not patched

    def __enter__(self) -> Patched:
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._before is None:
            unpatch()
        else:
            _watcher.options.update(self._before)


def patch(*, share: Optional[bool] = None, own_storage: bool = True, copy: bool = False,
          context: Optional[Context] = None) -> Patched:
    """Replaces safe_open, deserialize, load_file, load, save_file, save, load_model and save_model of safetensors, also
    where they were imported by name. Used with `with`, until the end of the block.

    Other frameworks and devices still go to safetensors, packed files apart: it would give bytes for weights. Errors are
    of safetensors' classes, with its words; `message` and `hint` have Penstock's. Each tensor has its own storage, as
    with safetensors, because some programs compare storages. Tensors on the CPU share the page cache: workers that load
    the same file have one copy of it.

    The options are those of penstock.safe_open, for every file that is opened: `share=False` copies instead, as does
    `copy=True`. If safetensors is already patched, they replace those that were given before.
    """
    share = not copy if share is None else share
    how_to_map(copy, share)  # refuses what excludes each other
    options = {"share": share, "own_storage": truth("own_storage", own_storage), "copy": copy, "context": context}
    if context is not None:
        context_of(context)  # refuses what is none
    if _watcher in sys.meta_path:
        before = dict(_watcher.options)
        _watcher.options.update(options)
        return Patched(before)
    if _first in sys.meta_path:  # or the import below would patch before we do
        sys.meta_path.remove(_first)
    import safetensors  # noqa: F401

    _watcher.options.update(options)
    sys.meta_path.insert(0, _watcher)
    for name in PAIRS:
        if name in sys.modules:
            _replace(name)
    return Patched(None)


def unpatch() -> None:
    """Puts back what patch() replaced."""
    if _watcher in sys.meta_path:
        sys.meta_path.remove(_watcher)
    _swap({id(ours): theirs for theirs, ours in _replaced})
    _replaced.clear()


def patch_when_imported() -> None:
    """Patches once a program imports safetensors: for PENSTOCK_PATCH, which many processes may have that never do."""
    if "safetensors" in sys.modules:
        patch()
    elif _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _first)


class Watcher:
    """Looks out for modules of safetensors that are imported later: torch is not imported for their sake."""

    def __init__(self, names: Sequence[str], loaded: Callable[[str], None]) -> None:
        self.options: dict[str, Any] = {}
        self._names, self._loaded = names, loaded

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._names:
            return None
        for finder in sys.meta_path:
            spec = None if isinstance(finder, Watcher) else finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            if module.__name__ == name:
                self._loaded(name)

        loader.exec_module = exec_module
        return spec


def _patch_at_last(_: str) -> None:
    if _first in sys.meta_path:
        patch()


def _replace(module: str) -> None:
    pairs = PAIRS[module](_watcher.options)
    _replaced.extend(pairs)
    _swap({id(theirs): ours for theirs, ours in pairs})


def _opening_pairs(options: Mapping[str, Any]) -> Pairs:
    import safetensors

    return [
        (safetensors.safe_open, _safe_open(safetensors.safe_open, options)),
        (safetensors.deserialize, _deserializing(safetensors.deserialize)),
    ]


def _numpy_pairs(options: Mapping[str, Any]) -> Pairs:
    import safetensors.numpy as theirs

    from . import numpy as ours

    return [
        (theirs.load_file, _fitting(theirs.load_file, ours.load_file, FILE, options)),
        (theirs.load, _loading_bytes(theirs.load, ours.load)),
        (theirs.save_file, _saving(theirs.save_file, ours.save_file, "tensor_dict")),
        (theirs.save, _saving_bytes(theirs.save, ours.save)),
    ]


def _torch_pairs(options: Mapping[str, Any]) -> Pairs:
    import safetensors.torch as theirs

    from . import torch as ours

    return [
        (theirs.load_file, _fitting(theirs.load_file, ours.load_file, FILE, options)),
        (theirs.load, _loading_bytes(theirs.load, functools.partial(ours.load, own_storage=True))),
        (theirs.save_file, _saving(theirs.save_file, ours.save_file, "tensors")),
        (theirs.save, _saving_bytes(theirs.save, ours.save)),
        (theirs.load_model, _fitting(theirs.load_model, ours.load_model, MODULE, options)),
        (theirs.save_model, _saving(theirs.save_model, ours.save_model, "model")),
    ]


PAIRS = {"safetensors": _opening_pairs, "safetensors.numpy": _numpy_pairs, "safetensors.torch": _torch_pairs}
_watcher = Watcher(list(PAIRS), _replace)
_first = Watcher(["safetensors"], _patch_at_last)


def _swap(replacements: dict[int, Any]) -> None:
    """In modules, and in the classes that they define: a function kept there by name is found as well."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "penstock" or not hasattr(module, "__dict__"):
            continue
        for key, value in list(vars(module).items()):
            if id(value) in replacements:
                setattr(module, key, replacements[id(value)])
            elif issubclass(type(value), type) and value.__module__ == name:  # isinstance() would run code of theirs
                _swap_in_class(value, replacements)


def _swap_in_class(class_: type, replacements: dict[int, Any]) -> None:
    for key, value in list(vars(class_).items()):
        held = value.__func__ if isinstance(value, staticmethod) else value
        if id(held) in replacements:
            new = replacements[id(held)]
            try:
                setattr(class_, key, staticmethod(new) if isinstance(value, staticmethod) else new)
            except (AttributeError, TypeError):  # a class that can't be changed
                return


def _fitting(theirs: Callable[..., Any], ours: Callable[..., Any], names: Sequence[str],
             options: Mapping[str, Any]) -> Callable[..., Any]:
    """Ours, where a file and a place are given that we have; else theirs. `names` are those of the arguments."""

    @functools.wraps(theirs)
    def choose(*arguments: Any, **named: Any) -> Any:
        given = {**dict(zip(names, arguments)), **named}
        if not _fits(given):
            _refuse_packed(given)
            return theirs(*arguments, **named)
        return _ours_or_theirs(lambda: _plain(ours(*arguments, **named, **options)),
                               lambda: theirs(*arguments, **named), lambda: is_packed(given["filename"]))

    return choose


def _loading_bytes(theirs: Callable[[Any], Any], ours: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(theirs)
    def load(data: Any) -> Any:
        return _ours_or_theirs(lambda: _plain(ours(data)), lambda: theirs(data), lambda: is_packed(data))

    return load


def _ours_or_theirs(ours: Callable[[], Any], theirs: Callable[[], Any],
                    packed: Callable[[], bool] = lambda: False) -> Any:
    """Theirs is asked about what ours takes for wrong: it is less strict with files. If it refuses too, it has the
    words. It is not asked about what is packed."""
    try:
        return ours()
    except _errors.Error as error:
        if not isinstance(error, JUDGED_TWICE) and error.code != "truncated" or packed():
            raise _of_theirs(error) from None
        mine = error
    try:
        return theirs()
    except Exception as error:
        raise _worded(mine, error) from None


def _of_theirs(error: _errors.Error) -> _errors.Error:
    """A SafetensorError, which is what they raise for files that can't be read."""
    import safetensors

    return error if isinstance(error, MemoryError) else _errors.as_joined(error, safetensors.SafetensorError)


def _worded(mine: _errors.Error, theirs: Exception) -> Exception:
    """Our error with their words, and a SafetensorError just where theirs is one. Where it is of another class than
    theirs, theirs with ours as its cause."""
    import safetensors

    if isinstance(theirs, safetensors.SafetensorError):
        mine = _of_theirs(mine)
    if isinstance(mine, (type(theirs), safetensors.SafetensorError)):
        mine.words = theirs.words if isinstance(theirs, _errors.Error) and theirs.words else str(theirs)
        return mine
    theirs.__cause__ = mine
    return theirs


def _plain(loaded: Any) -> Any:
    """As theirs gives it: there are programs that take no other dict for one."""
    return dict(loaded) if isinstance(loaded, Tensors) else loaded


def _safe_open(theirs: type, options: Mapping[str, Any]) -> type:
    """A class, as theirs is: programs ask whether something is one, and write it into their types."""

    class Opening(type):
        def __call__(cls, *arguments: Any, **named: Any) -> Any:
            given = {**dict(zip(OPENED, arguments)), **named}
            if not _fits(given):
                _refuse_packed(given)
                return theirs(*arguments, **named)

            def reopen() -> Any:
                return theirs(*arguments, **named)

            def opened() -> Any:
                file = super(Opening, cls).__call__(*arguments, **named, **options)
                file._reopen = reopen
                return file

            return _ours_or_theirs(opened, reopen, lambda: is_packed(given["filename"]))

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, (ours, theirs))

    return Opening("safe_open", (_Asking,), {"__doc__": theirs.__doc__, "__module__": "safetensors"})


class _Asking(ours):
    """What is wrong with a name or an index is said by safetensors, which is asked the same."""

    _reopen: Callable[[], Any]

    def _check_open(self) -> Any:
        try:
            return super()._check_open()
        except _errors.StateError as error:
            closed = _of_theirs(error)
            closed.words = "File is closed"
            raise closed from None

    def get_tensor(self, name: str) -> Any:
        return _ours_or_theirs(lambda: ours.get_tensor(self, name), lambda: self._reopen().get_tensor(name),
                               lambda: name in self._model.by_name and self._is_packed(name))

    def _is_packed(self, name: str) -> bool:
        return self._model.tensor(self._model.find(name)).packing != ""

    def get_slice(self, name: str) -> Any:
        try:
            found: Any = ours.get_slice(self, name)
        except _errors.Error:
            found = _ours_or_theirs(lambda: ours.get_slice(self, name), lambda: self._reopen().get_slice(name))
        if isinstance(found, Slice) and not self._is_packed(name):
            found.ask = functools.partial(self._ask, name, found)
        return found

    def _ask(self, name: str, found: Slice, index: Any, mine: Callable[[], Any]) -> Any:
        reopen = self._reopen

        def theirs() -> Any:
            return reopen().get_slice(name)[index]

        # Torch's tensors are indexed by torch there too, if they are mapped; others by rules of its own.
        by_rules = self._frame.name == "np" or self._backend == "pread"
        if by_rules and not _plain_index(index, found.get_shape()):
            return theirs()
        return _ours_or_theirs(mine, theirs)


def _plain_index(index: Any, shape: Sequence[int]) -> bool:
    """Whether safetensors' own indexing surely takes it: numbers, and slices forward, within the shape."""
    given = index if isinstance(index, tuple) else (index,)
    return len(given) <= len(shape) and all(
        isinstance(each, slice) and each.step in (None, 1)
        and 0 <= (each.start or 0) <= (length if each.stop is None else each.stop) <= length
        or type(each) is int and -length <= each < length for each, length in zip(given, shape))


def _fits(given: dict[str, Any]) -> bool:
    filename = given.get("filename")  # safetensors takes no directory, and says so in its own words
    return isinstance(filename, (str, os.PathLike)) and not os.path.isdir(filename) and \
        all(_is_ours(given[key]) for key in ("framework", "device") if key in given)


def _refuse_packed(given: dict[str, Any]) -> None:
    if is_packed(given.get("filename")):
        wanted = ", ".join(f"{key} {str(given[key])!r}" for key in ("framework", "device")
                           if key in given and not _is_ours(given[key]))
        raise _of_theirs(_errors.make(
            "unsupported", 0, f"{given['filename']} is packed, and Penstock does not load it for {wanted}",
            "load it with torch or NumPy to the CPU or a CUDA device, or run `penstock unpack` in a shell"))


def _is_ours(place: Any) -> bool:
    """A framework or a device, by whatever name; no device is the CPU."""
    name = f"cuda:{place}" if isinstance(place, int) else str(place)
    return place is None or name in ("pt", "torch", "pytorch", "np", "numpy", "cpu") or name.partition(":")[0] == "cuda"


def _saving(theirs: Callable[..., Any], ours: Callable[..., Any], name: str) -> Callable[..., None]:
    """Ours, where all that is saved lies where we can reach it; else theirs. `name` is that of the first argument."""
    names = name, "filename", "metadata", "force_contiguous"

    @functools.wraps(theirs)
    def save(*arguments: Any, **named: Any) -> None:
        given = {**dict(zip(names, arguments)), **named}
        if "filename" not in given or not _is_saved_here(given.get(name)):
            theirs(*arguments, **named)
            return
        # As safetensors leaves it: written, and synced when the system likes.
        with _beside_link(given["filename"]) as filename:
            _ours_or_theirs(lambda: ours(**{**given, "filename": filename}, durable=False),
                            lambda: theirs(*arguments, **named))

    return save


def _saving_bytes(theirs: Callable[..., bytes], ours: Callable[..., bytes]) -> Callable[..., bytes]:
    @functools.wraps(theirs)
    def save(tensors: Any, metadata: Any = None) -> bytes:
        if not _is_saved_here(tensors):
            return theirs(tensors, metadata)
        saved: bytes = _ours_or_theirs(lambda: ours(tensors, metadata), lambda: theirs(tensors, metadata))
        return saved

    return save


def _deserializing(theirs: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Theirs copies the bytes once, and ours twice: it is only needed where they are packed."""
    @functools.wraps(theirs)
    def deserialize(bytes: Any) -> Any:
        if not is_packed(bytes):
            return theirs(bytes)
        return _ours_or_theirs(lambda: our_deserialize(bytes), lambda: theirs(bytes), lambda: True)

    return deserialize


@contextlib.contextmanager
def _beside_link(filename: Any) -> Iterator[Any]:
    """Under which name to save. A link is replaced by what was saved: where it leads to may be a file of others, such as a
    blob in the cache of the Hugging Face hub."""
    if not isinstance(filename, (str, os.PathLike)) or not os.path.islink(filename):
        yield filename
        return
    folder, name = os.path.split(os.fsdecode(filename))
    written = os.path.join(folder, f".{name[:100]}.{os.getpid()}.{next(_count)}")
    try:
        yield written
        if os.path.exists(written):  # otherwise safetensors has saved it
            os.replace(written, filename)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(written)
        raise


def _is_saved_here(saved: Any) -> bool:
    return all(_is_ours(getattr(tensor, "device", None)) for tensor in _tensors_of(saved))


def _tensors_of(saved: Any) -> Iterable[Any]:
    """Of a module or a dict."""
    if hasattr(saved, "parameters"):
        return itertools.chain(saved.parameters(), saved.buffers())
    return saved.values() if isinstance(saved, Mapping) else ()
