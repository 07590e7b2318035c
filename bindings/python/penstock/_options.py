"""The options of a Context, as type checkers see them. docs/options.md says what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from typing_extensions import Unpack as Unpack  # known to type checkers, whether it is installed or not


class Deadlines(TypedDict, total=False):
    request_seconds: float
    stall_seconds: float
    cancel_grace_seconds: float
    stream_seconds: float
    close_seconds: float


class Options(TypedDict, total=False):
    allowed_routes: list[str]
    engine: str
    modules: list[str]
    cache: Literal["auto", "keep", "bypass"]
    nvtx: bool
    publish: str
    lanes: int
    operations_in_flight: int
    operations_in_flight_total: int
    bytes_in_flight: int
    storage_chunk_bytes: int
    staging_slot_bytes: int
    staging_slots_per_lane: int
    prefetch_window_bytes: int
    alignment_bytes: int
    pinned_budget_bytes: int
    device_budget_bytes: int
    trace_events: int
    deadlines: Deadlines
