"""What happens to a sum before it is stored, for kernels whose threads have an output each."""

import triton
import triton.language as tl


@triton.jit
def of_outputs(
    b_ptr, factors_ptr, summands_ptr, n, N, stride_b,
    HAS_BIAS: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """Bias, factor and summand of outputs n, those that there are: to be read before the sums."""
    bias = n
    factor = n
    summand = n
    if HAS_BIAS:
        bias = tl.load(b_ptr + n.to(tl.int64) * stride_b, mask=n < N, other=0).to(tl.float32)
    if EPILOGUE & 1:
        factor = tl.load(factors_ptr + n, mask=n < N, other=0).to(tl.float32)
    if EPILOGUE & 2:
        summand = tl.load(summands_ptr + n, mask=n < N, other=0).to(tl.float32)
    return bias, factor, summand


@triton.jit
def finished(
    value, bias, factor, summand,
    SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """Scale the sum, add the bias, apply the epilogue."""
    value *= SCALE
    if HAS_BIAS:
        value += bias
    if EPILOGUE & 1:
        value *= factor
    if EPILOGUE & 2:
        value += summand
    if EPILOGUE & 4:
        value = tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return value
