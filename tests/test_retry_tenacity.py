"""tenacity's wait strategies as retry policies, with the real library."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nextdue import Status
from nextdue.retry import from_tenacity

tenacity = pytest.importorskip("tenacity")


def waits(policy, count, error=None):
    return [policy(attempt, error or OSError()) for attempt in range(1, count + 1)]


def test_attempts_end_with_max_attempts():
    assert waits(from_tenacity(tenacity.wait_fixed(2), max_attempts=3), 4) == [2, 2, None, None]


@pytest.mark.parametrize("unlimited", [None, float("inf")])
def test_no_limit_of_attempts(unlimited):
    assert from_tenacity(tenacity.wait_fixed(2), max_attempts=unlimited)(10**6, OSError()) == 2


def test_exponential_wait_grows_with_the_attempt_and_is_capped():
    policy = from_tenacity(tenacity.wait_exponential(multiplier=1, max=10), max_attempts=None)
    assert waits(policy, 6) == [1, 2, 4, 8, 10, 10]
    assert policy(10**6, OSError()) == 10


def test_random_wait_lies_in_its_bounds():
    policy = from_tenacity(tenacity.wait_random_exponential(multiplier=1, max=60), max_attempts=None)
    assert all(0 <= wait <= 60 for wait in waits(policy, 50))


def test_sum_and_chain_of_strategies():
    chain = tenacity.wait_chain(tenacity.wait_fixed(1), tenacity.wait_fixed(5))
    assert waits(from_tenacity(chain + tenacity.wait_fixed(1), max_attempts=None), 3) == [2, 6, 6]


def test_strategy_sees_the_error():
    policy = from_tenacity(tenacity.wait_exception(lambda error: error.seconds), max_attempts=2)
    error = OSError()
    error.seconds = 7
    assert policy(1, error) == 7


def test_strategy_of_ones_own_sees_what_a_call_state_has():
    seen = []

    def wait(state):
        seen.append((state.attempt_number, state.outcome.failed, state.outcome.exception(), state.idle_for))
        return 0

    error = OSError()
    from_tenacity(wait, max_attempts=5)(3, error)
    assert seen == [(3, True, error, 0)]


def test_job_is_retried_by_it(stack, clock):
    agenda = stack.Agenda(clock)
    policy = from_tenacity(tenacity.wait_incrementing(start=1, increment=2), max_attempts=3)
    job = agenda.schedule(lambda: 1 / 0, retry=policy)
    starts = []
    agenda.on("started", lambda event: starts.append(clock()))
    for _ in range(10):
        agenda.run_due()
        clock.advance(1)
    assert [start // 10**9 for start in starts] == [0, 1, 4]
    assert job.status == Status.FAILED


def test_strategy_that_raises_ends_the_job_with_both_errors(stack, clock):
    agenda = stack.Agenda(clock)

    def wait(state):
        raise LookupError("no idea")

    job = agenda.schedule(lambda: 1 / 0, retry=from_tenacity(wait, max_attempts=3))
    agenda.run_due()
    assert job.status == Status.FAILED
    assert isinstance(job.last_error, LookupError)
    assert isinstance(job.last_error.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("wait", "max_attempts", "error", "message"),
    [
        (5, 3, TypeError, "wait must be callable, got 5"),
        (print, 0, ValueError, "max_attempts must be 1 or more, got 0"),
        (print, "3", TypeError, "max_attempts must be an int or None, got '3'"),
    ],
)
def test_bad_arguments_are_refused(wait, max_attempts, error, message):
    with pytest.raises(error) as caught:
        from_tenacity(wait, max_attempts=max_attempts)
    assert str(caught.value) == message


def test_the_library_is_not_imported():
    code = "import sys, nextdue.retry as r; r.from_tenacity(len, max_attempts=1); print('tenacity' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
