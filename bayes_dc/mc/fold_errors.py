"""What is said where passes cannot be folded."""

_ROWS = """\
A tensor of {got} rows met passes folded into {expected} rows ({passes} passes × {batch} inputs) in
{where}: the model uses the batch size of its input by hand or mixes rows. {remedy}
"""
_SIZE_AT_HAND = (
    "Pass chunk=1, which runs one pass at a time, or write the model in terms of the size of the "
    "tensor at hand (x.flatten(1), x.shape[0])."
)
DRAWN_BY_TORCH = (
    "{name} draws its dropout inside torch, and comes before the first layer with masks of its "
    "own: it cannot be repeated for {passes} folded passes. Pass chunk=1, which runs one pass at a "
    "time, or dropout=False, which leaves dropout off."
)
OVERWRITTEN = (
    "Memory computed from the input alone was overwritten with the values of {passes} folded "
    "passes, and is read again through another view, which has no room for them. Pass chunk=1, "
    "which runs one pass at a time, or write into a new tensor (y = x + h rather than x += h)."
)
_ONE_INPUT = " If x is one input, give it a first dimension: x[None]."
_FIRST_DIMENSION = (
    "Keep the inputs along the first dimension, e.g. [B, L, K] rather than [B · L, K] for L tokens."
)


class PassesDoNotFit(Exception):
    """A forward would make a tensor above the limit; ``fitting`` passes would not."""

    def __init__(self, fitting: int) -> None:
        super().__init__(f"{fitting} passes fit")
        self.fitting = fitting


class RowsDoNotFit(ValueError):
    """A tensor has other rows than inputs times passes."""


def rows_do_not_fit(
    got: int, where: str, passes: int, batch: int, one_dimensional: bool
) -> RowsDoNotFit:
    """The error for a tensor of other rows.

    Args:
        got: Its rows.
        where: What met it.
        passes: Passes of the forward.
        batch: Inputs B.
        one_dimensional: Whether the model's input has one dimension.

    Returns:
        The exception, to be raised.
    """
    remedy = _SIZE_AT_HAND if passes > 1 else _FIRST_DIMENSION
    if one_dimensional:
        remedy += _ONE_INPUT
    expected = batch * passes
    return RowsDoNotFit(
        _ROWS.format(
            got=got, expected=expected, passes=passes, batch=batch, where=where, remedy=remedy
        )
    )
