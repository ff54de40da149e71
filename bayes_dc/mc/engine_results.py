"""What an engine hands out: fresh tensors, or those of an earlier prediction."""

import operator
import weakref
from typing import Any

from torch import Tensor

from bayes_dc.mc.engine_statistics import RunStatistics
from bayes_dc.mc.prediction import Prediction
from bayes_dc.mc.statistics import Summary

_OUT = (
    "out must be a Prediction whose tensors are to be overwritten, one that this engine returned "
    "for {b} inputs{samples}; got {got}. Leave it out to get fresh tensors."
)
MOST_KNOWN = 4
"""Results of earlier calls that are written over without looking at their shapes again."""

_fields_in = operator.attrgetter(*Summary._fields)


class Results:
    """Copies the results of runs out of the memory that the next run writes.

    Args:
        statistics: Where they are.
    """

    def __init__(self, statistics: RunStatistics) -> None:
        self._statistics = statistics
        self._known: list[tuple[int, list[weakref.ref[Tensor]], Tensor]] = []

    def copies(
        self, b: int, samples: Tensor | None, out: Prediction | None
    ) -> tuple[Summary, Tensor | None]:
        """What a call hands out.

        Args:
            b: Inputs of the run.
            samples: Its samples, if they are wanted.
            out: What is to be written over, if anything; nothing of it is if a part does not fit.

        Returns:
            The statistics and the samples.

        Raises:
            ValueError: If ``out`` does not fit.
        """
        if out is None:
            return self.fresh(b), None if samples is None else samples.clone()
        room = None if samples is None else room_for_samples(samples, b, out)
        summary = self.overwrite(b, out)
        if room is not None and samples is not None:
            room.copy_(samples)
        return summary, room

    def fresh(self, b: int) -> Summary:
        """A copy.

        Args:
            b: Inputs of the run.

        Returns:
            Views of one new tensor.
        """
        return self._statistics.fields(self._statistics.results(b).clone(), b)

    def overwrite(self, b: int, out: Prediction) -> Summary:
        """Write over the results of an earlier run.

        Args:
            b: Inputs of the run.
            out: What an engine returned earlier.

        Returns:
            The tensors of ``out``, with new values.

        Raises:
            ValueError: If it is something else, or of other shapes.
        """
        fields = _fields_of(out)
        if fields is None:
            raise ValueError(_OUT.format(b=b, samples="", got=type(out).__name__))
        results = self._statistics.results(b)
        for entries, refs, whole in self._known:
            if entries == b and all(map(operator.is_, [ref() for ref in refs], fields)):
                whole.copy_(results)
                return fields
        want = self._statistics.fields(results, b)
        for name, into, like in zip(Summary._fields, fields, want, strict=True):
            if not _takes(into, like):
                raise ValueError(_OUT.format(b=b, samples="", got=f"{name} = {_described(into)}"))
        in_one = _whole(fields, results.numel(), want)
        if in_one is not None:
            self._know(b, fields, in_one)
            in_one.copy_(results)
        else:
            for into, value in zip(fields, want, strict=True):
                into.copy_(value)
        return fields

    def _know(self, b: int, fields: Summary, whole: Tensor) -> None:
        """Remember that fields fit; what nobody holds any more is forgotten, and its memory."""
        live = [known for known in self._known if known[1][0]() is not None]
        refs = [weakref.ref(field) for field in fields]
        self._known = [(b, refs, whole), *live[: MOST_KNOWN - 1]]


def handed_out(summary: Summary, **others: Any) -> Prediction:
    """A prediction, at less than half of what its constructor takes.

    A frozen dataclass sets each of its fields through ``object.__setattr__``.

    Args:
        summary: Its statistics.
        others: All its other fields, by name.

    Returns:
        The same as ``Prediction(*summary, **others)``.
    """
    made = object.__new__(Prediction)
    made.__dict__.update(zip(Summary._fields, summary, strict=True), **others)
    return made


def room_for_samples(samples: Tensor, b: int, out: Prediction) -> Tensor:
    """The samples of an earlier run, to be written over: asked for before anything is written.

    Args:
        samples: ``[T, b, C]``.
        b: Inputs.
        out: What an engine returned earlier.

    Returns:
        The samples of ``out``.

    Raises:
        ValueError: If it holds none, or of another shape.
    """
    into = getattr(out, "samples", None)
    if not _takes(into, samples):
        got = f"samples = {_described(into)}"
        raise ValueError(_OUT.format(b=b, samples=" with return_samples=True", got=got))
    assert isinstance(into, Tensor)
    return into


def _takes(into: object, like: Tensor) -> bool:
    """Whether values of ``like`` can be written into it."""
    return (
        isinstance(into, Tensor)
        and (into.shape, into.dtype, into.device) == (like.shape, like.dtype, like.device)
        and not (into.requires_grad or into.is_inference())
        and all(stride or size < 2 for stride, size in zip(into.stride(), into.shape, strict=True))
    )


def _fields_of(out: object) -> Summary | None:
    if not isinstance(out, Prediction):
        return None
    return Summary._make(_fields_in(out))


def _whole(fields: Summary, entries: int, want: Summary) -> Tensor | None:
    """All fields as one tensor, where they lie in memory as the engine lays them."""
    first, wanted = fields.mean, want.mean
    if first.untyped_storage().nbytes() != 8 * entries or first.storage_offset() != 0:
        return None
    start, at = first.data_ptr(), wanted.data_ptr()
    for into, like in zip(fields, want, strict=True):
        if into.data_ptr() - start != like.data_ptr() - at or into.stride() != like.stride():
            return None
    return first.as_strided((entries,), (1,))


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        more = ", which needs gradients" if value.requires_grad else ""
        more += ", of inference mode" if value.is_inference() else ""
        return (
            f"{value.dtype} {list(value.shape)} of strides {value.stride()} on {value.device}{more}"
        )
    return repr(value)
