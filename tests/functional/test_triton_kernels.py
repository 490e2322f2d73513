"""The kernels' own numbers, by Triton's interpreter; `test_conformance` compares their results with the paper's."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from bayesbits.functional import reference

launch = pytest.importorskip("bayesbits.functional.triton_launch")


@pytest.mark.parametrize("bits", [(2, 4, 8), (3, 5), (8, 32)])
def test_rows_of_odd_lengths_equal_the_definition(bits):
    generator = torch.Generator().manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, grad = (torch.randn(3, 1031, generator=generator).to(device) for _ in range(2))
    beta = torch.tensor([[0.5], [1.0], [2.0]], device=device)
    gates = torch.linspace(0.9, 0.4, len(bits)).to(device)
    torch.testing.assert_close(
        launch.forward(x, beta, gates, True, bits), reference.forward(x, beta, gates, True, bits)
    )
    ours, theirs = (module.backward(grad, x, beta, gates, True, bits) for module in (launch, reference))
    assert torch.equal(ours[0], theirs[0])
    torch.testing.assert_close(ours[1:3], theirs[1:3], rtol=1e-4, atol=1e-4)
    assert ours[3] is theirs[3] is None
    dx, *sums = launch.backward(grad, x, beta, gates, True, bits, sums_needed=False)
    assert torch.equal(dx, theirs[0])
    assert sums == [None, None, None]


def test_the_kernels_compile_for_a_gpu_that_is_not_here():
    """The interpreter takes more than the compiler does. It was chosen for this process, so another one compiles."""
    program = """
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
        from bayesbits.functional import triton_kernels as kernels, triton_launch as launch

        POINTERS = {"grad": "*bf16", "x": "*bf16", "y": "*bf16", "dx": "*bf16"}

        def compile(kernel, constants):
            kinds, values = {}, {}
            for position, name in enumerate(kernel.arg_names):
                if name.endswith("_pointer") and (constants["ASYMMETRIC"] or "alpha" not in name):
                    kinds[name] = POINTERS.get(name.removesuffix("_pointer"), "*fp32")
                elif name in ("columns", "rows", "programs"):
                    kinds[name] = "i32"
                else:
                    kinds[name], values[(position,)] = "constexpr", constants.get(name)
            source = ASTSource(fn=kernel, signature=kinds, constexprs=values)
            return triton.compile(source, target=GPUTarget("cuda", 90, 32))

        for asymmetric in (True, False):
            sizes = {"BLOCK": 512, "SUMS": True, "COUNT": 2, "GATES": 2, "ROWS": 1, "PROGRAMS": 64}
            constants = launch._widths((2, 4), True, asymmetric) | sizes
            for kernel in (kernels._forward_kernel, kernels._backward_kernel, kernels._finish_kernel):
                assert "st.global" in compile(kernel, constants).asm["ptx"]
        print("compiled")
    """
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_DEFAULT_FP_FUSION": "1"}
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, capture_output=True, text=True, check=False
    )
    assert run.stdout.strip() == "compiled", run.stderr
