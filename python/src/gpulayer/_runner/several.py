"""Of the runner: several calls of one task, each with an outcome of its own."""

from io import BytesIO

from . import Work, dump, tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

#: All that is told of failures; above it, of each no more than what it says in short.
LARGEST_TOLD_BYTES = 16 << 20
#: How long that may be, in characters.
LARGEST_MESSAGE = 200
#: The end of a file that tells of failures. No pickle ends in it.
MARK = b"raised\n"


def write(work: Work, file: "BinaryIO") -> None:
    """The pickle of a list of outcomes, written outcome by outcome: `]( }(…u … e.` in the opcodes of pickle. What the calls
    that failed raised comes behind it, a line of JSON each: in a pickle, nobody could take a secret out of it."""
    raised = bytearray()
    file.write(b"\x80\x04](")
    for call in work.calls:
        data = BytesIO()
        try:
            dump(work.call(call), data)
        except (Exception, SystemExit) as fault:
            raised += _line(tell(work, fault), LARGEST_TOLD_BYTES - len(raised))
            file.write(b"}\x8c\x02ok\x89s")
        else:
            file.write(b"}(\x8c\x02ok\x88\x8c\x05value\x8e" + len(data.getbuffer()).to_bytes(8, "little"))
            file.write(data.getbuffer())
            file.write(b"u")
    file.write(b"e.")
    if raised:
        file.write(raised + len(raised).to_bytes(8, "little") + MARK)


def _line(told: "dict[str, Any]", room: int) -> bytes:
    import json

    line = json.dumps(told).encode("ascii")
    if len(line) >= room:
        message = told["message"][:LARGEST_MESSAGE]
        line = json.dumps({**told, "message": message, "traceback": "", "pickle": None}).encode("ascii")
    return line + b"\n"
