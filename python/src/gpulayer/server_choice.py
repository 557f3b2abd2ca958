"""Which server to speak with, as the command line decides it: what was given, else `GPULAYER_URL`, else `url` in
`config.toml`, else the saved connection in use, else `/run/gpulayer/gpulayer.sock` if it is mine, else the own
daemon. A configured server that does not answer is an error, never a reason to take another."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Union

from . import pin as pins_of
from .endpoint import SCHEME, Endpoint, Target, connection_string
from .errors import ConfigurationError
from .places import Places, resolve
from .word_types import shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: The name by which the own daemon is meant, whatever is saved.
LOCAL = "local"
#: The socket of a daemon run by the machine's service manager.
MACHINE_SOCKET = "/run/gpulayer/gpulayer.sock"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True)
class Choice:
    """The server to speak with. `own`: it runs on this machine as this user, so paths mean the same on both sides.
    `on_demand`: it is started when it does not answer."""

    target: Target
    places: Places
    own: bool = False
    on_demand: bool = False


def choose(
    given: Optional[str],
    token: Union[str, "os.PathLike[str]", None] = None,
    pin: Union[str, Sequence[str], None] = None,
    ca_file: Union[str, "os.PathLike[str]", None] = None,
    env: Optional[Mapping[str, str]] = None,
    machine_socket: str = MACHINE_SOCKET,
) -> Choice:
    """Decides; reads files, and asks no server. What was given goes before every setting."""
    _check(given, token, pin, ca_file)
    settings = _Settings(os.environ if env is None else env)
    said = Target(
        Endpoint("unix"),
        settings.text("token") if token is None else token_of(token),
        settings.pins() if pin is None else _pins(pin),
        settings.text("ca_file") if ca_file is None else os.path.abspath(ca_file),
    )
    explicit = token is not None or pin is not None or ca_file is not None
    named = given if given is not None else settings.text("url")
    if named == LOCAL:
        return _own(settings.places)
    if named is not None:
        return Choice(_target(named, said, explicit, settings.places), settings.places)
    saved = Saved.load(settings.places.connections)
    if saved.current is not None and saved.current in saved.connections:
        return Choice(_over(saved.connections[saved.current], said, explicit), settings.places)
    if _is_mine(machine_socket):
        return Choice(Target(Endpoint("unix", path=machine_socket)), settings.places, own=True)
    return _own(settings.places)


def _check(given: object, token: object, pin: object, ca_file: object) -> None:
    """Complains of what no address, token, pin or path can be made of."""
    if not isinstance(given, (str, type(None))):
        # A token may stand in it, which is not shown.
        raise ConfigurationError(
            "a server is named by a text, its address (https://HOST:PORT) or the name of a saved one, and not by a value of "
            f"the type {type(given).__name__}"
        )
    if not isinstance(token, (str, os.PathLike, type(None))):
        # It may be one, and is not shown.
        raise ConfigurationError("token= is neither a client token (glc_…) as a text nor the path of a file with it")
    words = pin if isinstance(pin, (list, tuple, set, frozenset)) else (pin,)
    if not all(isinstance(word, str) for word in words) and pin is not None:
        raise ConfigurationError(f'pin={shown(pin)} cannot be used: a pin is a text, pin="sha256:…", or a list of such')
    if not isinstance(ca_file, (str, os.PathLike, type(None))):
        raise ConfigurationError(f'ca_file={shown(ca_file)} cannot be used: the path of a file is expected')


def _own(places: Places) -> Choice:
    return Choice(Target(Endpoint("unix", path=str(places.socket))), places, own=True, on_demand=True)


def _is_mine(path: str) -> bool:
    try:
        return os.lstat(path).st_uid == os.getuid()
    except OSError:
        return False


def _target(named: str, said: Target, explicit: bool, places: Places) -> Target:
    """What a name, a URL, a path or a connection string stands for."""
    if named.strip().startswith(SCHEME):
        whole = connection_string(named)
        return replace(whole, ca_file=said.ca_file, pins=whole.pins or (said.pins if explicit else ()))
    saved = Saved.load(places.connections)
    if _NAME.fullmatch(named):
        connection = saved.connections.get(named)
        if connection is None:
            known = ", ".join(sorted(saved.connections))
            there = f"; there {'is' if len(saved.connections) == 1 else 'are'} {known}" if known else ""
            raise ConfigurationError(f"no server is saved as `{named}`{there}; `gpulayer connect` saves one")
        connection = _over(connection, said, explicit)
        return replace(connection, token=connection.token or said.token)
    target = replace(said, endpoint=Endpoint.parse(named))
    if target.token is None and not target.pins and target.ca_file is None:
        # A server that is known does not become a stranger because its address was typed.
        for connection in saved.connections.values():
            if connection.endpoint == target.endpoint:
                return connection
    return target


def _over(connection: Target, said: Target, explicit: bool) -> Target:
    """A saved server, with what the caller gave in place of what is saved."""
    if not explicit:
        return connection
    trust = said if said.pins or said.ca_file else connection
    return replace(connection, token=said.token or connection.token, pins=trust.pins, ca_file=trust.ca_file)


def token_of(given: Union[str, "os.PathLike[str]"]) -> str:
    """A token: itself, or the first word of the file at a path (anything that does not begin as a token does)."""
    text = os.fspath(given)
    if isinstance(given, str) and text.startswith("glc_"):
        return text
    if text.startswith("glj_"):
        raise ConfigurationError(
            "that is a join token (glj_…), which only lets workers join: a client token (glc_…) is needed"
        )
    if isinstance(given, str) and "/" not in text and not os.path.exists(text):
        # It may be a token that lost its beginning: it is not shown.
        raise ConfigurationError("token= is neither a client token (glc_…) nor a file that is there")
    try:
        words = Path(text).read_text(encoding="utf-8").split()
    except (OSError, ValueError) as fault:
        raise ConfigurationError(f"cannot read the token file {text}: {fault}") from fault
    if len(words) != 1 or not words[0].startswith("glc_"):
        raise ConfigurationError(f"{text} does not hold one client token (glc_…)")
    return words[0]


def _pins(given: Union[str, Sequence[str]]) -> tuple[str, ...]:
    words = re.split(r"[,\s]+", given.strip()) if isinstance(given, str) else given
    return tuple(pins_of.parse(word) for word in words if word)


class _Settings:
    """`GPULAYER_*`, then `config.toml`. An empty variable counts as none."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.places = resolve(env)
        self._env = env
        self._file = _toml(self.places.config)

    def text(self, name: str) -> Optional[str]:
        value = self._value(name)
        if value is None or isinstance(value, str):
            return value or None
        raise ConfigurationError(f"`{name}` in {self.places.config}: expected a text")

    def pins(self) -> tuple[str, ...]:
        value = self._value("pin")
        try:
            return _pins(value) if value else ()
        except ConfigurationError as fault:
            raise ConfigurationError(f"GPULAYER_PIN, or `pin` in {self.places.config}: {fault}") from None

    def _value(self, name: str) -> Any:
        return self._env.get(f"GPULAYER_{name.upper()}") or self._file.get(name)


@dataclass(frozen=True)
class Saved:
    """Servers that `gpulayer connect` has saved, by name; `current` is the one in use."""

    current: Optional[str]
    connections: Mapping[str, Target]

    @classmethod
    def load(cls, path: Path) -> Saved:
        """Reads `connections.toml`; none is an empty one."""
        table = _toml(path)
        connections: dict[str, Target] = {}
        for name, saved in table.get("connections", {}).items():
            try:
                pins = tuple(pins_of.parse(text) for text in saved.get("pins", ()))
                connections[name] = Target(Endpoint.parse(saved["url"]), saved.get("token"), pins, saved.get("ca_file"))
            except (KeyError, TypeError, AttributeError):
                raise ConfigurationError(f"`{name}` in {path} cannot be read: `url` is expected") from None
        return cls(table.get("current"), connections)


def _toml(path: Path) -> Mapping[str, Any]:
    try:
        table: Mapping[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return table
    except FileNotFoundError:
        return {}
    except OSError as fault:
        raise ConfigurationError(f"cannot read {path}: {fault}") from fault
    except ValueError as fault:
        # The line itself may hold a token; the reader's message has only its number.
        raise ConfigurationError(f"{path} is not valid TOML: {fault}") from None
