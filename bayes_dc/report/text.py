"""How numbers and names are written for people."""

import math


def number(value: float | str | None, digits: int = 4) -> str:
    """Write a number with significant digits.

    Args:
        value: A number, or what report.json has in its place: ``"inf"``, ``"-inf"`` or None.
        digits: Significant digits.

    Returns:
        Such as ``0.03142``, ``−∞`` or ``–`` for a number that does not exist.
    """
    if value is None or math.isnan(float(value)):
        return "–"
    value = float(value)
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value != 0 and (abs(value) < 1e-4 or abs(value) >= 1e6):
        return f"{value:.{digits - 1}e}".replace("-", "−")
    exponent = math.floor(math.log10(abs(value))) if value else 0
    decimals = max(0, digits - 1 - exponent)
    return f"{value:.{decimals}f}".replace("-", "−")


def share(value: float | str | None, decimals: int = 2) -> str:
    """Write a share as a percentage.

    Args:
        value: −1 … 1, or None for one that does not exist.
        decimals: Digits after the point.

    Returns:
        Such as ``97.21 %``, with a space that does not break.
    """
    if value is None or math.isnan(float(value)):
        return "–"
    return f"{100 * float(value):.{decimals}f}\u00a0%".replace("-", "−")


def short(name: str, length: int = 24) -> str:
    """Cut a name to fit under a picture.

    Args:
        name: Any text.
        length: Longest result, at least 3 characters.

    Returns:
        The name, its middle replaced by ``…`` if it is too long, unprintable characters by ``?``.
    """
    name = "".join(c if c.isprintable() else "?" for c in name)
    if len(name) <= length:
        return name
    tail = (length - 1) // 2
    return f"{name[: length - 1 - tail]}…{name[-tail:]}"
