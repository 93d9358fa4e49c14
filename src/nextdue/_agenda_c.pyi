"""The compiled agenda has the face of the plain one: one source."""

from .agenda import Agenda, Job

__all__ = ["Agenda", "Job"]
