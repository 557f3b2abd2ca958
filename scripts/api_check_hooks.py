"""Loaded by schemathesis in scripts/api-check: what it may send, and is not what is tested."""

import schemathesis


def whole(value):
    """Whole numbers are written without a point here, although a JSON schema takes `1.0` for one."""
    if isinstance(value, dict):
        return {name: whole(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value


def seconds(value):
    """A number, also one that is written as text, as queries have it; None for anything else."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


@schemathesis.hook
def before_call(context, case, kwargs):
    if isinstance(case.body, (dict, list)):
        case.body = whole(case.body)
    # Long polls that ask for a minute.
    for part, most in ((case.body, 10 * 366 * 86_400), (case.query, 60)):
        wait_s = seconds(part.get("wait_s")) if isinstance(part, dict) else None
        if wait_s is not None and 0 < wait_s <= most:
            part["wait_s"] = 0.01
