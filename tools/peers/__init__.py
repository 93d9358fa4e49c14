"""The peers' own tests, run against the original and against our drop-in: ``python -m tools.peers [NAME...]``.

A module here without an underscore is a peer: its name is how the peer is called, and its ``PEER`` says where the
tests come from, how to put the drop-in in the original's place, and which page of ``docs/compat/`` holds the reasons.
A test that the original passes and the drop-in does not needs a row of that page's table (`| `test` | reason |`, where
the test may be a pattern), or the run fails. Nothing of the peers' is kept: tests come from the interpreter's own
``test`` package, or from an sdist that is downloaded into ``.peers/``, where the logs are, too.
"""
