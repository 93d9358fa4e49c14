"""Prove that the nextdue which this interpreter imports is the installed one, on the stack that was asked for.

    python -P tools/check_install.py

A suite that passes because an extension silently was not built proves nothing about the compiled stack; one that passes
on a free-threaded build with the GIL back on proves nothing about threads.
"""

import importlib
import os
import re
import sys
import sysconfig
from pathlib import Path


def declared_extensions() -> set[str]:
    setup = Path(__file__).parents[1] / "setup.py"
    names = set(re.findall(r'extension\("([\w.]+)"', setup.read_text(encoding="utf-8")))
    if not names:
        sys.exit('setup.py must declare extensions as extension("name", ...), got none')
    return names


def main() -> None:
    import nextdue

    package = Path(nextdue.__file__).resolve().parent
    site = Path(sysconfig.get_path("platlib")).resolve()
    if package.parent != site:
        sys.exit(f"nextdue must be installed in {site}, got {package}")

    pure = os.environ.get("NEXTDUE_PURE", "") not in ("", "0")
    backend = "pure" if pure else "compiled"
    if backend != nextdue.BACKEND:
        sys.exit(f"nextdue.BACKEND must be {backend!r}, got {nextdue.BACKEND!r}")

    expected = set() if pure else declared_extensions()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    built = {str(path.relative_to(package)).removesuffix(suffix).replace(os.sep, ".") for path in package.rglob("*.so")}
    if built != expected:
        sys.exit(f"extension modules must be {sorted(expected)}, got {sorted(built)}")
    for name in sorted(built):
        importlib.import_module(f"nextdue.{name}")

    # Importing an extension that does not declare itself free-threaded turns the GIL on for the whole process.
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    if free_threaded and sys._is_gil_enabled():
        sys.exit("the GIL must stay off after importing nextdue, got on")

    gil = "without the GIL" if free_threaded else "with the GIL"
    print(f"nextdue {backend}, extensions {sorted(built)}, Python {sys.version.split()[0]} {gil}")


if __name__ == "__main__":
    main()
