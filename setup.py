"""The extensions, their flags and the build's switches. Metadata lives in pyproject.toml.

Environment switches:
    NEXTDUE_PURE=1              build no extension at all (the pure stack is then the only one)
    NEXTDUE_DEBUG=1             bounds, None and initialisation checks on, and a check that the lock is held
    NEXTDUE_SANITIZE=a,b        compile and link with -fsanitize=a,b; thread: for a CPython that is instrumented, too
    NEXTDUE_COVERAGE=1          Cython line tracing
"""

import os
from pathlib import Path

from setuptools import Extension, setup


def switch(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


def extensions() -> list[Extension]:
    if switch("NEXTDUE_PURE"):
        return []
    import numpy
    from Cython.Build import cythonize

    debug = switch("NEXTDUE_DEBUG")
    coverage = switch("NEXTDUE_COVERAGE")
    sanitize = os.environ.get("NEXTDUE_SANITIZE", "")
    flags = ["-O1", "-g", "-UNDEBUG"] if debug or sanitize else ["-O3", "-g0"]
    link = []
    if sanitize:
        flags += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer"]
        link += [f"-fsanitize={sanitize}"]
    macros = [("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")]
    if debug:
        macros.append(("NEXTDUE_DEBUG", "1"))
    if coverage:
        macros.append(("CYTHON_TRACE_NOGIL", "1"))

    def extension(name: str, source: str) -> Extension:
        return Extension(
            f"nextdue.{name}",
            [f"src/nextdue/{source}"],
            include_dirs=[numpy.get_include()],
            define_macros=macros,
            extra_compile_args=flags,
            extra_link_args=link,
        )

    # Cython looks for what a .py cimports nowhere: compile such a one anew when a .pxd is newer.
    for plain in ("agenda", "compat/_kombu", "compat/_threading"):
        made = Path(f"build/cython/src/nextdue/{plain}.c")
        if made.exists() and any(p.stat().st_mtime > made.stat().st_mtime for p in Path("src/nextdue").rglob("*.pxd")):
            made.unlink()
    return cythonize(
        [
            extension("_timetable", "_timetable.pyx"),
            extension("_ready", "_ready.pyx"),
            # One source: agenda.py is a plain module and, typed by _agenda_c.pxd, this extension; likewise the others.
            extension("_agenda_c", "agenda.py"),
            extension("compat._floats_c", "compat/_floats_c.pyx"),
            extension("compat._simpy_c", "compat/_simpy_c.pyx"),
            extension("compat._timers", "compat/_timers.pyx"),
            extension("compat._kombu_c", "compat/_kombu.py"),
            extension("compat._threading_c", "compat/_threading.py"),
        ],
        build_dir="build/cython",
        compiler_directives={
            "boundscheck": debug,
            "nonecheck": debug,
            "initializedcheck": debug,
            "linetrace": coverage,
            "embedsignature": True,
        },
    )


setup(ext_modules=extensions())
