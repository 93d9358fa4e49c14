"""What `make peers` makes of the outcomes of a peer's tests and of the reasons on a page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from tools.peers import __main__ as peers

    yield peers
    for name in [name for name in sys.modules if name == "tools" or name.startswith("tools.")]:
        del sys.modules[name]


def test_judge_tells_what_only_the_original_passes(peers) -> None:
    original = {"test_a": "passed", "test_b": "passed", "test_c": "failed", "test_d": "passed", "test_e": "passed"}
    ours = {"test_a": "passed", "test_b": "failed", "test_c": "failed", "test_d": "skipped"}
    lost, listed, idle = peers.judge(original, ours, {"test_b": "why", "test_[a]": "needless"})
    assert (lost, listed, idle) == (["test_d", "test_e"], ["test_b"], ["test_[a]"])


def test_reasons_are_the_rows_of_a_page_that_name_a_test(peers, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("| test | reason |\n|---|---|\n| `a.py::test_x[1-*]` | since it is so |\n| `cancel` | fast |\n")
    assert peers.reasons(page) == {"a.py::test_x[1-*]": "since it is so"}
    assert peers.reasons(tmp_path / "none.md") == {}


def test_every_peer_has_a_page_of_its_drop_in(peers) -> None:
    pages = {path.stem for path in (ROOT / "docs" / "compat").glob("*.md")}
    assert {"sched", "threading"} <= set(peers.names())
    for name in ("sched", "threading"):
        assert __import__(f"tools.peers.{name}", fromlist=["PEER"]).PEER.page in pages
