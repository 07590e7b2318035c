"""Modules of torch whose weights stay on disk."""

from __future__ import annotations

from typing import Any, Optional

import torch

from ._errors import invalid
from ._row_numbers import check_not_traced
from ._rows import Rows
from ._rows_plan import RowsPlan


class Embedding(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """In place of torch.nn.Embedding, for inference: rows of a table that stays on disk.

        model.embed_tokens = penstock.nn.Embedding("model.safetensors", "embed_tokens.weight")

    The table is a Rows, or what Rows takes. Rows arrive on the device of the token ids, or on `device`, and as `dtype`,
    or as the file has them. With `most_tokens`, at most so many at a time go through a RowsPlan: the module works inside
    torch.cuda.graph then, and waits for nothing. With `cache_bytes` besides, so much memory of each GPU keeps rows that
    were asked for before. There is nothing to train: the module has no parameters, and no entry in a state_dict. `half()`
    and `to(dtype)` convert what arrives.
    """

    def __init__(self, table: Any, tensor: Optional[str] = None, *, device: Any = None,
                 dtype: Optional[torch.dtype] = None, most_tokens: Optional[int] = None, cache_bytes: int = 0,
                 **options: Any) -> None:
        super().__init__()
        if isinstance(table, Rows):
            if tensor is not None or options:
                raise invalid("table: a Rows is open already", "give tensor and options where it is opened")
        else:
            table = Rows(table, tensor, framework="pt", **options)
        if len(table.shape) != 2 or not isinstance(table.dtype, torch.dtype):
            raise invalid(f"table: {table!r} has no rows of numbers of torch",
                          "give a table of two dimensions that was opened with framework='pt'")
        self.table = table
        self.num_embeddings, self.embedding_dim = table.shape
        self._device = None if device is None else torch.device(device)
        self._dtype = dtype
        if cache_bytes and most_tokens is None:
            raise invalid("cache_bytes: a cache is a plan's, and there is none without most_tokens", "give both")
        self._most_tokens = most_tokens
        self._cache_bytes = cache_bytes
        self._plans: dict[torch.device, RowsPlan] = {}

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        check_not_traced(torch)
        room = torch.empty((*input.shape, self.embedding_dim), dtype=self.table.dtype, device=self._device or input.device)
        rows: torch.Tensor
        if self._most_tokens is not None and input.is_cuda and room.device == input.device and input.numel():
            rows = self.plan(input.device).gather(input, room)
        else:
            rows = self.table.gather(input, room)
        return rows if self._dtype is None else rows.to(self._dtype)

    def plan(self, device: torch.device) -> RowsPlan:
        """That of a GPU, whose check() tells what replays of a graph met."""
        if device not in self._plans:
            if self._most_tokens is None:
                raise invalid("most_tokens was not given", "give it when the module is made")
            self._plans[device] = RowsPlan(self.table, self._most_tokens, device=device, cache_bytes=self._cache_bytes)
        return self._plans[device]

    def _apply(self, fn: Any, *arguments: Any, **more: Any) -> Any:
        """What half(), to(dtype) and the like do to parameters they do to the rows."""
        type_before = self._dtype or self.table.dtype
        type_after = fn(torch.empty(0, dtype=type_before)).dtype
        if type_after != type_before:
            self._dtype = type_after
        return super()._apply(fn, *arguments, **more)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, {self.table!r}"


__all__ = ["Embedding"]
