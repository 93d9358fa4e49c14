# All set-up included: needs python3 (3.11 or newer, with venv and headers) and a C compiler, nothing else.
#
#   make demo          run a live scheduler with a million timers
#   make test          the tests, on the compiled stack; ARGS= for pytest's arguments
#   make lint types    ruff and cython-lint; mypy and stubtest
#   make bench         the goals of speed beside their peers, some twenty minutes; ARGS=--quick for a look
#   make soak          ten minutes of load with five million timers, every job accounted for
#   make peers         the tests of the projects that src/nextdue/compat stands in for; ARGS=sched for one of them
#   make drop-ins      how fast those drop-ins are beside the originals; ARGS=--quick for a look
#   make cron LINES=f  the cron rules of a file beside croniter, over all zones: half an hour for 400 rules, alone
#   make debug         the tests on a build with every check on
#   make sanitize      the tests on a build with AddressSanitizer and UBSan
#   make explore       the state machines and property tests on that build, with new sequences for MINUTES=10
#   make freethreaded  the tests on a free-threaded CPython, which is built first when there is none
#   make tsan          the tests with many threads on one that is instrumented for ThreadSanitizer; it is built first, too
#   make parallel      tests that share nothing there, each in four threads at once
#   make bench-freethreaded  PYTHON and the free-threaded CPython side by side; best two of the same version
#   make clean         take away what these made, but for the free-threaded CPythons
#   make help          this list
#
# PYTHON= selects the interpreter, VENV= the virtual environment. setup.py's switches are heeded: NEXTDUE_PURE=1 make test.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
MINUTES ?= 10

SHELL := /bin/bash
# Either would shadow what is installed; PYTHON_GIL would hide that an extension turned the GIL on.
unexport PYTHONPATH PYTHONHOME PYTHON_GIL

python := $(VENV)/bin/python
install := tools/install.sh "$(VENV)" "$(PYTHON)"
ifeq ($(NEXTDUE_SANITIZE),thread)
# Into files, since pytest would swallow what is written while a test runs. After any the process ends with status 66.
run := TSAN_OPTIONS="suppressions=$(dir $(PYTHON))../share/tsan_suppressions.txt log_path=$(VENV)/race"
else ifdef NEXTDUE_SANITIZE
# The interpreter is not instrumented, so the sanitizer's runtime has to be there before it.
# libstdc++ too: its exceptions are looked up when the runtime starts. CPython's own leaks at exit are not our business.
# A report ends the process by a signal, so that faulthandler tells the test; and pytest must not hold back stderr, or the
# report ends with it.
run := PYTEST_ADDOPTS=--capture=sys PYTHONMALLOC=malloc \
       LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libstdc++.so)" \
       ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=halt_on_error=1:abort_on_error=1:print_stacktrace=1
endif

# Sets the shell's `python`.
free_python := python=$${NEXTDUE_FREETHREADED_PYTHON:-$$(tools/build_freethreaded.sh)} && "$$python" -c 'import sysconfig; \
	sysconfig.get_config_var("Py_GIL_DISABLED") or exit("not a free-threaded CPython")'

.PHONY: demo test lint types bench soak peers drop-ins cron debug sanitize explore freethreaded tsan parallel \
	bench-freethreaded clean help

demo:
	@$(install)
	$(VENV)/bin/nextdue demo

test:
	@$(install)
	@$(run) $(python) -P tools/check_install.py
	$(run) $(python) -P -m pytest $(ARGS)

lint:
	@$(install) lint
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	PATH="$(abspath $(VENV))/bin:$$PATH" cython-lint src

# The stubs are those of the compiled modules.
types:
	@$(install) lint
	$(python) -m mypy src
	$(python) -P -m mypy.stubtest --ignore-disjoint-bases --allowlist tools/stubtest_allowlist.txt \
		$(subst /,.,$(patsubst src/%.pyi,%,$(wildcard src/nextdue/*.pyi src/nextdue/*/*.pyi)))

bench:
	@$(install) bench
	@$(python) -P tools/check_install.py
	$(VENV)/bin/nextdue bench --results benchmarks/results $(ARGS)

soak:
	@$(install)
	@$(python) -P tools/check_install.py
	$(run) $(python) -P tools/soak.py $(ARGS)

# The standard library's tests come with the interpreter, where they come at all: PYTHON= selects one that has them.
peers:
	@$(install) peers
	@$(python) -P tools/check_install.py
	$(python) -m tools.peers $(ARGS)

drop-ins:
	@$(install) bench
	@$(python) -P tools/check_install.py
	$(python) -m benchmarks.drop_ins $(ARGS)

cron:
	@$(install)
	@$(python) -P tools/check_install.py
	$(python) -P tools/compare_cron.py "$(LINES)" $(ARGS)

debug:
	NEXTDUE_DEBUG=1 $(MAKE) test VENV=$(VENV)-debug

sanitize:
	NEXTDUE_SANITIZE=address,undefined $(MAKE) test VENV=$(VENV)-sanitize

# What failed on some build comes first. A seed makes a run repeatable that a sanitizer has ended, but keeps no sequence.
explore:
	$(MAKE) sanitize ARGS="-x -m hypothesis $(ARGS)"
	end=$$(($$SECONDS + 60 * $(MINUTES))); while [ $$SECONDS -lt $$end ]; do \
		$(MAKE) sanitize ARGS="-x -m hypothesis --hypothesis-seed=$$(date +%s) $(ARGS)" || exit; done

freethreaded:
	$(free_python) && $(MAKE) test PYTHON="$$python" VENV=$(VENV)-freethreaded

# The kernel may lay memory out where the runtime does not expect it: setarch -R. What pip does is not looked at.
# Of the pure stack there is nothing to see: its races would be the interpreter's.
threaded := $(patsubst %,tests/test_%.py,timetable_threads agenda_locks agenda_rules_threads scheduler_fuzz executor \
	scheduler scheduler_rules scheduler_shutdown wall_clock_scheduler job compat_threading)
tsan:
	@rm -f $(VENV)-tsan/race.*
	python=$${NEXTDUE_TSAN_PYTHON:-$$(tools/build_freethreaded.sh --with-thread-sanitizer)} && \
		export NEXTDUE_SANITIZE=thread TSAN_OPTIONS=report_bugs=0 && \
		setarch -R $(MAKE) test PYTHON="$$python" VENV=$(VENV)-tsan ARGS="$(or $(ARGS),$(threaded) -k 'not pure')" || \
		{ cat $(VENV)-tsan/race.*; exit 1; }

# A test that gets one of these is run as ever: its threads would share it.
parallel:
	@$(free_python) && tools/install.sh "$(VENV)-freethreaded" "$$python" parallel
	$(VENV)-freethreaded/bin/python -P -m pytest --parallel-threads=4 \
		-o thread_unsafe_fixtures="$$(printf '%s\n' agenda clock park ran table)" \
		$(or $(ARGS),tests/test_timetable.py tests/test_units.py tests/test_retry.py)

bench-freethreaded:
	@$(install)
	@$(free_python) && tools/install.sh "$(VENV)-freethreaded" "$$python"
	@mkdir -p benchmarks/results
	$(python) -P benchmarks/free_threading.py $(python) $(VENV)-freethreaded/bin/python $(ARGS) \
		| tee benchmarks/results/freethreaded.txt

clean:
	rm -rf build dist .venv .venv-debug .venv-sanitize .venv-freethreaded .venv-tsan src/*.egg-info
	rm -rf .peers .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile
