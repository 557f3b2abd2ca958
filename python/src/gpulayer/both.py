"""One body, two forms: `job.cancel()` waits, `await job.cancel.aio()` is for asyncio.

`__tracebackhide__` in a function, here and elsewhere: IPython and pytest leave its frame out of what they show of an
exception, which is about the user's own code."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, Coroutine, Generic, Optional, TypeVar, Union, overload

S = TypeVar("S")
R = TypeVar("R")
if TYPE_CHECKING:
    import inspect

    from typing_extensions import Concatenate, ParamSpec, Self

    P = ParamSpec("P")
else:
    P = TypeVar("P")


def signature_of(function: Any) -> Optional[inspect.Signature]:
    """What it takes; its method, which has this, may give another thing. `None`: Python does not know."""
    import inspect

    try:
        return inspect.signature(function).replace(return_annotation=inspect.Signature.empty)
    except (TypeError, ValueError):
        return None


class Bound(Generic[P, R]):
    """A method of one object in both forms. `finish`: what is made of the body's result, by whoever calls."""

    def __init__(
        self,
        body: Callable[..., Coroutine[Any, Any, Any]],
        instance: object,
        finish: Optional[Callable[[Any], R]] = None,
    ) -> None:
        self._body = body
        self._instance = instance
        self._finish = finish
        functools.update_wrapper(self, body)

    @property
    def __signature__(self) -> Optional[inspect.Signature]:
        """What it takes, for whoever asks in a notebook: with `*args` and `**kwargs` alone what its object takes."""
        import inspect

        of_body = inspect.signature(self._body)
        taken = list(of_body.parameters.values())[1:]
        if [each.kind for each in taken] == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]:
            return signature_of(self._instance)
        gives = of_body.return_annotation if inspect.iscoroutinefunction(self._body) else inspect.Signature.empty
        return of_body.replace(parameters=taken, return_annotation=gives)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        # Brings asyncio along, which who only declares something does not need.
        from . import background

        found: Any = background.run(self._body(self._instance, *args, **kwargs))
        return found if self._finish is None else self._finish(found)

    async def aio(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The same, awaited; on any asyncio loop."""
        __tracebackhide__ = True
        from . import background

        found: Any = await background.join(self._body(self._instance, *args, **kwargs))
        return found if self._finish is None else self._finish(found)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._instance, self._body.__name__)

    def __repr__(self) -> str:
        return f"<{self._body.__qualname__} of {self._instance!r}>"


class both(Generic[S, P, R]):
    """Makes an `async` method callable in both forms."""

    def __init__(self, body: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> None:
        self._body = body
        #: What it is called.
        self.name = body.__name__
        self.__doc__ = body.__doc__

    @property
    def signature(self) -> Optional[inspect.Signature]:
        """What it takes, of whatever object it is a method."""
        return Bound[P, R](self._body, None).__signature__

    @overload
    def __get__(self, instance: None, owner: Optional[type] = None) -> Self: ...
    @overload
    def __get__(self, instance: S, owner: Optional[type] = None) -> Bound[P, R]: ...
    def __get__(self, instance: Optional[S], owner: Optional[type] = None) -> Union[Self, Bound[P, R]]:
        if instance is None:
            return self
        return Bound(self._body, instance)


class finished(Generic[S, P, R]):
    """As `both`, for a body whose result is called where the method was: what runs the user's own code, such as
    unpickling, belongs to the user's thread. So does what stands in a plain `def` before the coroutine."""

    def __init__(self, body: Callable[Concatenate[S, P], Coroutine[Any, Any, Callable[[], R]]]) -> None:
        self._body = body
        self.__doc__ = body.__doc__

    @overload
    def __get__(self, instance: None, owner: Optional[type] = None) -> Self: ...
    @overload
    def __get__(self, instance: S, owner: Optional[type] = None) -> Bound[P, R]: ...
    def __get__(self, instance: Optional[S], owner: Optional[type] = None) -> Union[Self, Bound[P, R]]:
        if instance is None:
            return self
        return Bound(self._body, instance, _called)


def _called(outcome: Callable[[], R]) -> R:
    __tracebackhide__ = True
    return outcome()
