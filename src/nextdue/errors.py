"""Errors that a caller would catch by name; everything else is a builtin."""


class DuplicateJobId(ValueError):
    """A job was given the id of one that has not ended."""


class UnknownJobId(KeyError):
    """An id that no job has, or whose job ended so long ago that the agenda has forgotten it."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show the repr of its message


class TooManyJobs(RuntimeError):
    """As many jobs wait as `max_waiting` allows."""


class FailedResult(Exception):
    """A task returned a value that `is_failure` counts as a failure; it is in `value`."""

    def __init__(self, value: object) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:  # when it is asked for: to be printed is the value's own code, and may take long
        return f"the result counts as a failure: {self.value!r}"
