"""How CPU kernels are compiled and kept on disk."""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache
from numba.extending import intrinsic

_SOURCES = ("_cpu_*.py", "numba_*.py", "spec.py")


class _SourceCache(FunctionCache):
    """Numba's cache on disk, keyed by the sources of all kernels.

    Numba looks at the file of the kernel alone, so that after an edit of a part that lies elsewhere
    the old machine code would stay in use, with other masks or another layout of memory.
    """

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        here = Path(self._py_func.__code__.co_filename).parent
        folders = Path(__file__).parent, here, here.parent
        return (*super()._index_key(sig, codegen), *(_fingerprint(f) for f in folders))


@cache
def _fingerprint(folder: Path) -> str:
    """Digest of the sources of kernels in a folder."""
    digest = hashlib.sha256()
    for path in sorted(p for pattern in _SOURCES for p in folder.glob(pattern)):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def compiled(function: Callable[..., Any]) -> Any:
    """A kernel: compiled at its first call, kept on disk, run without the interpreter lock.

    Where no folder can be written, each process compiles anew.

    Args:
        function: Function for Numba's nopython mode.

    Returns:
        Numba's dispatcher.

    Raises:
        RuntimeError: If Numba's cache refuses the function for another reason.
    """
    dispatcher: Any = njit(nogil=True, error_model="numpy")(function)
    try:
        dispatcher._cache = _SourceCache(function)
    except RuntimeError as error:
        if "no locator" not in str(error):
            raise
    return dispatcher


def inlined(function: Callable[..., Any]) -> Any:
    """A part of kernels, copied into each.

    Not for speed: Numba links and optimises a part of its own once more after LLVM has prepared it
    for the machine. By then an offset may stand where a pointer should, and the part vanishes.

    Args:
        function: Function for Numba's nopython mode.

    Returns:
        Numba's dispatcher; it can also be called from Python.
    """
    return njit(nogil=True, error_model="numpy", inline="always")(function)


def primitive(function: Callable[..., Any]) -> Any:
    """Numba's ``intrinsic``, typed for calls from compiled functions.

    Args:
        function: From types to a signature and a generator of LLVM code.

    Returns:
        The intrinsic; a call leaves out the first argument.
    """
    return intrinsic(function)
