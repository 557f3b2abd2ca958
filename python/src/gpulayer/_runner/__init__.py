"""Runs the Python function of a job: reads the call from the folder that `GPULAYER_FUNCTION` names, calls, and leaves
there either `returned` or `raised`, whole; neither when it was stopped. What the files hold: docs/CONTRACT.md, "Functions".

The standard library alone, for Python 3.9 and newer: no package is needed where it runs. A call that succeeds imports almost
nothing (no `json`, `pickle`, `cloudpickle`), and what only a failure needs is imported by the failure.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


class CallError(Exception):
    """Something about the call that is no exception of the function, with what to do about it."""

    def __init__(self, message: str, advice: "Optional[str]" = None) -> None:
        super().__init__(message)
        self.advice = advice
