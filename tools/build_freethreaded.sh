#!/usr/bin/env bash
# Build a free-threaded CPython 3.13 (`--disable-gil`, no PGO) from Debian's source package.
#
#   tools/build_freethreaded.sh [--with-thread-sanitizer] [PREFIX]        default: .freethreaded, or
#                                                                         .freethreaded-tsan, in this tree
#
# Prints the interpreter's path on standard output, everything else on standard error. Running it again with the same
# PREFIX builds nothing. Takes about five minutes on two cores.
#
# --with-thread-sanitizer: an interpreter that is instrumented itself, so that races between it and the extensions are
# seen. Every extension that is built for it is instrumented, too. CPython's own list of suppressions for it is put
# into PREFIX/share. It wants to run without address space randomisation: setarch -R.
#
# The source comes from the mirror that this machine's apt already uses, through an apt configuration of the script's
# own: the system's sources and lists stay as they are. Elsewhere, hand in an unpacked-by-`tar xf` source archive:
#   NEXTDUE_CPYTHON_SOURCE=Python-3.13.x.tar.xz tools/build_freethreaded.sh
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
configure=(--disable-gil --with-ensurepip=install --disable-test-modules)
plain=() # what runs the interpreter
default=$here/.freethreaded
if [ "${1:-}" = --with-thread-sanitizer ]; then
    configure+=("$1")
    plain=(setarch -R)
    default+=-tsan
    # Tell at the end of no race that the build itself met.
    export TSAN_OPTIONS=report_bugs=0
    shift
fi
prefix=${1:-$default}
mkdir -p "$prefix"
prefix=$(cd "$prefix" && pwd)
python=$prefix/bin/python3.13t

# The Debian release whose python3.13 is maintained: 13.
readonly suite=trixie
# What CPython needs to build the modules that pip and the tests import.
readonly build_packages=(gcc make libc6-dev pkg-config xz-utils libssl-dev zlib1g-dev libffi-dev libbz2-dev liblzma-dev libsqlite3-dev)

say() { printf 'build_freethreaded: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

works() {
    [ -x "$python" ] && "${plain[@]}" "$python" - "${configure[@]}" >/dev/null 2>&1 <<'PY'
import bz2, ctypes, lzma, sqlite3, ssl, sys, sysconfig, venv, zlib
import pip
assert all(repr(switch) in sysconfig.get_config_var("CONFIG_ARGS") for switch in sys.argv[1:])
assert not sys._is_gil_enabled()
PY
}

if works; then
    say "$("$python" -VV | head -n 1) is there already"
    echo "$python"
    exit 0
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

install_build_packages() {
    command -v dpkg-query >/dev/null || { say "no dpkg here: taking the compiler and libraries as they are"; return; }
    local missing=() package
    for package in "${build_packages[@]}"; do
        dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] || die "please install first: ${missing[*]}"
    say "installing ${missing[*]}"
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } \
        >"$scratch/install.log" 2>&1 </dev/null || { tail -n 20 "$scratch/install.log" >&2; die "apt-get install failed"; }
}

debian_mirror() {
    # The repository that serves this system's own Debian packages: told by its Release file's Origin or, before the
    # first `apt-get update`, by the customary end of its path.
    apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Created-By: Packages' |
        awk '($1 == "Debian" || $NF ~ /\/debian\/?$/) && $NF !~ /security/ { print $NF; exit }'
}

download_source() {
    command -v apt-get >/dev/null || die "no apt-get here: set NEXTDUE_CPYTHON_SOURCE to CPython's source archive"
    local mirror keyring=/usr/share/keyrings/debian-archive-keyring.gpg apt=$scratch/apt
    mirror=$(debian_mirror)
    [ -n "$mirror" ] || die "no Debian mirror among apt's sources: set NEXTDUE_CPYTHON_SOURCE to CPython's source archive"
    [ -r "$keyring" ] || die "$keyring is missing: install debian-archive-keyring"
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/parts"
    echo "deb-src [signed-by=$keyring] $mirror $suite main" >"$apt/sources.list"
    cat >"$apt/apt.conf" <<CONF
Dir::Etc::SourceList "$apt/sources.list";
Dir::Etc::SourceParts "$apt/parts";
Dir::State::Lists "$apt/lists";
Dir::Cache "$apt/cache";
APT::Sandbox::User "$(id -un)";
CONF
    say "downloading python3.13's source ($suite)"
    (
        cd "$scratch"
        export APT_CONFIG=$apt/apt.conf
        apt-get update && apt-get source --download-only python3.13
    ) >"$scratch/download.log" 2>&1 </dev/null || { tail -n 20 "$scratch/download.log" >&2; die "no source to be had"; }
    local found=("$scratch"/python3.13_*.orig.tar.*)
    source_archive=${found[0]}
}

install_build_packages
source_archive=${NEXTDUE_CPYTHON_SOURCE:-}
[ -n "$source_archive" ] || download_source
[ -r "$source_archive" ] || die "cannot read $source_archive"

mkdir "$scratch/source"
tar -xf "$source_archive" -C "$scratch/source" --strip-components=1
cd "$scratch/source"

run() { # run WHAT COMMAND...: quietly, unless it fails
    local what=$1
    shift
    say "$what"
    "$@" >"$scratch/build.log" 2>&1 </dev/null || { tail -n 40 "$scratch/build.log" >&2; die "$what failed"; }
}
# The environment's flags for extensions are not meant for the interpreter.
unset CFLAGS CPPFLAGS LDFLAGS PYTHONPATH PYTHONHOME
run "configuring" "${plain[@]}" ./configure --prefix="$prefix" "${configure[@]}"
run "compiling (the long part)" "${plain[@]}" nice make -j "$(getconf _NPROCESSORS_ONLN)"
run "installing into $prefix" "${plain[@]}" make install
cp Tools/tsan/suppressions_free_threading.txt "$prefix/share/tsan_suppressions.txt"

works || { "$python" -c 'import bz2, ctypes, lzma, sqlite3, ssl, venv, zlib, pip' >&2 || true; die "$python does not work"; }
say "built $("$python" -VV | head -n 1)"
echo "$python"
