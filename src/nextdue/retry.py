"""Retry policies: after which wait a failed job is tried again.

A policy is any callable `(attempt, error) -> seconds | timedelta | None`; None gives up. `attempt` is the 1-based
number of the attempt that has just failed. Policies run without a lock, on the thread that ran the task.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, Final, Protocol

from ._units import SECOND, duration_ns


class RetryPolicy(Protocol):
    """Tell how long to wait before the next attempt, or None to give up."""

    def __call__(self, attempt: int, error: BaseException, /) -> float | timedelta | None: ...


class _Default:
    """Stands for "what the agenda says", since None says "no retry"."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT: Final[Any] = _Default()


def _attempts(value: Any) -> int | None:
    if value is None or (isinstance(value, float) and value == float("inf")):
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"max_attempts must be an int or None, got {value!r}")
    if value < 1:
        raise ValueError(f"max_attempts must be 1 or more, got {value!r}")
    return value


class FixedBackoff:
    """Wait the same time before each attempt.

    Args:
        max_attempts: runs in all, the first included; None (or infinity): no limit.
        delay: seconds or a timedelta, 0 or more.

    >>> policy = FixedBackoff(max_attempts=3, delay=0.5)
    >>> policy(1, OSError()), policy(2, OSError()), policy(3, OSError())
    (0.5, 0.5, None)
    """

    def __init__(self, max_attempts: int | None, delay: float | timedelta) -> None:
        self.max_attempts = _attempts(max_attempts)
        self.delay = duration_ns(delay, "delay") / SECOND
        if self.delay < 0:
            raise ValueError(f"delay must be 0 or more, got {delay!r}")

    def __call__(self, attempt: int, error: BaseException, /) -> float | None:
        if self.max_attempts is not None and attempt >= self.max_attempts:
            return None
        return self.delay

    def __repr__(self) -> str:
        return f"FixedBackoff(max_attempts={self.max_attempts}, delay={self.delay})"


class ExponentialBackoff:
    """Wait `base * factor ** (attempt - 1)`, at most `cap`, less a random part.

    Args:
        max_attempts: runs in all, the first included; None (or infinity): no limit.
        base: the first wait, seconds or a timedelta, 0 or more.
        factor: 1 or more.
        cap: the longest wait, seconds or a timedelta.
        jitter: 0..1, the fraction of the wait that is left to chance: the wait lies in [(1 - jitter) * wait, wait].

    The exponent is limited before the power is taken, so any attempt number gives a finite wait.

    >>> policy = ExponentialBackoff(max_attempts=5, base=1, cap=5)
    >>> [policy(attempt, OSError()) for attempt in (1, 2, 3, 4, 5)]
    [1.0, 2.0, 4.0, 5.0, None]
    """

    def __init__(
        self,
        max_attempts: int | None,
        base: float | timedelta,
        *,
        factor: float = 2,
        cap: float | timedelta = 3600,
        jitter: float = 0,
    ) -> None:
        self.max_attempts = _attempts(max_attempts)
        self.base = duration_ns(base, "base") / SECOND
        self.cap = duration_ns(cap, "cap") / SECOND
        for name, value, given in (("base", self.base, base), ("cap", self.cap, cap)):
            if value < 0:
                raise ValueError(f"{name} must be 0 or more, got {given!r}")
        for name, number in (("factor", factor), ("jitter", jitter)):
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                raise TypeError(f"{name} must be a number, got {number!r}")
        if not 1 <= factor <= sys.float_info.max:
            raise ValueError(f"factor must be finite and 1 or more, got {factor!r}")
        if not 0 <= jitter <= 1:
            raise ValueError(f"jitter must be from 0 to 1, got {jitter!r}")
        self.factor = float(factor)
        self.jitter = float(jitter)

    def __call__(self, attempt: int, error: BaseException, /) -> float | None:
        if self.max_attempts is not None and attempt >= self.max_attempts:
            return None
        wait = min(self.base, self.cap)
        if self.factor > 1 and 0 < wait < self.cap:
            # The exponent at which the cap is reached comes first: factor ** attempt alone would overflow.
            enough = math.log(self.cap / wait) / math.log(self.factor)
            wait = self.cap if attempt - 1 >= enough else min(wait * self.factor ** (attempt - 1), self.cap)
        return wait * (1 - self.jitter * random.random()) if self.jitter else wait

    def __repr__(self) -> str:
        return (
            f"ExponentialBackoff(max_attempts={self.max_attempts}, base={self.base}, "
            f"factor={self.factor}, cap={self.cap}, jitter={self.jitter})"
        )


class _Outcome(Future[Any]):
    """A failed attempt, as tenacity has it."""

    failed = True

    def __init__(self, attempt_number: int, error: BaseException) -> None:
        super().__init__()
        self.attempt_number = attempt_number
        self.set_exception(error)


class _CallState:
    """What tenacity's wait strategies look at. How long the attempts took is not known to a policy: 0."""

    start_time = 0.0
    outcome_timestamp = 0.0
    seconds_since_start = 0.0
    idle_for = 0.0
    upcoming_sleep = 0.0
    retry_object = None
    next_action = None
    fn = None
    args: tuple[Any, ...] = ()

    def __init__(self, attempt_number: int, error: BaseException) -> None:
        self.attempt_number = attempt_number
        self.outcome = _Outcome(attempt_number, error)
        self.kwargs: dict[str, Any] = {}


class _Tenacity:
    def __init__(self, wait: Callable[..., float | timedelta], max_attempts: int | None) -> None:
        if not callable(wait):
            raise TypeError(f"wait must be callable, got {wait!r}")
        self.wait = wait
        self.max_attempts = _attempts(max_attempts)

    def __call__(self, attempt: int, error: BaseException, /) -> float | timedelta | None:
        if self.max_attempts is not None and attempt >= self.max_attempts:
            return None
        return self.wait(_CallState(attempt, error))

    def __repr__(self) -> str:
        return f"from_tenacity({self.wait!r}, max_attempts={self.max_attempts})"


def from_tenacity(wait: Callable[..., float | timedelta], *, max_attempts: int | None) -> RetryPolicy:
    """Make a policy of a wait strategy of the library tenacity.

    Args:
        wait: such as `tenacity.wait_random_exponential(max=60)`, or any callable that takes a `RetryCallState`. It sees
            the number of the attempt and its error; times are 0.
        max_attempts: runs in all, the first included; None (or infinity): no limit.
    """
    return _Tenacity(wait, max_attempts)
