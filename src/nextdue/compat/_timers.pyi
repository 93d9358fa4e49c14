from typing import Any

from nextdue._timetable import Timetable

def show_what_is_at_rest(phase: str, info: dict[str, int]) -> None: ...

class Timers:
    alarm: Any
    alarm_at: float
    def __init__(self) -> None: ...
    @property
    def timetable(self) -> Timetable: ...

# Methods of the loop, which `asyncio.py` types.
call_later: Any
call_at: Any
_timer_handle_cancelled: Any
_pop_due: Any
