"""The commands that deploy a run: `export`, `verify` and `bench`."""

from typing import Annotated

import typer

from bayesbits.cli import options


def export(folder: options.RunFolder) -> None:
    """Write the integer network of a run: DIR/deployed, DIR/fast.onnx, DIR/compact.onnx and DIR/qdq.onnx."""
    from bayesbits.cli.deploy import run_export

    run_export(folder)


def verify(
    folder: options.RunFolder,
    num_examples: Annotated[
        int, typer.Option("--num-examples", min=1, help="The number of test examples that are compared.")
    ] = 1000,
    runtime: Annotated[
        str, typer.Option("--runtime", help="What runs the files: onnxruntime, or openvino, which runs DIR/qdq.onnx.")
    ] = "onnxruntime",
) -> None:
    """Prove on test examples that the trained network, the integer network and both ONNX files agree.

    The command fails with the name of the first place that differs. The findings are in DIR/verification.json in both
    cases. With `--runtime openvino` differences are counted in steps, and the findings are in DIR/openvino.json.
    """
    from bayesbits.cli.deploy import run_verify

    run_verify(folder, num_examples, runtime)


def bench(
    folder: options.RunFolder,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How many times every file runs.")] = 20,
) -> None:
    """Measure time and size of the float network and of the ONNX files of a run.

    OpenVINO is measured beside onnxruntime, with its own file, where it is installed.
    """
    from bayesbits.cli.deploy import run_bench

    run_bench(folder, rounds)
