"""What tests of the benchmark programs share."""

from concurrent.futures import Future

import pytest


class Inline:
    """An executor that works at once, in this process."""

    def __init__(self, *arguments):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return False

    def submit(self, function, *arguments):
        future = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture
def inline():
    """A class to put in place of ``ProcessPoolExecutor``."""
    return Inline
