"""The C types of `agenda.py`, which is compiled as `_agenda_c`: one source of the rules, two stacks."""
from libc.stdint cimport INT64_MAX, INT64_MIN, int16_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cimport cython

from cpython.list cimport PyList_GET_ITEM
from libc.math cimport llrint as nearest

from ._clock cimport monotonic_ns
from ._ready cimport GROUP, ReadyLine, prefetch_item
from ._timetable cimport Timetable

cdef int64_t NEVER
cdef int64_t AWAKE
cdef int64_t ODD
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
cdef int RULE

cdef int NOWHERE
cdef int ENTERED
cdef int PARKED
cdef int ON_WALL
cdef int HELD_BACK

cdef int SKIP
cdef int BURST
cdef int SHIFT

cdef int ADDED
cdef int CLOSED
cdef int DUPLICATE
cdef int NO_ROOM
cdef int NO_LINE
cdef int FULL
cdef int OTHER_LIMIT
cdef int UNKNOWN

cdef int STARTED
cdef int DONE
cdef int FAILURE
cdef int RETRYING
cdef int SKIPPED
cdef int DROPPED
cdef int TIMED_OUT

cdef int64_t MAX_BURST
cdef uint64_t SEED_FACTOR
cdef uint64_t SEED_STEP
cdef int64_t WALL_STEP
cdef int64_t WALL_REPEAT
cdef int ASYNC_FLAGS
cdef object DEFAULT
cdef object FUNCTION
cdef object METHOD
cdef object BUILTIN
cdef object WRAPPER

cdef int LAGS


cdef extern from *:
    """
    #define NEXTDUE_FLAGS_OF(function) (((PyCodeObject *)PyFunction_GET_CODE(function))->co_flags)
    """
    int flags_of "NEXTDUE_FLAGS_OF"(object function)


cdef extern from *:
    """
    typedef _Atomic int64_t nextdue_atomic;
    """
    ctypedef int64_t atomic_int64 "nextdue_atomic"      # for a field that is read and written without the lock


cdef extern from *:
    """
    #define NEXTDUE_BIT_LENGTH(word) (64 - __builtin_clzll(word))
    """
    int bit_length "NEXTDUE_BIT_LENGTH"(uint64_t word) noexcept nogil


cdef extern from *:
    """
    /* What `context.run` does, without a bound method; args and kwargs may be None. */
    static PyObject *nextdue_call_in(PyObject *context, PyObject *task, PyObject *args, PyObject *kwargs) {
        PyObject *value;
        if (PyContext_Enter(context) < 0)
            return NULL;
        if (args != Py_None)
            value = PyObject_Call(task, args, kwargs == Py_None ? NULL : kwargs);
        else if (kwargs != Py_None)
            value = PyObject_VectorcallDict(task, NULL, 0, kwargs);
        else
            value = PyObject_CallNoArgs(task);
        if (PyContext_Exit(context) < 0)
            Py_CLEAR(value);
        return value;
    }
    """
    object call_in "nextdue_call_in"(object context, object task, object args, object kwargs)


cdef extern from *:
    """
    static int64_t nextdue_plain_int(PyObject *value) {
        int overflow;
        long long number;
        if (!PyLong_CheckExact(value))
            return INT64_MIN;
        number = PyLong_AsLongLongAndOverflow(value, &overflow);
        return overflow ? INT64_MIN : number;
    }
    """
    int64_t plain_int "nextdue_plain_int"(object value) noexcept


cdef extern from *:
    """
    static PyObject *nextdue_refuse_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
        (void)type; (void)args; (void)kwargs;
        PyErr_SetString(PyExc_TypeError, "a Job is made by a schedule method of an Agenda or a Scheduler");
        return NULL;
    }
    /* Python may not call `__new__` from now on: what it gave would be a job of no agenda, and each call a crash.
       `Job.__new__(Job)` in Cython does not look here. */
    static int nextdue_seal(PyObject *type) {
        ((PyTypeObject *)type)->tp_new = nextdue_refuse_new;
        return 0;
    }
    """
    int seal "nextdue_seal"(object kind)


cdef int64_t later(int64_t instant, int64_t ns) noexcept


@cython.locals(ns=int64_t)
cdef int64_t carried(int64_t instant, int64_t origin, int64_t target) noexcept


@cython.locals(real=double, whole=int64_t)
cdef int64_t duration(object value, str name) except? -1


@cython.locals(instant=int64_t)
cdef int64_t reading(object now, str name) except? -1
cdef int check_task(object task) except -1
cdef int check_plain(object called, str name) except -1
cdef int signal(object park) except -1
cdef int notify(list waiters) except -1
cdef int deliver(object future, object value) except -1
cdef int retell(object future, object tell, object outcome) except -1
cdef int revoke(object future) except -1


@cython.locals(shift=int)
cdef int lag_bucket(int64_t lag) noexcept


@cython.final
cdef class Lane:
    cdef ReadyLine parked
    cdef int64_t limit
    cdef int64_t running
    cdef int64_t jobs


@cython.final
cdef class Extras:
    cdef str name
    cdef dict kwargs
    cdef object retry
    cdef object is_failure
    cdef object context
    cdef object last_error
    cdef object future
    cdef list waiters
    cdef list stoppers
    cdef object key
    cdef Lane lane
    cdef object culprit
    cdef list dependents
    cdef object when
    cdef int64_t wall_at
    cdef int64_t wall_id
    cdef int64_t last
    cdef int64_t bursts
    cdef int64_t steps
    cdef int64_t nominal
    cdef int64_t timeout
    cdef int64_t limit_id
    cdef int64_t deadline
    cdef int64_t period
    cdef int64_t slot
    cdef int64_t planned
    cdef int64_t skipped
    cdef int64_t untold
    cdef int64_t turns
    cdef int64_t max_runs
    cdef int64_t until
    cdef int64_t jitter
    cdef uint64_t seed
    cdef uint32_t blockers
    cdef uint32_t timed_out
    cdef uint32_t hung
    cdef uint32_t streak
    cdef uint8_t culprit_state
    cdef uint8_t kind
    cdef uint8_t on_missed
    cdef bint dated
    cdef bint calendar
    cdef bint spent
    cdef bint displaced
    cdef bint own_retry
    cdef bint paused
    cdef bint run_anyway
    cdef bint queue
    cdef bint retrying
    cdef bint moved
    cdef bint extra
    cdef bint planned_dated

    @cython.locals(chance=int64_t)
    cdef int64_t shaken(self, int64_t instant) noexcept
    cdef bint is_over(self) noexcept

    @cython.locals(behind=uint64_t, step=uint64_t, rest=uint64_t, count=int64_t)
    cdef int64_t advance(self, int64_t instant) noexcept

    @cython.locals(behind=uint64_t, step=uint64_t, count=int64_t)
    cdef int64_t catch_up(self, int64_t instant) noexcept


@cython.final
cdef class Job:
    cdef object _task
    cdef object _args
    cdef Agenda _agenda
    cdef Extras _extras
    cdef object _outcome
    cdef int64_t _run_at
    cdef int64_t _started_at
    cdef int64_t _id
    cdef uint32_t _attempts
    cdef int16_t _priority
    cdef uint16_t _going
    cdef uint8_t _state
    cdef uint8_t _entered


cdef inline void fetch_ahead(ReadyLine line, list ended, int64_t oldest) noexcept:
    cdef int64_t k
    if oldest & (GROUP - 1) != 0 or oldest + 3 * GROUP > len(ended):
        return
    for k in range(oldest + GROUP, oldest + 2 * GROUP):
        line._fetch((<Job>PyList_GET_ITEM(ended, k))._id)
    for k in range(oldest + 2 * GROUP, oldest + 3 * GROUP):
        prefetch_item(<void*>PyList_GET_ITEM(ended, k))


@cython.final
cdef class Round:
    cdef object task
    cdef object args
    cdef dict kwargs
    cdef object retry
    cdef object condition
    cdef object context
    cdef Job forgotten
    cdef object error
    cdef list dependents
    cdef list waiters
    cdef list stoppers
    cdef object future
    cdef list drained
    cdef object worker
    cdef object watcher
    cdef Job told
    cdef object told_error
    cdef Job job
    cdef object idle_context
    cdef object when
    cdef object broken
    cdef int64_t slot
    cdef int64_t missed
    cdef int64_t bursts
    cdef int64_t steps
    cdef bint asked
    cdef bint rule_is_over
    cdef int64_t nominal
    cdef object outer
    cdef uint32_t run
    cdef uint32_t told_run
    cdef int event
    cdef bint crowded
    cdef bint late
    cdef bint overdue
    cdef bint substitute

    cdef int finish(self, Agenda agenda) except -1

    @cython.locals(dependents=list, waiters=list, stoppers=list, drained=list)
    cdef int pass_on(self, Agenda agenda) except -1


cdef class Agenda:
    cdef Timetable _tt
    cdef Timetable _limits
    cdef Timetable _wall
    cdef object _wall_clock
    cdef int64_t _wall_jobs
    cdef int64_t _offset
    cdef int64_t _steps
    cdef bint _restless
    cdef bint _unsettled
    cdef list _doubtful
    cdef int64_t _doubtful_from
    cdef int64_t _asking
    cdef bint _doubt_is_new
    cdef bint _told
    cdef bint _wall_told
    cdef int64_t _wall_bound
    cdef ReadyLine _line
    cdef int64_t _max_waiting
    cdef object _clock
    cdef bint _monotonic
    cdef atomic_int64 _last_now
    cdef object _retry
    cdef dict _names
    cdef list _ended
    cdef int64_t _history
    cdef int64_t _oldest
    cdef int64_t _history_age
    cdef object _aging
    cdef dict _lanes
    cdef int64_t _parked
    cdef int64_t _held_back
    cdef int64_t _telling
    cdef int64_t _substitutes
    cdef bint _paused
    cdef int64_t _runs
    cdef int64_t _excused
    cdef int64_t _kept
    cdef int64_t _places
    cdef bint _closed
    cdef int64_t _unstarted
    cdef list _expired
    cdef int64_t _skipped
    cdef int64_t _started
    cdef int64_t _succeeded
    cdef int64_t _failed
    cdef int64_t _cancelled
    cdef int64_t _retried
    cdef int64_t _timed_out
    cdef int64_t[488] _lags         # LAGS
    cdef dict _listeners
    cdef int _listening
    cdef bint _orphaned
    cdef bint _workers
    cdef object _watcher
    cdef int64_t _armed_at
    cdef list _idle
    cdef int64_t _idle_count
    cdef bint _waking
    cdef int64_t _due_until
    cdef bint _poked
    cdef list _drained
    cdef bint _made
    cdef object __weakref__

    @cython.locals(now=int64_t)
    cdef int64_t _now(self) except? -1

    cdef int64_t _now_or_last(self)
    cdef int64_t _wall_now(self) except? -1
    cdef int64_t _wall_now_or_estimate(self, int64_t now) except? -1
    cdef int64_t _date(self, object at, object delay, int64_t now) except? -1
    cdef int64_t _limit_at(self, object until) except? -1

    @cython.locals(count=int64_t)
    cdef int64_t _waiting(self) noexcept

    @cython.locals(next_at=int64_t)
    cdef int64_t _soonest(self) noexcept
    cdef int64_t _instant_of(self, Job job) noexcept
    cdef bint _has_room_for(self, Job job, bint dated, Extras spare) except -1
    cdef int _displace(self, Extras extras, int64_t run_at, int64_t wall_at, bint dated) except -1

    @cython.locals(job=Job, doubtful=list, is_new=bint)
    cdef int _doubt_all(self, int64_t wall_now) except -1
    cdef object _wall_ticket(self, Job job)

    @cython.locals(offset=int64_t, left=int64_t, count=int64_t, is_back=bint)
    cdef int _look(self, int64_t now, int64_t wall_now) except -1

    @cython.locals(count=int64_t, timer_id=int64_t, job=Job, extras=Extras)
    cdef int64_t _promote_wall(self, int64_t now, int64_t wall_now, int64_t limit) except -1

    @cython.locals(extras=Extras, wall_at=int64_t, base=int64_t, instant=int64_t, is_over=bint, in_doubt=bint)
    cdef int _anchor(self, Job job, int64_t wall_now, int64_t steps, Round round) except -1
    cdef int64_t _base(self, int64_t last, int64_t wall_now) noexcept

    @cython.locals(
        extras=Extras,
        calendar=bint,
        slot=int64_t,
        spent=bint,
        bursts=int64_t,
        started_at=int64_t,
        until=int64_t,
        over=bint,
        anew=bint,
        last=int64_t,
        begin=int64_t,
        finish=int64_t,
        missed=int64_t,
        edge=int64_t,
    )
    cdef int _ask(self, Job job, uint32_t run, int64_t end, object error, Round round) except -1

    @cython.locals(run_at=int64_t)
    cdef int _turn_by_rule(self, Job job, Extras extras, bint failed, Round round) except -1
    cdef int _arm_next(self, Job job, Extras extras) except -1

    @cython.locals(before=int, place=int)
    cdef int _arm_wall(self, Job job, Extras extras) except -1

    @cython.locals(instant=int64_t)
    cdef int64_t _start(self, int64_t now, object delay, object at, str name) except? -1

    @cython.locals(rank=int64_t)
    cdef int _rank(self, object priority) except? -1

    @cython.locals(extras=Extras, given=dict)
    cdef Extras _extras_for(self, object task, object args, object kwargs, object id, object retry)

    @cython.locals(limit=object)
    cdef Extras _with_options(
        self,
        Extras extras,
        object key,
        object key_limit,
        object after,
        object on_upstream_failure,
        object timeout,
        object is_failure,
        object context,
        object jitter,
    )
    cdef Extras _repeating(
        self, Extras extras, int kind, int64_t period, int64_t run_at, object until, object max_runs
    )
    cdef Job _add_with(
        self, object task, int64_t run_at, object args, Extras extras, int rank, int64_t now, object after
    )

    @cython.locals(job=Job, done=int, round=Round)
    cdef Job _add(
        self, object task, int64_t run_at, object args, Extras extras, int priority, int64_t now, list upstream
    )
    cdef int _refuse(self, int done, Job job, Extras extras, list upstream) except -1

    @cython.locals(direct=bint, done=int)
    cdef int _enter(
        self, Job job, Extras extras, int64_t run_at, int priority, int64_t now, list upstream, list spares
    ) except -2
    cdef int _place(self, Job job, int64_t run_at, int priority, bint direct, bint held) except -1

    @cython.locals(other=Job, done=int)
    cdef int _enter_with(
        self,
        Job job,
        Extras extras,
        int64_t run_at,
        int priority,
        bint direct,
        list upstream,
        list spares,
    ) except -2

    @cython.locals(lane=Lane, k=int64_t)
    cdef int _enter_options(self, Job job, Extras extras, list upstream) except -2
    cdef int _register(self, Job job, Extras extras, list upstream, list spares) except -1

    @cython.locals(before=Job, dependents=list, k=int64_t)
    cdef int _unregister(self, Job job, Extras extras, Job other, list upstream) except -1
    cdef int _drop_timers(self, Extras extras) except -1

    @cython.locals(extras=Extras, paused=bint, since=int64_t, run_at=int64_t, attempts=uint32_t, state=int)
    cdef object _info_of(self, Job job)

    @cython.locals(bit=int)
    cdef int _tell(self, int bits, Job job, uint32_t attempt, object error, int64_t count) except -1

    @cython.locals(count=int64_t, attempt=uint32_t)
    cdef int _tell_taken(self, Job job) except -1

    @cython.locals(other=Job, k=int64_t)
    cdef int _depend(self, Job job, Extras extras, list upstream, list spares) except -1

    @cython.locals(theirs=Extras)
    cdef int _blame(self, Extras extras, Job other) except -1

    cdef int _let_down(self, Job job, Round round) except -1

    @cython.locals(upstream=Job, following=list, k=int64_t)
    cdef int _tell_dependents(self, list dependents, Round round) except -1

    @cython.locals(extras=Extras)
    cdef int _upstream_ended(self, Job job, Job upstream, Round round) except -1

    @cython.locals(handle=Job)
    cdef Job _find(self, object job)
    cdef Job _known(self, object job)
    cdef int _check_handle(self, object job) except -1

    cdef object _verdict(self, Job job, object value)
    cdef int _finish(self, Job job, uint32_t run, object error, object value, Round round) except -1
    cdef object _future_of(self, Job job)
    cdef bint _is_wanted(self, Job job, object future, Round round) except -1
    cdef int _make_due(self, int64_t now) except -1
    cdef int _promote_all(self, int64_t now) except -1

    @cython.locals(round=Round)
    cdef object _run_pass(self, int64_t now)

    @cython.locals(job=Job, extras=Extras, bound=uint64_t, run=uint32_t, count=int64_t, crowded=bint)
    cdef object _run_all(self, int64_t now, Round round)
    cdef object _invoke(self, object task, object args, Extras extras, Round round)

    @cython.locals(job=Job, extras=Extras, timer_id=int64_t, due_at=int64_t, bucket=int)
    cdef Job _take(self, int64_t now, uint64_t bound)

    @cython.locals(bucket=int)
    cdef int _untake(self, Job job) except -1

    @cython.locals(lane=Lane)
    cdef bint _admit(self, Job job, Extras extras, int64_t now) except -1

    cdef int _park(self, Job job, Lane lane, int64_t now) except -1

    @cython.locals(job=Job, timer_id=int64_t)
    cdef int _call_next(self, Lane lane) except -1

    cdef int _put_back(self, Job job) except -1

    @cython.locals(lane=Lane)
    cdef int _forget_lane(self, Extras extras) except -1

    @cython.locals(planned=int64_t, following=int64_t)
    cdef int _depart(self, Job job, Extras extras, int64_t now) except -1
    cdef int _arm_planned(self, Job job, Extras extras) except -1

    @cython.locals(place=int, goes_on=bint)
    cdef bint _arm(self, Job job, int64_t run_at) except -1

    @cython.locals(is_ready=bint, place=int)
    cdef int _move_out(self, Job job) noexcept
    cdef int _vacate(self, Job job, int place) except -1

    @cython.locals(extras=Extras, end=int64_t, overdue=bint)
    cdef object _succeed(self, Job job, uint32_t run, object value, Round round)
    cdef object _overdue(self, Job job)

    @cython.locals(
        extras=Extras, spare=Extras, wait=int64_t, end=int64_t, attempt=uint32_t, current=bint, refused=bint, state=int
    )
    cdef object _fail(self, Job job, uint32_t run, object error, bint over, Round round)

    @cython.locals(extras=Extras, current=bint, overdue=bint)
    cdef int _book(
        self,
        Job job,
        uint32_t run,
        bint failed,
        object value,
        object error,
        int64_t end,
        int64_t wait,
        bint over,
        Round round,
    ) except -1

    @cython.locals(run_at=int64_t, extra=bint)
    cdef int _next_turn(
        self, Job job, Extras extras, int64_t end, int64_t wait, bint failed, Round round
    ) except -1

    @cython.locals(place=int, extras=Extras)
    cdef bint _end(self, Job job, int state, Round round) except -1

    @cython.locals(extras=Extras, victim=Job)
    cdef Job _remember(self, Job job)
    cdef bint _note_end(self, Job job) except -1

    @cython.locals(extras=Extras)
    cdef int _forget(self, Job victim) except -1

    @cython.locals(victim=Job, now=int64_t)
    cdef int _forget_old(self) except -1

    @cython.locals(waiters=list)
    cdef list _waiters_of(self, Job job)

    cdef object _worker_to_wake(self)
    cdef object _watcher_to_wake(self, int64_t run_at)
    cdef int _rouse(self, Round round) except -1
    cdef int _conclude(self, Round round) except -1
    cdef int _tidy(self) except -1

    @cython.locals(extras=Extras)
    cdef Round _flight(self, Job job, Round round)
    cdef bint _is_drained(self)
    cdef bint _is_over(self)

    @cython.locals(run=uint32_t, running=bint, now=int64_t)
    cdef bint _book_overdue(self, Job job, bint substitute, Round round) except -1

    @cython.locals(
        tt=Timetable, job=Job, following=Job, extras=Extras, run=uint32_t, now=int64_t, arriving=bint, stop=bint
    )
    cdef bint _run_ready(self, object park, Round round) except -1
    cdef bint _is_replaced(self, Round round)
    cdef int _book_lost(self, Round round, object error) except -1

    @cython.locals(job=Job, now=int64_t)
    cdef Job _take_into(self, Round round)
    cdef int _retract(self, Job job, Round round) except -1

    @cython.locals(k=int64_t)
    cdef int _withdraw_idle(self, object park) except -1

    @cython.locals(job=Job, round=Round, count=int64_t)
    cdef int64_t _cancel_rest(self, bint cancel_ready, int64_t now) except -1

    @cython.locals(due=bint, one_off=bint, count=int64_t)
    cdef int64_t _cancel_undue(self, Job job, bint cancel_ready, Round round) except -1
