"""Stands in for the `cython` module where Cython is not installed: `agenda.py` asks it only whether it is compiled."""

compiled = False
