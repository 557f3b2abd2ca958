"""A server's key, named by its hash: SHA-256 of its certificate's SubjectPublicKeyInfo, `sha256:<64 hex digits>`.
Certificates are renewed under the same key, so a pin stays."""

from __future__ import annotations

import hashlib
import re
import ssl
from typing import Iterable, Optional

from .errors import ConfigurationError

_PIN = re.compile(r"sha256:([0-9a-fA-F]{64})")


def parse(text: str) -> str:
    """A pin in the form it is compared in, or `ConfigurationError`."""
    found = _PIN.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(f"{text[:100]!r} is not a pin: expected `sha256:` and 64 hex digits; was it cut off?")
    return f"sha256:{found.group(1).lower()}"


def of_certificate(der: bytes) -> str:
    """The pin of a certificate's key; `ValueError` when the bytes are no certificate."""
    certificate = _Element.at(der, 0, _SEQUENCE)
    fields = _Element.at(der, certificate.begin, _SEQUENCE)
    at = fields.begin
    version = _Element.any_at(der, at)
    if version.tag == _VERSION:
        at = version.end
    # serialNumber, signature, issuer, validity, subject: what comes next is the key.
    for tag in (_INTEGER, _SEQUENCE, _SEQUENCE, _SEQUENCE, _SEQUENCE):
        at = _Element.at(der, at, tag).end
    key = _Element.at(der, at, _SEQUENCE)
    if key.end > fields.end:
        raise ValueError("the certificate's key reaches beyond its end")
    return "sha256:" + hashlib.sha256(der[at : key.end]).hexdigest()


_SEQUENCE, _INTEGER, _VERSION = 0x30, 0x02, 0xA0


class _Element:
    """One element of DER: its tag, and where its contents begin and end."""

    def __init__(self, tag: int, begin: int, end: int) -> None:
        self.tag, self.begin, self.end = tag, begin, end

    @classmethod
    def any_at(cls, der: bytes, at: int) -> _Element:
        if at + 2 > len(der):
            raise ValueError("the certificate is cut off")
        tag, length, begin = der[at], der[at + 1], at + 2
        if length >= 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4 or begin + count > len(der):
                raise ValueError("the certificate has a length that DER does not allow")
            length = int.from_bytes(der[begin : begin + count], "big")
            begin += count
        if begin + length > len(der):
            raise ValueError("the certificate is cut off")
        return cls(tag, begin, begin + length)

    @classmethod
    def at(cls, der: bytes, at: int, tag: int) -> _Element:
        found = cls.any_at(der, at)
        if found.tag != tag:
            raise ValueError(f"the certificate has {found.tag:#04x} where {tag:#04x} belongs")
        return found


class WrongKey(ssl.SSLCertVerificationError):
    """The handshake's end: the server has another key. Raised before anything is sent over the connection."""

    def __init__(self, seen: str, pins: Iterable[str]) -> None:
        super().__init__(f"the server's key is {seen}, and the pinned one is {' or '.join(sorted(pins))}")
        self.seen = seen


def pinned_context(pins: Iterable[str]) -> ssl.SSLContext:
    """TLS to a server with one of these keys and no other, whatever its names and dates.

    The handshake itself proves that the server holds the key of the certificate it shows, also without a check of
    the certificate; which key that is, is compared as the last step of the handshake.
    """
    wanted = frozenset(pins)

    class PinnedConnection(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            shown: Optional[bytes] = self.getpeercert(binary_form=True)
            try:
                seen = of_certificate(shown or b"")
            except ValueError as fault:
                raise ssl.SSLCertVerificationError(f"the server's certificate cannot be read: {fault}") from None
            if seen not in wanted:
                raise WrongKey(seen, wanted)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslobject_class = PinnedConnection
    return context


def authorities_context(ca_file: Optional[str]) -> ssl.SSLContext:
    """TLS to a server whose certificate is signed by an authority in this file, or by one of the system's."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as fault:
        raise ConfigurationError(f"cannot read the CA file {ca_file}: {fault}") from fault
    if ca_file is not None:
        # From Python 3.13 on the default asks for extensions that a certificate one made oneself need not have.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
