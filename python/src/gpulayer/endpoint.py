"""Where a server listens, as people write it: `https://HOST[:PORT]`, `http://HOST[:PORT]`, `unix:/PATH`, or all that is
needed in one line, `gpulayer://TOKEN@HOST:PORT?pin=sha256:…`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Optional

from . import pin as pins_of
from .errors import ConfigurationError

#: The port of a URL that names none.
DEFAULT_PORT = 8470
#: What every connection string begins with.
SCHEME = "gpulayer://"
_HOST = re.compile(r"[A-Za-z0-9.:_-]+")
#: What a header can carry.
_WORD = re.compile(r"[!-~]+")
_TOKEN = re.compile(r"gl[cj]_[A-Za-z0-9_]*")


@dataclass(frozen=True)
class Endpoint:
    """A Unix socket (`path`), or a host and port with TLS or without."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Reads an address; `ConfigurationError` names the forms there are."""
        if url.startswith("/"):
            return cls("unix", path=url)
        if url.startswith("unix:"):
            path = url[len("unix:") :]
            path = path[2:] if path.startswith("//") else path
            if path.startswith("/"):
                return cls("unix", path=path)
        for scheme in ("https", "http"):
            if url.startswith(f"{scheme}://"):
                place = _authority(url[len(scheme) + 3 :])
                if place is not None:
                    return cls(scheme, place[0], place[1])
        meant = f" (did you mean https://{url}?)" if _authority(url) else ""
        raise ConfigurationError(
            f"`{url}` is not a server address: expected `https://HOST[:PORT]`, `http://HOST[:PORT]`, `unix:/PATH` "
            f"or a connection string, `{SCHEME}…`{meant}"
        )

    @property
    def authority(self) -> str:
        """`HOST:PORT`, IPv6 in brackets; the path of a socket."""
        if self.scheme == "unix":
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether it is on this machine: a socket, or a loopback address by number or by its usual name."""
        if self.scheme == "unix" or self.host.lower() == "localhost":
            return True
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return bool((mapped or address).is_loopback)

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.scheme == "unix" else f"{self.scheme}://{self.authority}"


@dataclass(frozen=True)
class Target:
    """A server, and what is needed to speak with it."""

    endpoint: Endpoint
    token: Optional[str] = field(default=None, repr=False)
    pins: tuple[str, ...] = ()
    ca_file: Optional[str] = None

    def __post_init__(self) -> None:
        if self.token is not None and not (isinstance(self.token, str) and _WORD.fullmatch(self.token)):
            # It is not shown: most of it may be right.
            raise ConfigurationError(
                "the token (token=, GPULAYER_TOKEN or a saved one) cannot be used: it is no client token, `glc_` and ASCII "
                "letters, digits and `_` after it"
            )


def connection_string(text: str) -> Target:
    """Reads `gpulayer://TOKEN@HOST[:PORT][?pin=sha256:…[&pin=…]][&plain=1]`. Errors never show it: it holds a token."""
    place, _, words = text.strip()[len(SCHEME) :].partition("?")
    token, at, authority = place.partition("@")
    if not at or not _TOKEN.fullmatch(token):
        raise ConfigurationError(
            f"the connection string holds no token: `{SCHEME}TOKEN@HOST:PORT?pin=sha256:…` with a `glc_…` token "
            "is expected"
        )
    if token.startswith("glj_"):
        raise ConfigurationError(
            "that is a join token (glj_…), which only lets workers join: a client token (glc_…) is needed"
        )
    found = _authority(authority)
    if found is None:
        raise ConfigurationError("the connection string names no server: `HOST:PORT` is expected between `@` and `?`")
    pins, plain = [], False
    for word in filter(None, words.split("&")):
        name, _, value = word.partition("=")
        if name == "pin":
            pins.append(pins_of.parse(value.replace("%3A", ":").replace("%3a", ":")))
        elif word == "plain=1":
            plain = True
        else:
            raise ConfigurationError(
                "the connection string says something this version does not know; only `pin=` and `plain=1` may "
                "follow `?`"
            )
    endpoint = Endpoint("http" if plain else "https", *found)
    if plain and not endpoint.is_loopback:
        raise ConfigurationError("`plain=1` is for this machine only: a token must not cross a network in the open")
    return Target(endpoint, token, tuple(pins))


def _authority(text: str) -> Optional[tuple[str, int]]:
    """Takes `HOST`, `HOST:PORT`, `[ADDRESS]` and `[ADDRESS]:PORT` apart."""
    text = text[:-1] if text.endswith("/") else text
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            return None
        port = rest[1:] if rest else None
    else:
        host, colon, after = text.partition(":")
        port = after if colon else None
    if not _HOST.fullmatch(host):
        return None
    if port is None:
        return host, DEFAULT_PORT
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        return None
    return host, int(port)
