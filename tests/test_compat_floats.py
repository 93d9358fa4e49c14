"""Float times as int64 keys: the same order, nothing rounded, in C and by `struct`."""

from __future__ import annotations

import importlib.util
import math
import sys
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nextdue.compat import _floats

INF = math.inf
TINY = 5e-324
EDGES = [-INF, -1.7e308, -1.0, -TINY, 0.0, TINY, 2.2e-308, 1.0, 2.0**53, 1.7e308, INF]


def without_extension() -> ModuleType:
    """`_floats` as a build without extensions has it."""
    spec = importlib.util.find_spec("nextdue.compat._floats")
    module = importlib.util.module_from_spec(spec)
    hidden = sys.modules.get("nextdue.compat._floats_c")
    sys.modules["nextdue.compat._floats_c"] = None
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["nextdue.compat._floats_c"]
        if hidden is not None:
            sys.modules["nextdue.compat._floats_c"] = hidden
    return module


FLOATS = {"installed": _floats, "struct": without_extension()}


@pytest.fixture(params=sorted(FLOATS))
def floats(request):
    return FLOATS[request.param]


def test_the_struct_variant_is_another_one():
    assert FLOATS["struct"].key_of.__module__ != "nextdue.compat._floats_c"


def test_keys_of_edges_rise_strictly_within_int64(floats):
    keys = [floats.key_of(value) for value in EDGES]
    assert keys == sorted(set(keys))
    assert -(2**63) <= keys[0]
    assert keys[-1] < 2**63
    assert [floats.float_of(key) for key in keys] == EDGES


def test_both_zeros_have_one_key(floats):
    assert floats.key_of(-0.0) == floats.key_of(0.0) == floats.key_of(0) == 0


def test_neighbours_at_a_long_uptime_stay_apart(floats):  # B65
    now = 1e9
    assert floats.key_of(math.nextafter(now, INF)) == floats.key_of(now) + 1


def test_nan_is_refused(floats):
    with pytest.raises(ValueError, match=r"^time must be a number, got nan$"):
        floats.key_of(math.nan)


def test_what_is_no_number_is_refused(floats):
    with pytest.raises(TypeError):
        floats.key_of("1")


@pytest.mark.parametrize("name", sorted(FLOATS))
@given(a=st.floats(allow_nan=False), b=st.floats(allow_nan=False))
@example(a=-0.0, b=0.0)
def test_keys_compare_as_the_floats_do_and_lead_back(name, a, b):
    floats = FLOATS[name]
    x, y = floats.key_of(a), floats.key_of(b)
    assert (x < y, x == y) == (a < b, a == b)
    assert floats.float_of(x) == a
    assert x == _floats.key_of(a)
