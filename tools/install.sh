#!/usr/bin/env bash
# Install this tree's nextdue, with what its tests need, into a virtual environment. Does nothing when nothing changed.
#
#   tools/install.sh VENV [PYTHON [GROUP...]]        GROUP: more dependency groups of pyproject.toml
#
# The package is installed as a user gets it, not editable: an extension that was not built cannot hide behind the source
# tree. The build runs in VENV/stage, on a copy of the tree that keeps the compiled objects of the last build: no two
# interpreters or switches share an object, what left the tree leaves the package, and an edit recompiles only what it
# touches. VENV is made anew when the interpreter or one of setup.py's switches differs.
set -euo pipefail

[ $# -ge 1 ] || { echo "usage: tools/install.sh VENV [PYTHON [GROUP...]]" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$1
python=${2:-python3}
groups=(test "${@:3}")
stage=$venv/stage

unset PYTHONPATH PYTHONHOME # they would shadow what is installed
# The newest numpy has no wheel for every Python that nextdue supports; an older one is better than compiling it.
export PIP_PREFER_BINARY=1 PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf 'install: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
pip() { "$venv/bin/python" -m pip --quiet "$@"; }
holds() { [ "$(cat "$1" 2>/dev/null)" = "$2" ]; } # holds FILE TEXT

identity=$("$python" - <<'PY'
import os
import sys
import sysconfig

if sys.version_info < (3, 11):
    sys.exit(f"nextdue needs Python 3.11 or newer, got {sys.version.split()[0]}")
header = os.path.join(sysconfig.get_path("include"), "Python.h")
if os.environ.get("NEXTDUE_PURE", "") in ("", "0") and not os.path.exists(header):
    sys.exit(f"{header} is missing: install the headers of this Python (Debian: python3-dev)")
switches = [os.environ.get(f"NEXTDUE_{name}", "") for name in ("PURE", "DEBUG", "SANITIZE", "COVERAGE")]
print(sys.version.replace("\n", " "), sys.base_prefix, switches)
PY
) || die "cannot build with $python; choose another Python with PYTHON="

if ! holds "$venv/identity" "$identity"; then
    if [ -e "$venv" ]; then
        [ -e "$venv/pyvenv.cfg" ] || die "$venv exists and is no virtual environment"
        rm -rf "$venv"
    fi
    say "making $venv with $("$python" -VV | head -n 1)"
    "$python" -m venv "$venv" || die "$python -m venv failed (Debian: install python3-venv)"
    pip install --upgrade 'pip>=25.1' # the first that reads dependency groups
    printf '%s\n' "$identity" >"$venv/identity"
fi

recipe=$(cd "$root" && cksum pyproject.toml setup.py tools/install.sh)
for group in "${groups[@]}"; do
    if ! holds "$venv/group-$group" "$recipe"; then
        pip install --group "$root/pyproject.toml:$group"
        printf '%s\n' "$recipe" >"$venv/group-$group"
    fi
done

sources() { find src -name __pycache__ -prune -o -name '*.egg-info' -prune -o -type f ! -name '*.so' ! -name '*.c' -print0; }
content=$(cd "$root" && { echo "$recipe"; sources | sort -z | xargs -0 cksum; } | cksum)
if ! holds "$venv/content" "$content"; then
    rm -f "$venv/content"
    if ! holds "$stage/recipe" "$recipe"; then
        rm -rf "$stage"
        mkdir "$stage"
        printf '%s\n' "$recipe" >"$stage/recipe"
    fi
    rm -rf "$stage/src"
    (cd "$root" && { printf '%s\0' pyproject.toml setup.py README.md LICENSE; sources; } | xargs -0 cp -a --parents -t "$stage")
    # setuptools never forgets a module that it copied once: take those away, leave the objects.
    [ ! -d "$stage/build" ] || find "$stage/build" -path '*/lib*' -type f ! -name '*.so' -delete
    say "building and installing nextdue"
    pip install "$stage"
    printf '%s\n' "$content" >"$venv/content"
fi
