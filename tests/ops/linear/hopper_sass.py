"""Compiles a Hopper kernel for sm_90 without a GPU, and shows what came out."""

import subprocess
from pathlib import Path

POINTERS = {"key_ptr": "*i64", "sample_ptr": "*i64", "pass_ptr": "*i64"}


def disassemble(
    kernel, constants, blocks, element, warps, folder: Path, divisible=()
) -> tuple[str, str]:
    """SASS and resource usage; ``blocks``: tensor map → block; ``divisible`` by 16, as pointers."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource

    types = {"bf16": gl.bfloat16, "fp32": gl.float32}
    constants = {name: 0 for name in ("EPILOGUE",) if name in kernel.arg_names} | constants
    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name in blocks:
            layout = gl.NVMMASharedLayout.get_default_for(blocks[name], types[element])
            signature[name] = f"tensordesc<{element}{blocks[name]},{layout!r}>"
        elif name.endswith("_ptr"):
            signature[name] = POINTERS.get(name, f"*{element}")
        else:
            signature[name] = "i32"
    index = {name: i for i, name in enumerate(kernel.arg_names)}
    source = GluonASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(index[name],): value for name, value in constants.items()},
        attrs={
            (i,): [["tt.divisibility", 16]]
            for name, i in index.items()
            if name.endswith("_ptr") or name in divisible
        },
    )
    target = GPUTarget("cuda", 90, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": warps})
    path = folder / "kernel.cubin"
    path.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"

    def dump(what: str) -> str:
        command = [tool, what, path]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return dump("-sass"), dump("-res-usage")
