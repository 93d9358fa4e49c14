"""The five states of a job."""

import enum


class Status(enum.StrEnum):
    """What a job is doing; the last three are ends."""

    SCHEDULED = "scheduled"  # waits for its time, or, due, for a worker
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
