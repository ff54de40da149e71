"""Kernels of plain layers that write into given memory, for forwards that allocate nothing."""

__all__: list[str] = []
