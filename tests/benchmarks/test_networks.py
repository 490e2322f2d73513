"""The rows of the table of networks: times, their ratio, and the kernels; networks without their library are named."""

from torch import nn

from bayesbits.deploy.onnx.latency import Latency
from benchmarks import networks


def test_rows_have_both_times_their_ratio_and_the_kernels():
    latencies = [
        Latency(name, threads, 1, seconds, 10)
        for threads in (1, 2)
        for name, seconds in (("float", 0.006 / threads), ("integer", 0.002))
    ]
    rows = networks._rows("net", latencies, {"QLinearConv": 3, "Relu": 9, "MatMulIntegerToFloat": 1})
    assert rows == [
        {
            "network": "net",
            "threads": 1,
            "float ms": 6.0,
            "integer ms": 2.0,
            "speed": 3.0,
            "kernels": rows[0]["kernels"],
        },
        {
            "network": "net",
            "threads": 2,
            "float ms": 3.0,
            "integer ms": 2.0,
            "speed": 1.5,
            "kernels": rows[0]["kernels"],
        },
    ]
    assert rows[0]["kernels"] == "3 QLinearConv, 1 MatMulIntegerToFloat"


def test_a_network_without_its_library_is_left_out(monkeypatch):
    def missing() -> nn.Module:
        raise ImportError("No module named 'elsewhere'")

    monkeypatch.setattr(networks, "SMALL", {"foreign": missing})
    assert networks.networks(smoke=True) == [{"network": "foreign", "left out": "No module named 'elsewhere'"}]
