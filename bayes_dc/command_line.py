"""Numbers as the commands read them: ``type=`` of argparse's arguments."""

import argparse


def positive_integer(text: str) -> int:
    """Read a whole number of at least 1.

    Args:
        text: As it was typed.

    Returns:
        The number.

    Raises:
        argparse.ArgumentTypeError: If it is something else.
    """
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1; got {text!r}")
    return value


def unsigned_64(text: str) -> int:
    """Read an unsigned 64-bit number.

    Args:
        text: As it was typed.

    Returns:
        The number.

    Raises:
        argparse.ArgumentTypeError: If it is something else.
    """
    value = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= value < 2**64:
        raise argparse.ArgumentTypeError(f"must be a whole number in 0 … 2**64 − 1; got {text!r}")
    return value
