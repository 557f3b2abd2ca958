"""What a server says, and a program such as the one that makes bundles, speaks of the command line; here in this package's
words."""

from __future__ import annotations

import re
from typing import Annotated, Callable, Sequence, Union

_Put = Union[str, Callable[["re.Match[str]"], str]]

#: How a value ends that stands in a sentence.
_ENDS = r"(?=[\s,;)`]|$)"
#: As `gpulayer submit` has them; of all others no word of this package is known.
_FLAGS = (
    "array|cpus|cwd|disk|env|gpus|gpu-memory|grace|input|label|memory|name|output|priority|profile|project|python|"
    "queue-timeout|requirements|retries|retry-on|secret|source|stop-signal|target|timeout"
)
_SEVERAL = {"input", "label", "output", "secret"}
_WORDS: Sequence[tuple[str, _Put]] = (
    (r"--env (\w+)=([^\s,;)`]+)", r'env={"\1": "\2"}'),
    (r"--env (?=[A-Z]\w+ )", "env= with "),
    (r"(?:,? or )(?:use )?--here", ""),
    (r" \(`--here`\)", ""),
    (r"--input (\S+/|\S+\.\w+)" + _ENDS, r'inputs={"\1": "\1"}'),
    (r"--secret (\w+)=(\w+:\w+)", r'secrets={"\1": "\2"}'),
    (r"--(memory|timeout) (\d(?:[\w.]*\w)?)", r'\1="\2"'),
    (r"--(gpus|cpus|retries) (\d+|N\b)(?= --)", r"\1=\2,"),
    (r"--(gpus|cpus|retries) (\d+|N\b)", r"\1=\2"),
    (r"--retry-on (\w+)", r'retry_on=["\1"]'),
    (r"--source none\b", 'source="none"'),
    (r"--distributed=(\w+)", r'launcher="\1"'),
    (rf"--({_FLAGS})(?![\w-])=?", lambda found: _word(found[1]) + "="),
)
#: A whole line for a shell is one in Python's documents too.
_LINE = re.compile(r"(`\w[^`]* [^`]*`)")


def in_words(text: str) -> str:
    """The same with `memory="8GiB"` for `--memory 8GiB`, and so on."""
    if "--" not in text:
        return text
    parts = _LINE.split(text)
    for pattern, put in _WORDS:
        whole = pattern.replace("--", r"(?<![\w-])--", 1)
        parts[::2] = [re.sub(whole, put, part) for part in parts[::2]]
    return "".join(parts)


def _word(flag: str) -> str:
    return flag + "s" if flag in _SEVERAL else flag.replace("-", "_")


#: A text of the server's in a record: it is there in this package's words.
Said = Annotated[str, in_words]
