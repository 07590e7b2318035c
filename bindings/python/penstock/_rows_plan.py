"""RowsPlan: gathers inside CUDA graphs, and in the order of a stream."""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence, Union

from . import _core
from ._arguments import named, natural, seconds, truth
from ._closing import Closing
from ._errors import invalid, make
from ._memory import Memory, count_as_written, device_domain, memory_of
from ._modules import loaded
from ._row_numbers import Numbers, numbers_of
from ._rows import Rows
from ._streams import on_its_gpu, stream_handle


class Planned(NamedTuple):
    """One gather of a round."""

    indices: Any
    out: Any
    table: int = 0
    status: Any = None


class RowsPlan(Closing):
    """Rows by numbers that the GPU has just computed, inside CUDA graphs or in the order of a stream.

        plan = penstock.RowsPlan(table, most_rows=1024)
        with torch.cuda.graph(graph):
            ids = ...                     # computed on the GPU
            plan.gather(ids, out)         # at each replay, by what ids has then
        graph.replay()
        plan.check()                      # raises what a replay has met

    A call puts the gather on the stream and returns; the host waits for nothing. CPU threads answer when the GPU comes to
    it. A replay that fails gives rows of zeros and writes a number other than 0 to `status`; once the plan is closed all
    do. A graph that was captured must be instantiated once, and keeps what it needs of the plan until it is destroyed.

    `tables` is a Rows or several of one Context. A round has at most `most_rows` in all. `timeout` is that of reads of
    cold rows: a GPU waits for them. With `cache_bytes`, so much GPU memory keeps rows that were gathered before, and only
    those that are missing are asked for. With `unasked_seconds` besides, a round whose rows are all there goes on without
    the CPU for so long: then it is noticed so much later that a file has changed.
    """

    def __init__(self, tables: Union[Rows, Sequence[Rows]], most_rows: int, *, device: Any = "cuda",
                 zeros_for_missing: bool = False, timeout: float = 10.0, cache_bytes: int = 0,
                 unasked_seconds: float = 0.0) -> None:
        self._tables = [tables] if isinstance(tables, Rows) else list(tables)
        if not self._tables or not all(isinstance(each, Rows) for each in self._tables):
            raise invalid("tables: no table, or not all are", "give a penstock.Rows, or a list of them")
        self._domain = device_domain(device)
        if self._domain == "host":
            raise invalid(f"device: {device!r} is no GPU", "give 'cuda' or 'cuda:N'")
        self._most_rows = natural("most_rows", most_rows)
        self._core = _core.plan_rows([each._open() for each in self._tables], self._domain, self._most_rows,
                                          truth("zeros_for_missing", zeros_for_missing), seconds("timeout", timeout),
                                          natural("cache_bytes", cache_bytes), seconds("unasked_seconds", unasked_seconds))

    def __repr__(self) -> str:
        state = ", closed" if self._core is None else ""
        return f"<penstock.RowsPlan for {self._most_rows} rows of {len(self._tables)} tables on {self._domain}{state}>"

    def gather(self, indices: Any, out: Any, *, table: int = 0, status: Any = None, stream: Any = None) -> Any:
        """Rows of one table, by its place among the tables of the plan. All memory is the GPU's, contiguous, and must
        stay as long as the graph may run. Returns `out`."""
        self.gather_all([Planned(indices, out, table, status)], stream=stream)
        return out

    def gather_all(self, gathers: Sequence[Any], *, stream: Any = None) -> None:
        """Several at once: (indices, out), (indices, out, table) or (indices, out, table, status) each."""
        core = self._open()
        planned = [Planned(*each) for each in gathers]
        if not planned:
            raise invalid("gathers: there are none", "give at least one")
        prepared = [(each, self._numbers(each.indices), self._memory(each.out, "out"), None if each.status is None else
                     self._memory(each.status, "status")) for each in planned]
        if stream is not None:
            handle = stream_handle(stream)
        else:
            handle = next((memory.stream for _, _, memory, _ in prepared if memory.stream is not None), 0)
        listed = []
        for each, numbers, memory, status in prepared:
            if not 0 <= each.table < len(self._tables):
                raise invalid(f"table: there is no {each.table}", f"the plan has {len(self._tables)}")
            rows = self._tables[each.table]
            if memory.size_bytes != numbers.size * rows.row_bytes:
                raise invalid(f"out: {numbers.size} rows of {rows.row_bytes} bytes don't fill memory of "
                              f"{memory.size_bytes}", "give memory of exactly their size")
            if status is not None and status.size_bytes != 4:
                raise invalid(f"status: has {status.size_bytes} bytes", "give 4: an int32 of the GPU's")
            listed.append((each.table, numbers.type, numbers.memory.pointer, numbers.memory.size_bytes, memory.pointer,
                           memory.size_bytes, 0 if status is None else status.pointer))
        core.enqueue(handle, self._domain, listed)
        for _, _, memory, _ in prepared:
            count_as_written(memory.owner)

    def check(self) -> None:
        """Raises the first error of the rounds since it was last raised; the next gather does, too."""
        self._open().check()

    @property
    def report(self) -> dict[str, int]:
        """rounds that were answered, rows, cold_rows, missing_rows and failed_gathers, so far; hit_rows, that the GPU found
        in its memory, and unasked_rounds, that needed no answer; cache_rows and cache_bytes, that have room there."""
        report: dict[str, int] = self._open().report()
        return report

    def close(self) -> None:
        """Graphs go on, with rows of zeros. Otherwise that happens when the last reference goes."""
        super().close()

    def _closed_error(self) -> Exception:
        return make("closed", 0, "the plan is closed", "make another, and capture the graphs that have it anew")

    def _numbers(self, indices: Any) -> Numbers:
        torch = loaded("torch")
        if torch is not None and isinstance(indices, torch.Tensor) and not indices.is_contiguous():
            raise invalid("indices: the tensor is not contiguous, and a copy would not be the graph's",
                          "give indices.contiguous(), inside the graph")
        numbers = numbers_of(indices, "indices")
        return numbers._replace(memory=self._checked(numbers.memory, "indices"))

    def _memory(self, given: Any, argument: str) -> Memory:
        memory: Memory = named(argument, lambda: memory_of(given))
        return self._checked(memory, argument)

    def _checked(self, memory: Memory, argument: str) -> Memory:
        settled = on_its_gpu(memory, argument)
        if settled.domain != self._domain:
            raise invalid(f"{argument}: memory of {settled.domain}, and the plan is for {self._domain}",
                          f"give memory of {self._domain}")
        return settled
