"""The runner as a program; the package lies beside it under this name on a worker."""

import os
import sys

if __name__ == "__main__":
    if getattr(sys.flags, "safe_path", False):
        # `PYTHONSAFEPATH` is about the user's modules.
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from _gpulayer_runner.main import begin  # type: ignore[import-not-found]

    sys.exit(begin())
elif __name__ == "__mp_main__":
    # A child that `multiprocessing` spawned: it has its parent's path, where this is not.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from _gpulayer_runner.main import names_of_program  # pyright: ignore[reportMissingImports]

    del sys.path[0]
    globals().update(names_of_program())
