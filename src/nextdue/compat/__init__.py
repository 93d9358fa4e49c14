"""Drop-ins: each module stands in for the timer store of something people already run, and keeps its public face.

Nothing is imported from here; import the module that is wanted, as in ``from nextdue.compat import sched``.
"""
