from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple

from nextdue._timetable import Timetable

Ts = TypeVarTuple("Ts")

class Timers:
    _timetable: Timetable
    _alarm_at: float
    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> Any: ...
    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> Any: ...
    def time(self) -> float: ...
