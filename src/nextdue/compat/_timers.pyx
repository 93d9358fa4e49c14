# cython: language_level=3, freethreading_compatible=True, cdivision=True, wraparound=False
"""The short way from `call_later` to a waiting `asyncio.TimerHandle`, and back by its `cancel`.

Methods for the loop of `asyncio.py`, which says what they mean and serves debug mode. They are plain functions that its
class takes up: a base class in C would change the layout of its instances, and asyncio's own methods, whose look-ups
Python then cannot specialise, were a fifth slower. A million `call_later` and as many `cancel`, CPython 3.13, the
collector on, beside asyncio in one run:

    methods in Python over the compiled timetable   0.9 times as fast
    a handle made here, of Python methods           1.5
    waiting handles hidden from the collector       1.9
    these methods                                   2.1

A handle costs asyncio two frames to make; here its slots are filled in place. What it costs most are the collector's
visits: a million handles are walked through some seven times before they fire. While a handle waits it is alive
anyway, since the loop is, so it is hidden from the collector for that time. A loop that was dropped without `close()`
would never be freed then: when a full collection has ended, the handles of a loop that nobody runs, and that got no
timer since the one before, are shown to the next. Without the GIL nothing is hidden: a thread might start the loop
meanwhile.
"""
import gc
from asyncio import SelectorEventLoop, TimerHandle
from weakref import WeakSet

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint64_t
from .._timetable cimport Timetable
from ._floats_c cimport key

cdef extern from *:
    """
    #include <structmember.h>   /* of members, before 3.12 */
    static Py_ssize_t nextdue_slot_offset(PyObject *member)
    {
        return ((PyMemberDescrObject *)member)->d_member->offset;
    }

    #ifdef Py_GIL_DISABLED
        #define NEXTDUE_HIDE(object)
    #else
        #define NEXTDUE_HIDE PyObject_GC_UnTrack
    #endif
    """
    Py_ssize_t slot_offset "nextdue_slot_offset"(object member) noexcept
    void hide "NEXTDUE_HIDE"(PyObject*) noexcept

cdef extern from "Python.h":
    object PyContext_CopyCurrent()
    object PyType_GenericAlloc(type cls, Py_ssize_t n)
    bint PyObject_GC_IsTracked(PyObject*) noexcept
    void PyObject_GC_Track(PyObject*) noexcept

cdef type HANDLE = TimerHandle
cdef tuple SLOTS = (
    "_callback", "_args", "_context", "_loop", "_cancelled", "_repr", "_source_traceback", "_when", "_scheduled"
)
cdef Py_ssize_t[9] OFFSETS = [slot_offset(getattr(TimerHandle, name)) for name in SLOTS]


cdef inline void fill(handle, int slot, value) noexcept:
    Py_INCREF(value)
    (<PyObject**>(<char*><PyObject*>handle + OFFSETS[slot]))[0] = <PyObject*>value


cdef inline void show(handle) noexcept:
    if not PyObject_GC_IsTracked(<PyObject*>handle):
        PyObject_GC_Track(<PyObject*>handle)


cdef object rooms = WeakSet()  # the Timers of all loops


cdef class Timers:
    """What waits in a loop."""

    cdef readonly Timetable timetable
    cdef public double alarm_at
    cdef public object alarm
    cdef uint64_t counted  # timers that there had been when a full collection last ended
    cdef object __weakref__

    def __init__(self):
        self.timetable = Timetable()
        self.alarm_at = INFINITY
        rooms.add(self)


def show_what_is_at_rest(phase, info):
    """To the next collection, when a full one has ended."""
    cdef Timers timers
    cdef uint64_t before
    if phase == "stop" and info["generation"] == 2:
        for timers in rooms:
            before = timers.counted
            with timers.timetable.lock:
                timers.counted = timers.timetable._counter
            loop = None if timers.alarm is None else timers.alarm._loop
            if timers.counted == before and (loop is None or not loop.is_running()):
                for handle in timers.timetable._snapshot():
                    show(handle)


gc.callbacks.append(show_what_is_at_rest)


def call_later(self, delay, callback, *args, context=None):
    if delay is None or self._debug:
        return SelectorEventLoop.call_later(self, delay, callback, *args, context=context)
    return wait(self, self.time() + delay, callback, args, context)


def call_at(self, when, callback, *args, context=None):
    if when is None or self._debug:
        return self._call_at(when, callback, *args, context=context)
    return wait(self, when, callback, args, context)


cdef object wait(loop, when, callback, tuple args, context):
    cdef double at = when
    cdef int64_t timer_id = -1
    cdef Timers timers = loop._timers
    cdef Timetable timetable = timers.timetable
    if not at >= timers.alarm_at:
        loop._set_alarm(at)
    handle = PyType_GenericAlloc(HANDLE, 0)
    fill(handle, 0, callback)
    fill(handle, 1, args)
    fill(handle, 2, PyContext_CopyCurrent() if context is None else context)
    fill(handle, 3, loop)
    fill(handle, 4, False)
    fill(handle, 5, None)
    fill(handle, 6, None)
    fill(handle, 7, when)
    with timetable.lock:
        if timetable._has_room(1):
            timer_id = timetable._add(key(at), 0, handle)
    fill(handle, 8, timer_id if timer_id >= 0 else timetable.add(key(at), handle))
    hide(<PyObject*>handle)
    return handle


def _timer_handle_cancelled(self, handle):
    timer_id = handle._scheduled
    if timer_id:
        (<Timers?>self._timers).timetable.cancel(timer_id)
        show(handle)


def _pop_due(self, now):
    cdef list due = (<Timers?>self._timers).timetable.pop_due(key(now))
    for handle in due:
        show(handle)
    return due
