"""This package's version, which is that of the binaries it comes with."""

from importlib.metadata import PackageNotFoundError, version


def _version() -> str:
    try:
        return version("gpulayer")
    except PackageNotFoundError:
        # Used from a checkout that was not installed.
        return "0+checkout"


VERSION = __version__ = _version()
