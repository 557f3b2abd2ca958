"""Artifacts over the wire: uploads that go on where the server stands, downloads that are verified while they are
written. Constant memory in both directions."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import threading
from io import FileIO
from pathlib import Path
from typing import AsyncIterator, BinaryIO, Callable, Mapping, Optional

from . import routes
from .disk import cannot_write
from .errors import ConfigurationError, CutError, GPUlayerError, UnexpectedAnswerError
from .routes import Route
from .session import ANSWER_S, SILENT_S, Session

_PIECE_BYTES = 256 << 10
_ADDRESS = "artifact://sha256/"
#: From this size on it is worth a question whether an earlier try has brought a part.
_WORTH_ASKING_BYTES = 4 << 20
#: Most addresses of one question.
_ASKED_AT_ONCE = 10_000
_SENT_AT_ONCE = 8

Told = Callable[[int], None]


class DamagedError(UnexpectedAnswerError):
    """The bytes of one artifact are not those of its address."""


async def digest_of(path: str) -> tuple[str, int]:
    """SHA-256 in hex and length of a file. Cancelled, it stops reading: the end of the process waits for it."""
    given_up = threading.Event()
    try:
        return await asyncio.get_running_loop().run_in_executor(None, _digest_of, path, given_up)
    finally:
        given_up.set()


def _digest_of(path: str, given_up: threading.Event) -> tuple[str, int]:
    found, size = hashlib.sha256(), 0
    try:
        with open(path, "rb") as file:
            while not given_up.is_set():
                piece = file.read(_PIECE_BYTES)
                if not piece:
                    break
                found.update(piece)
                size += len(piece)
            return found.hexdigest(), size
    except OSError as fault:
        raise ConfigurationError(f"cannot read the input {path}: {fault}") from fault


async def send(session: Session, path: str) -> str:
    """Brings a file to the server; its address."""
    digest, size = await digest_of(path)
    address = _ADDRESS + digest
    asked = await session.call(routes.MISSING, body={"artifacts": [address]})
    if asked["missing"]:
        await _upload(session, path, digest, size)
    return address


async def send_all(session: Session, files: Mapping[str, tuple[str, int]]) -> None:
    """Brings files to the server that it lacks: path and size in bytes by digest."""
    digests, lacking = list(files), []
    for begin in range(0, len(digests), _ASKED_AT_ONCE):
        asked = [_ADDRESS + digest for digest in digests[begin : begin + _ASKED_AT_ONCE]]
        answer = await session.call(routes.MISSING, body={"artifacts": asked})
        lacking += [hex_of(address) for address in answer["missing"]]
    lanes = asyncio.Semaphore(_SENT_AT_ONCE)

    async def one(digest: str) -> None:
        async with lanes:
            await _upload(session, files[digest][0], digest, files[digest][1])

    sending = [asyncio.ensure_future(one(digest)) for digest in lacking]
    try:
        await asyncio.gather(*sending)
    finally:
        for each in sending:
            each.cancel()


async def _upload(session: Session, path: str, digest: str, size: int) -> None:
    patience = session.patience()
    offset: Optional[int] = 0
    if size >= _WORTH_ASKING_BYTES:
        offset = await session.persist(lambda: _offset(session, digest), patience)
    while offset is not None:
        try:
            await _upload_rest(session, path, digest, size, offset)
            return
        except GPUlayerError as failed:
            if not await patience.pause_after(failed):
                raise
        before = offset
        offset = await session.persist(lambda: _offset(session, digest), patience)
        if offset is not None and offset > before:
            patience.renew()


async def _offset(session: Session, digest: str) -> Optional[int]:
    """Where an upload stands; `None` = the server has all of it."""
    names = {"hex": digest}
    with session.whole(f"HEAD {_ADDRESS}{digest}", ANSWER_S):
        async with session.open(routes.ARTIFACT_HEAD, names, expect=(404,)) as answer:
            return int(answer.headers.get("upload-offset", 0)) if answer.status_code == 404 else None


async def _upload_rest(session: Session, path: str, digest: str, size: int, offset: int) -> None:
    # All of it may be there and not finished: the last byte again makes it whole.
    offset = min(offset, max(size - 1, 0))
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size - offset)}
    if 0 < offset < size:
        headers["Content-Range"] = f"bytes {offset}-{size - 1}/{size}"
    # Opened here: after a cut nobody closes what was to be sent.
    with open(path, "rb") as file:
        file.seek(offset)
        pieces = _pieces(file, size - offset)
        async with session.open(routes.UPLOAD, {"hex": digest}, {}, pieces, headers, SILENT_S) as answer:
            if answer.status_code == 202:
                raise CutError(f"the server has only a part of {path} so far")


async def _pieces(file: BinaryIO, left: int) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    while left > 0:
        piece = await loop.run_in_executor(None, file.read, min(left, _PIECE_BYTES))
        if not piece:
            raise ConfigurationError(f"{file.name} became shorter while it was sent")
        left -= len(piece)
        yield piece


async def receive(
    session: Session, route: Route, names: Mapping[str, str], place: Path, mode: int, digest: Optional[str], told: Told
) -> None:
    """Writes bytes beside `place`, checks them, and puts them there whole. Goes on after a cut."""
    descriptor, beside = tempfile.mkstemp(prefix=f".{place.name[:100]}.", suffix=".part", dir=place.parent)
    try:
        # Without a buffer: for what was left in one there would be no room when it is closed either.
        with FileIO(descriptor, "wb") as file:
            found, patience, at = hashlib.sha256(), session.patience(), 0

            async def rest() -> None:
                nonlocal at
                headers = {"Range": f"bytes={at}-"} if at else {}
                async with session.open(route, names, headers=headers, answer_s=SILENT_S) as answer:
                    if at and answer.status_code != 206:
                        raise UnexpectedAnswerError(f"{place.name}: the server began anew in the middle")
                    async for piece in answer.aiter_bytes(_PIECE_BYTES):
                        _write(file, piece, place)
                        found.update(piece)
                        at += len(piece)
                        patience.renew()
                        told(len(piece))

            await session.persist(rest, patience)
        if digest is not None and found.hexdigest() != digest:
            raise DamagedError(
                f"the bytes received for {digest} have the digest {found.hexdigest()}; nothing was written to {place}"
            )
        os.chmod(beside, mode & 0o777)
        os.replace(beside, place)
    except BaseException:
        os.unlink(beside)
        raise


def _write(file: FileIO, piece: bytes, place: Path) -> None:
    rest = memoryview(piece)
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as fault:
        raise cannot_write(f"{place.name} cannot be brought there", str(place.parent), fault) from None


def hex_of(address: str) -> str:
    """The digest of an `artifact://sha256/…` address."""
    if not address.startswith(_ADDRESS):
        raise UnexpectedAnswerError(f"{address!r} is no address of an artifact")
    return address[len(_ADDRESS) :]
