from typing import Self

from ._timetable import Timetable

class ReadyLine:
    def __new__(cls, timetable: Timetable) -> Self: ...
