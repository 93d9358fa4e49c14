"""The C types of `agenda.py`, which is compiled as `_agenda_c`: one source of the rules, two stacks."""
from libc.stdint cimport INT64_MAX, INT64_MIN, int16_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cimport cython

from libc.math cimport llrint as nearest

from ._clock cimport monotonic_ns
from ._ready cimport ReadyLine
from ._timetable cimport Timetable

cdef int64_t NEVER
cdef int64_t AWAKE
cdef int64_t SECOND_NS
cdef int64_t PROMOTED
cdef uint64_t NO_BOUND

cdef int SCHEDULED
cdef int RUNNING
cdef int SUCCEEDED
cdef int FAILED
cdef int CANCELLED

cdef int ONE_OFF
cdef int FIXED_RATE
cdef int FIXED_DELAY

cdef int ADDED
cdef int CLOSED
cdef int DUPLICATE
cdef int NO_ROOM

cdef int64_t after(int64_t instant, int64_t ns) noexcept


@cython.locals(ns=int64_t)
cdef int64_t duration(object value, str name) except? -1
cdef int check_task(object task) except -1
cdef int signal(object park) except -1
cdef int notify(list waiters) except -1
cdef int deliver(object future, object value) except -1
cdef int revoke(object future) except -1


@cython.final
cdef class Extras:
    cdef str name
    cdef dict kwargs
    cdef object retry
    cdef object last_error
    cdef object future
    cdef list waiters
    cdef int64_t period
    cdef int64_t slot
    cdef int64_t skipped
    cdef uint32_t streak
    cdef uint8_t kind
    cdef bint own_retry
    cdef bint retrying
    cdef bint moved

    @cython.locals(behind=uint64_t, step=uint64_t, rest=uint64_t, count=int64_t)
    cdef int64_t advance(self, int64_t instant) noexcept


@cython.final
cdef class Job:
    cdef object _task
    cdef object _args
    cdef Agenda _agenda
    cdef Extras _extras
    cdef object _outcome
    cdef int64_t _run_at
    cdef int64_t _id
    cdef uint32_t _attempts
    cdef int16_t _priority
    cdef uint16_t _going
    cdef uint8_t _state
    cdef uint8_t _entered


@cython.final
cdef class Round:
    cdef object task
    cdef object args
    cdef dict kwargs
    cdef object retry
    cdef Job forgotten
    cdef object error
    cdef list waiters
    cdef object future
    cdef list drained
    cdef object worker
    cdef object watcher
    cdef bint crowded
    cdef Job job
    cdef uint32_t run

    cdef int finish(self, Timetable tt) except -1


cdef class Agenda:
    cdef Timetable _tt
    cdef ReadyLine _line
    cdef object _clock
    cdef bint _monotonic
    cdef int64_t _last_now
    cdef object _retry
    cdef dict _names
    cdef list _ended
    cdef int64_t _history
    cdef int64_t _oldest
    cdef int64_t _skipped
    cdef int64_t _runs
    cdef int64_t _excused
    cdef bint _closed
    cdef bint _orphaned
    cdef bint _workers
    cdef object _watcher
    cdef int64_t _armed_at
    cdef list _idle
    cdef int64_t _idle_count
    cdef bint _waking
    cdef list _drained
    cdef object __weakref__

    cdef int64_t _now(self) except? -1
    cdef int64_t _now_or_last(self)
    cdef int64_t _start(self, int64_t now, object delay, object at, str name) except? -1
    cdef int _rank(self, object priority) except? -1

    @cython.locals(extras=Extras, given=dict)
    cdef Extras _extras_for(self, object task, object args, object kwargs, object id, object retry)
    cdef Extras _repeating(self, Extras extras, int kind, int64_t period, int64_t run_at)

    @cython.locals(job=Job, done=int)
    cdef Job _add(self, object task, int64_t run_at, object args, Extras extras, int priority, int64_t now)

    @cython.locals(other=Job, direct=bint, name=str)
    cdef int _enter(self, Job job, Extras extras, int64_t run_at, int priority, int64_t now) except -2

    @cython.locals(handle=Job)
    cdef Job _find(self, object job)
    cdef Job _known(self, object job)
    cdef int _check_handle(self, object job) except -1

    cdef int _promote_all(self, int64_t now) except -1

    @cython.locals(job=Job, extras=Extras, bound=uint64_t, run=uint32_t, count=int64_t, crowded=bint, round=Round)
    cdef object _run_pass(self, int64_t now)

    @cython.locals(job=Job, extras=Extras, timer_id=int64_t)
    cdef Job _take(self, int64_t now, uint64_t bound)

    @cython.locals(ready=bint)
    cdef int _arm(self, Job job, int64_t run_at) except -1
    cdef int _succeed(self, Job job, uint32_t run, object value, Round round) except -1

    @cython.locals(
        extras=Extras, spare=Extras, wait=int64_t, end=int64_t, attempt=uint32_t, current=bint, refused=bint, state=int
    )
    cdef object _fail(self, Job job, uint32_t run, object error, Round round)

    @cython.locals(extras=Extras)
    cdef int _book(
        self, Job job, uint32_t run, bint failed, object value, object error, int64_t end, int64_t wait, Round round
    ) except -1

    @cython.locals(run_at=int64_t)
    cdef int _next_turn(self, Job job, Extras extras, int64_t end, int64_t wait) except -1

    @cython.locals(waited=bint, extras=Extras)
    cdef int _end(self, Job job, int state, Round round) except -1

    @cython.locals(extras=Extras, victim=Job)
    cdef Job _remember(self, Job job)

    @cython.locals(waiters=list)
    cdef list _waiters_of(self, Job job)

    cdef object _worker_to_wake(self)
    cdef object _watcher_to_wake(self, int64_t run_at)
    cdef int _rouse(self, Round round) except -1
    cdef int _conclude(self, Round round) except -1
    cdef bint _is_drained(self)

    @cython.locals(
        tt=Timetable, job=Job, following=Job, extras=Extras, run=uint32_t, now=int64_t, arriving=bint, stop=bint
    )
    cdef bint _run_ready(self, object park, Round round) except -1
    cdef int _book_lost(self, Round round, object error) except -1
    cdef int _retract(self, Job job, Round round) except -1

    @cython.locals(k=int64_t)
    cdef int _withdraw_idle(self, object park) except -1

    @cython.locals(job=Job, round=Round, timer_id=int64_t, count=int64_t)
    cdef int64_t _cancel_rest(self, bint cancel_ready, int64_t now) except -1
