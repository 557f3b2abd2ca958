"""Of the runner: one task from its beginning to its end, and the program."""

import _signal  # type: ignore[import-not-found]
import os
import sys

from . import CallError, modules
from .leaving import Kept, dump
from .modules import PythonsOwn
from .process import flush, remember_start
from .stops import STOPPED_STATUS, asks, call_ends, ends_task, heed_stops, other_threads
from .work import Work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(folder: str) -> int:
    """The exit status: 0 with `returned`, 1 with `raised`, and that of a stop with neither, save what came of those of
    several calls that were through."""
    library = modules.library()
    if library not in sys.path and os.path.isdir(library):
        sys.path.append(library)
    part = os.path.join(folder, "returned.part")
    work = Work(folder)
    try:
        heed_stops()
        work.load()
        if work.many:
            from .several import PART, write

            part = os.path.join(folder, PART)
            write(work, part)
        else:
            _write(work, part)
        flush()
        call_ends()
        os.rename(part, os.path.join(folder, "returned"))
        return 0
    except BaseException as fault:
        call_ends()
        is_stopped = ends_task(fault)
        # Of several calls it has what came of those before.
        if not work.many and os.path.exists(part):
            os.unlink(part)
        if is_stopped:
            return _stopped()
        try:
            from .faults import told

            found = told(work, fault)
            with PythonsOwn():
                import json

            part = os.path.join(folder, "raised.part")
            with open(part, "w", encoding="ascii") as out:
                json.dump(found, out)
            flush()
            os.rename(part, os.path.join(folder, "raised"))
        except (ImportError, LookupError, OSError) as why:
            _say(fault, folder, why)
        return 1


def _write(work: Work, path: str) -> None:
    """Calls, and writes what came of it."""
    kept = Kept(path)
    try:
        value = work.call(work.calls[0])
        with kept.at_end() as file:
            if work.is_json:
                with PythonsOwn():
                    import json

                file.write(json.dumps(value, allow_nan=False).encode("ascii"))
            else:
                dump(value, file)
        if os.path.getsize(path) == 0:
            raise CallError("what the function returned was not written: its file was closed meanwhile")
    finally:
        kept.close()


def _say(fault: BaseException, folder: str, why: BaseException) -> None:
    """On standard error alone, as nothing can be told: the function has taken its folder away, or its own way there."""
    reason = f"{type(why).__name__}: {why}"
    try:
        os.stat(os.path.join(folder, "call.json"))
    except FileNotFoundError:
        reason = "that is not there any more"
    except OSError as barred:
        reason = str(barred.strerror)
    try:
        if isinstance(why, ImportError):
            # Else it was said.
            sys.excepthook(type(fault), fault, fault.__traceback__)
        print(f"[what came of the call cannot be left in {folder}: {reason}]", file=sys.stderr, flush=True)
    except Exception:
        pass


def _stopped() -> int:
    """The end of a task that was stopped."""
    threading = sys.modules.get("threading")
    if threading is not None and not all(thread.daemon for thread in other_threads(threading)):
        import atexit

        # Nothing tells these threads to end.
        atexit._run_exitfuncs()
        flush()
        os._exit(STOPPED_STATUS)
    flush()
    return STOPPED_STATUS


def begin() -> int:
    """As a program: the exit status."""
    remember_start()
    # The path of a workspace that other tasks will have as well.
    lasting = sys.argv.pop() if len(sys.argv) > 1 else None
    if lasting is not None:
        modules.work_in(lasting)
    if sys.path and sys.path[0] == modules.PROGRAMS:
        sys.path[0] = modules.workspace()
    else:
        sys.path.insert(0, modules.workspace())
    if lasting is None:
        status = main(os.environ["GPULAYER_FUNCTION"])
    else:
        from .serving import serve

        status = serve()
    if asks():
        # Python's own end takes the handler away, and the signal of a stop that was asked about may still come.
        _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGTERM,))
    return status


def names_of_program() -> "dict[str, Any]":
    """In a child that `multiprocessing` spawned, whose `__main__` is to be as its parent's."""
    try:
        Work(os.environ["GPULAYER_FUNCTION"]).load()
    except Exception:
        # It may do without.
        return {}
    program = modules.program()
    return {} if program is None else vars(program)
