"""Files of this machine that cannot be written: which, and what helps."""

from __future__ import annotations

import errno
import os
import tempfile

from .errors import DiskError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def cannot_write(what: str, folder: str, fault: OSError) -> DiskError:
    """What the system said, of a file in a folder."""
    advice = ["make room there"] if fault.errno in _FULL else []
    if os.path.abspath(folder) == os.path.abspath(tempfile.tempdir or os.environ.get("TMPDIR") or "/tmp"):
        advice.append("name another folder for temporary files in the environment: TMPDIR=/PATH")
    told = f"{fault.strerror or fault}: {what}"
    return DiskError(fault.errno or 0, f"{told}; {', or '.join(advice)}" if advice else told, folder)
