"""Tensors that share memory: found, refused, or told apart."""

from __future__ import annotations

from typing import Any, Collection, Mapping, Optional

from ._errors import mismatch


def check_no_sharing(tensors: Mapping[str, Any]) -> None:
    """Refuses tensors of torch that overlap, as safetensors does. Arrays of NumPy may, there and here."""
    groups = shared_groups({name: tensor for name, tensor in tensors.items() if hasattr(tensor, "data_ptr")})
    if groups:
        raise mismatch(f"tensors share memory: {[sorted(names) for names in groups]}",
                       "save a module with penstock.torch.save_model, or clone them")


def layout_of(value: Any) -> tuple[Any, ...]:
    """Equal for two names of the same tensor."""
    if 0 in value.shape or str(getattr(value, "layout", "torch.strided")) != "torch.strided":
        return (id(value),)  # no memory, or not in one piece
    if hasattr(value, "data_ptr"):
        return value.device, value.data_ptr(), value.dtype, tuple(value.shape), tuple(value.stride())
    return "cpu", value.__array_interface__["data"][0], value.dtype, value.shape, value.strides


def span_of(tensor: Any) -> tuple[int, int]:
    """The memory between its first and last element."""
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def shared_groups(tensors: Mapping[str, Any]) -> list[list[str]]:
    """Names of tensors that overlap, group by group."""
    spans = sorted(((str(tensor.device), *span_of(tensor), name) for name, tensor in tensors.items()
                    if str(tensor.layout) == "torch.strided" and tensor.numel() and tensor.device.type != "meta"))
    groups: list[list[str]] = []
    device, reach = "", 0
    for where, begin, end, name in spans:
        if where == device and begin < reach:
            groups[-1].append(name)
        else:
            groups.append([name])
            reach = 0
        device, reach = where, max(reach, end)
    return [names for names in groups if len(names) > 1]


def kept_of(names: Collection[str], tensors: Mapping[str, Any], preferred: Collection[str] = ()) -> Optional[str]:
    """Of names for the same memory one that means all of it: the first, or the first of those that are preferred."""
    spans = [span_of(tensors[name]) for name in names]
    all_of_it = min(begin for begin, _ in spans), max(end for _, end in spans)
    same = len({layout_of(tensors[name]) for name in names}) == 1
    complete = sorted(name for name in names if same or span_of(tensors[name]) == all_of_it and is_dense(tensors[name]))
    return next((name for name in complete if name in preferred), complete[0] if complete else None)


def is_dense(tensor: Any) -> bool:
    begin, end = span_of(tensor)
    size_bytes: int = tensor.numel() * tensor.element_size()
    return size_bytes == end - begin
