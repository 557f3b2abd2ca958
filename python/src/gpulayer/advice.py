"""What a server advises speaks of the command line; here in this package's words."""

import re
from typing import Callable, Sequence, Tuple, Union

_Put = Union[str, Callable[["re.Match[str]"], str]]

_WORDS: Sequence[Tuple[str, _Put]] = (
    (r"--env (\w+)=([^\s,;)]+)", r'env={"\1": "\2"}'),
    (r"--env (?=[A-Z]\w+ )", "env= with "),
    (r"(?:,? or )(?:use )?--here", ""),
    (r"--input (\S+/|\S+\.\w+)(?=[\s,;)]|$)", r'inputs={"\1": "\1"}'),
    (r"--(input|output)(?![\w-])", r"\1s="),
    (r"--memory (\d\w+)", r'memory="\1"'),
    (r"--gpus (\d+)", r"gpus=\1"),
    (r"--retry-on (\w+)", r'retry_on=["\1"]'),
    (r"--([a-z]+(?:-[a-z]+)*)", lambda found: found[1].replace("-", "_") + "="),
)


def in_words(advice: str) -> str:
    """The same with `memory="8GiB"` for `--memory 8GiB`, and so on."""
    for pattern, put in _WORDS:
        advice = re.sub(r"(?<![\w-])" + pattern, put, advice)
    return advice
