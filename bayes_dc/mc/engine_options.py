"""Options that an engine was planned for: they stay, and so does the engine."""

from typing import Any

_OPTIONS = {"T", "capacity", "mode", "link"}

_COPIED = (
    "An engine cannot be copied or pickled: its calls are bound to its memory and to the weights "
    "of its model. Copy or save the model, and make a MonteCarloEngine with the copy."
)
_FIXED = (
    "{name} of an engine cannot be changed: its memory was planned for {name} = {was!r}. Make a "
    "new MonteCarloEngine with {name} = {got!r}."
)


class FixedOptions:
    """Refuses other values of the options that an engine was planned for, and copies of it."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse copies and pickles."""
        raise TypeError(_COPIED)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; an option only once."""
        if name in _OPTIONS and name in self.__dict__:
            was = self.__dict__[name]
            raise AttributeError(_FIXED.format(name=name, was=was, got=value))
        super().__setattr__(name, value)
