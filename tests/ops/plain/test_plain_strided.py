"""Walks over strided operands: every element once, in as few dimensions as there are."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from bayes_dc.ops.plain._strided import needs_64_bits, read_sizes, split, strides_along, walk


def offsets(over, operand):
    """Offsets that a walk visits, in its order."""
    steps = over.strides[operand]
    indices = itertools.product(*(range(size) for size in over.sizes))
    return [sum(i * s for i, s in zip(index, steps, strict=True)) for index in indices]


@given(
    st.lists(st.integers(1, 4), max_size=5).flatmap(
        lambda sizes: st.tuples(st.just(sizes), st.permutations(range(len(sizes))))
    )
)
def test_every_element_once(sizes_and_order):
    """Operands of any order of dimensions meet at the same elements."""
    sizes, order = sizes_and_order
    out = torch.empty([sizes[d] for d in order]).permute([
        order.index(d) for d in range(len(order))
    ])
    x = torch.arange(out.numel()).view(out.shape)
    over = walk(tuple(out.shape), (x.stride(), out.stride()))
    assert over.elements == out.numel()
    assert sorted(offsets(over, 1)) == list(range(out.numel()))
    flat = torch.empty(out.numel(), dtype=torch.int64)
    flat[offsets(over, 1)] = torch.tensor(offsets(over, 0), dtype=torch.int64)
    assert torch.equal(flat.as_strided(out.shape, out.stride()), x)
    assert len(over.sizes) <= max(1, len(sizes))


def test_contiguous_tensors_are_one_dimension():
    t = torch.empty(3, 4, 5, 6)
    assert walk(tuple(t.shape), (t.stride(), t.stride())).sizes == (360,)
    last = t.to(memory_format=torch.channels_last)
    assert walk(tuple(last.shape), (last.stride(), last.stride())).sizes == (360,)


def test_channels_stay_a_dimension_of_their_own():
    """Rows × channels for channels last, three dimensions for channels first."""
    t = torch.empty(3, 4, 5, 6)
    by_channel = strides_along(torch.empty(4), 1, 4)
    assert walk(tuple(t.shape), (by_channel, t.stride())).sizes == (3, 4, 30)
    last = t.to(memory_format=torch.channels_last)
    assert walk(tuple(last.shape), (by_channel, last.stride())).sizes == (90, 4)


def test_a_split_separates_rows_from_columns():
    t = torch.empty(3, 4, 5, 6)
    across, along = split(tuple(t.shape), (t.stride(),), 2)
    assert (across.sizes, along.sizes) == ((12,), (30,))
    assert split((), ((),), 0)[0].sizes == (1,)


def test_what_needs_64_bits():
    """More elements, or offsets beyond, in all walks together."""
    near, far = ((1 << 30,), (1,)), ((2,), (1 << 30,))
    assert not needs_64_bits(walk(near[0], (near[1],)))
    assert needs_64_bits(walk((1 << 31,), ((1,),)))
    assert needs_64_bits(walk((2, 2), ((1 << 31, 1),)))
    assert needs_64_bits(walk(far[0], (far[1],)), walk(near[0], (near[1],)))


def test_the_first_size_selects_no_kernel():
    assert read_sizes(walk((7, 5), ((10, 1),))) == (0, 5)
    assert read_sizes(walk((16, 5), ((10, 1),))) == (0, 5)
