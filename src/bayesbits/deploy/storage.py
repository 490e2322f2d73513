"""`save` and `load`: a deployed network in a folder of two files.

`network.json` holds the structure of the record, the graph, and the checksums of both files. `tensors.safetensors`
holds the packed codes, steps, biases and the tensors that stay in float. Both are plain data: loading executes nothing
and reads no pickle. A folder in another version of this format is refused.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from bayesbits.deploy.graph_json import graph_from_data, graph_to_data
from bayesbits.deploy.modules import FLOATS, FloatTensors
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.packing import pack, unpack
from bayesbits.deploy.pipeline import rebuild
from bayesbits.records.integer_network import IntegerLayer, IntegerNetwork, IntegerTable, Structure
from bayesbits.utils.container_classes import find_class
from bayesbits.utils.files import write_atomically

FORMAT, VERSION = "bayesbits deployed network", 2
NETWORK, TENSORS = "network.json", "tensors.safetensors"


def save(network: DeployedNetwork, path: str | Path) -> None:
    """Writes a deployed network into a folder.

    Weights are packed: a weight of 2 bits takes a quarter of a byte.

    Args:
        network: The network that :func:`deploy` or :func:`load` returned.
        path: The folder, which is created where it does not exist.

    Raises:
        TypeError: ``network`` is not a :class:`DeployedNetwork`.
        ValueError: The network calls an operation that is none of torch's own.

    Example::

        >>> import tempfile, torch, bayesbits as bb
        >>> compressor = bb.attach(torch.nn.Linear(4, 2).eval(), torch.ones(1, 4), bb.Spec(bits=(8,)))
        >>> compressor.calibrate([torch.ones(2, 4)])
        >>> compressor.fix()
        >>> small = bb.deploy(compressor)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     bb.save(small, folder)
        ...     again = bb.load(folder)
        >>> torch.equal(again(torch.ones(3, 4)), small(torch.ones(3, 4)))
        True
    """
    if not isinstance(network, DeployedNetwork):
        raise TypeError(f"save takes what bayesbits.deploy returns, and this is a {type(network).__name__}")
    floats = network.program.get_submodule(FLOATS) if hasattr(network.program, FLOATS) else FloatTensors()
    tensors = {f"{FLOATS}/{key}": tensor for key, tensor in floats.state_dict().items()}
    widths = {layer.name: _packed_bits(layer) for layer in network.integer.layers}
    widths |= {table.name: _packed_bits(table) for table in network.integer.tables}
    for name, tensor in network.integer.tensors.items():
        owner = name.rpartition(".")[0]
        tensors[name] = pack(tensor, widths[owner]) if name.endswith(".codes") else tensor
    content = save_tensors({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    body = {
        "structure": json.loads(network.integer.structure.to_json()),
        "graph": graph_to_data(network.program.graph),
        "parameters": [key for key, _ in floats.named_parameters()],
        "tensors": _checksum(content),
    }
    text = json.dumps({"format": FORMAT, "version": VERSION, "checksum": _checksum(_canonical(body)), **body})
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / TENSORS, content)
    write_atomically(folder / NETWORK, text.encode())


def load(path: str | Path, model: nn.Module | None = None) -> DeployedNetwork:
    """Reads a deployed network from a folder.

    Args:
        path: The folder that :func:`save` wrote.
        model: A float network built by the code that was trained. With it the graph is made again from that code, and
            has to be the stored one; without it the network runs by the stored graph. The values of its weights are
            not used.

    Returns:
        The network that was saved, on the CPU.

    Raises:
        FileNotFoundError: A file of the folder is missing.
        ValueError: A file is damaged, was altered or has another version, or ``model`` is another network.

    Example::

        >>> import tempfile, torch, bayesbits as bb
        >>> compressor = bb.attach(torch.nn.Linear(4, 2).eval(), torch.ones(1, 4), bb.Spec(bits=(8,)))
        >>> compressor.calibrate([torch.ones(2, 4)])
        >>> compressor.fix()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     bb.save(bb.deploy(compressor), folder)
        ...     small = bb.load(folder, torch.nn.Linear(4, 2))
        >>> small.integer.layers[0].bits
        8
    """
    folder = Path(path)
    body = _read_body(folder / NETWORK)
    tensors = _read_tensors(folder / TENSORS, body["tensors"])
    structure = Structure.from_json(json.dumps(body["structure"]))
    _warn_of_missing_classes(structure, folder)
    floats = FloatTensors()
    for name in sorted(tensors):
        if name.startswith(f"{FLOATS}/"):
            key = name.removeprefix(f"{FLOATS}/")
            floats.set(key, tensors.pop(name), parameter=key in body["parameters"])
    for layer in structure.layers:
        if f"{layer.name}.codes" in tensors:
            packed = tensors[f"{layer.name}.codes"]
            tensors[f"{layer.name}.codes"] = unpack(packed, _packed_bits(layer), layer.weight_shape)
    for table in structure.tables:
        if f"{table.name}.codes" in tensors:
            packed = tensors[f"{table.name}.codes"]
            tensors[f"{table.name}.codes"] = unpack(packed, _packed_bits(table), (table.rows, table.columns))
    network = IntegerNetwork(structure, tensors)
    graph = graph_from_data(body["graph"])
    if model is not None:
        rebuilt = rebuild(model, network)
        if graph_to_data(rebuilt) != _with_reshapes(body["graph"]):
            raise ValueError(
                f"{type(model).__name__} is not the network in {folder}: the graph of its code is another one. "
                "Build it as it was built for training, or load without a model"
            )
        graph = rebuilt
    return DeployedNetwork(network, graph, floats)


def _with_reshapes(graph: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A stored graph with reshapes for views, as `deploy` writes them now."""
    views = ("aten.view.default", "aten._unsafe_view.default")
    return [node | {"target": "aten.reshape.default"} if node["target"] in views else node for node in graph]


def _warn_of_missing_classes(structure: Structure, folder: Path) -> None:
    """Say where the network returns plain containers in place of classes that are not there."""
    missing = {part.type for part in structure.returns.parts() if part.type and find_class(part.type) is None}
    if missing:
        names = ", ".join(sorted(name.replace(":", ".") for name in missing))
        warnings.warn(
            f"the network in {folder} returned {names}, which cannot be imported here: dicts and tuples are returned "
            "instead. To fix this: install the package, or import the module of your own before loading",
            stacklevel=3,
        )


def _packed_bits(part: IntegerLayer | IntegerTable) -> int:
    return max(2, part.bits)  # a layer of 0 bits that could not be removed has a weight of zeros


def _read_body(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path.parent} holds no deployed network: there is no {path.name} in it") from None
    try:
        body = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is truncated or altered: it is not JSON ({error})") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise ValueError(f"{path} is not a {FORMAT}")
    _check_version(f"{path} has", body.get("version"), VERSION)
    rest = {name: value for name, value in body.items() if name not in ("format", "version", "checksum")}
    if body.get("checksum") != _checksum(_canonical(rest)):
        raise ValueError(f"{path} was altered: its content does not have the checksum that it names. Save it again")
    _check_version(f"the structure in {path} has", rest["structure"].get("version"), Structure.VERSION)
    return rest


def _check_version(subject: str, version: Any, expected: int) -> None:
    """Raise where a file has another version than the one that is read, and say what to do."""
    if version != expected:
        newer = isinstance(version, int) and version > expected
        way_out = "a newer bayesbits wrote it; upgrade to read it" if newer else "deploy and save it once more"
        raise ValueError(f"{subject} version {version!r}, and this library reads {expected}: {way_out}")


def _read_tensors(path: Path, checksum: str) -> dict[str, Tensor]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path.parent} is incomplete: there is no {path.name} in it") from None
    if _checksum(content) != checksum:
        raise ValueError(
            f"{path} is truncated or altered: its content does not have the checksum in {NETWORK}. Save it again"
        )
    try:
        return dict(load_tensors(content))
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
