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


_UNKEYED = """\
A tensor of {got} rows met passes folded into {expected} rows ({passes} passes × {batch} inputs) in
{where}, which draws a mask for every input: masks cannot be keyed on {what}. {remedy}
"""
_OTHER_ROWS = "a tensor whose rows are not the inputs"
_A_WEIGHT = "a weight, whose rows are not the inputs"
_TIME_FIRST = (
    "Keep the inputs along the first dimension, e.g. [B, L, K] rather than [L, B, K] or "
    "[B · L, K] for L tokens (batch_first=True)"
)
_WITHOUT = (
    "{first}, or do without these masks: p = 0 for that dropout, or dropout=False of "
    "predict_with_uncertainty for all dropout; bayes_dc.convert can leave a layer out."
)
_OF_A_WEIGHT = (
    "Apply it to what is computed from the inputs; masks on a weight are those of DropConnect "
    "layers (bayes_dc.convert)"
)
MOVED = (
    "A layer with masks keyed by input gets a tensor with another dimension in the place of the "
    "inputs: both have {rows} entries, and with {more} inputs they differ. Its masks would be "
    "those of time steps, not of inputs, also with chunk=1. Keep the inputs along the first "
    "dimension, [B, L, K] rather than [L, B, K] for L tokens (batch_first=True)."
)
MAYBE_MOVED = (
    "The model brings another dimension of {rows} entries to where the {rows} inputs were, before "
    "a layer with masks keyed by input. Which of them its masks are keyed by could not be told, "
    "because the model does not run with {more} inputs ({error}). Keep the inputs along the first "
    "dimension (batch_first=True)."
)
RANDOM = (
    "{name} draws from torch's generator, once for all {passes} folded passes. Pass chunk=1, which "
    "runs one pass at a time."
)


_MIXED = (
    "{name} makes one number of several rows, and a row holds one input in one pass: {passes} "
    "passes × {batch} inputs are folded into {rows} rows, which would be mixed. Keep the first "
    "dimension out of it (dim=1 rather than dim=0 or none), or pass chunk=1, which runs one pass "
    "at a time and mixes the inputs as the model does alone."
)


class PassesDoNotFit(Exception):
    """A forward would make a tensor above the limit; ``fitting`` passes would not."""

    def __init__(self, fitting: int) -> None:
        super().__init__(f"{fitting} passes fit")
        self.fitting = fitting


class RowsDoNotFit(ValueError):
    """A tensor has other rows than inputs times passes."""


class FirstDimensionMoved(Exception):
    """A layer with masks met rows that may be another dimension of as many entries."""

    def __init__(self, rows: int) -> None:
        super().__init__(f"{rows} rows may be no inputs")
        self.rows = rows


def rows_do_not_fit(
    got: int,
    where: str,
    passes: int,
    batch: int,
    *,
    one_dimensional: bool,
    mask: bool = False,
    weight: bool = False,
) -> RowsDoNotFit:
    """The error for a tensor of other rows.

    Args:
        got: Its rows.
        where: What met it.
        passes: Passes of the forward.
        batch: Inputs B.
        one_dimensional: Whether the model's input has one dimension.
        mask: Whether ``where`` draws masks.
        weight: Whether the tensor is a parameter.

    Returns:
        The exception, to be raised.
    """
    text, remedy = _ROWS, _SIZE_AT_HAND
    if mask and (weight or got != batch or passes == 1):  # no number of passes would help
        text = _UNKEYED
        remedy = _WITHOUT.format(first=_OF_A_WEIGHT if weight else _TIME_FIRST)
    elif passes == 1:
        remedy = _FIRST_DIMENSION
    if one_dimensional:
        remedy += _ONE_INPUT
    return RowsDoNotFit(
        text.format(
            got=got,
            expected=batch * passes,
            passes=passes,
            batch=batch,
            where=where,
            what=_A_WEIGHT if weight else _OTHER_ROWS,
            remedy=remedy,
        )
    )


def mixed_rows(name: str, passes: int, batch: int) -> RowsDoNotFit:
    """The error for a function that mixes rows.

    Args:
        name: The function.
        passes: Passes of the forward.
        batch: Inputs B.

    Returns:
        The exception, to be raised.
    """
    text = _MIXED.format(name=name, passes=passes, batch=batch, rows=passes * batch)
    return RowsDoNotFit(text)
