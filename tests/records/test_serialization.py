"""What records share: mappings that cannot be changed, and files in which damage is found."""

import copy
import dataclasses
import json
import pickle
import random
from pathlib import Path

import pytest

from bayesbits.records.front import Front, Point, Range
from bayesbits.records.integer_network import Structure
from bayesbits.records.plan import Plan
from bayesbits.records.serialization import Record, find_by_name
from bayesbits.records.topology import Topology
from bayesbits.utils.files import write_atomically

PLAN = Plan({"first.weight": 4, "first.input": 8, "second.weight": 2}, {"first": (0, 2, 3)})


def test_mappings_of_records_cannot_be_changed() -> None:
    point = Point(PLAN, 1.0, {})
    for mapping in (PLAN.bits, PLAN.kept, point.ranges):
        for change in (
            lambda m: m.__setitem__("first.weight", 99),
            lambda m: m.update({"first.weight": 99}),
            lambda m: m.pop("first.weight", None),
            lambda m: m.setdefault("other", 8),
            lambda m: m.clear(),
            lambda m: m.__ior__({"other": 8}),
        ):
            with pytest.raises(TypeError, match="cannot be changed"):
                change(mapping)
    assert PLAN.bits == {"first.weight": 4, "first.input": 8, "second.weight": 2}


def test_what_is_made_of_a_mapping_is_an_ordinary_one() -> None:
    widths = dict(PLAN.bits)
    widths["first.weight"] = 8
    assert PLAN.bits["first.weight"] == 4
    assert type(PLAN.bits | {"first.weight": 8}) is dict
    assert dataclasses.replace(PLAN, bits=widths).bits == widths


def test_copies_pickles_and_json_are_equal() -> None:
    for other in (copy.deepcopy(PLAN), copy.copy(PLAN), pickle.loads(pickle.dumps(PLAN))):
        assert other == PLAN
        with pytest.raises(TypeError, match="cannot be changed"):
            other.bits["first.weight"] = 99
    assert Plan.from_json(PLAN.to_json()) == PLAN
    front = Front((Point(PLAN, 1.0, {}),))
    assert Front.from_json(front.to_json()) == front


def test_any_flipped_bit_in_a_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    PLAN.save(path)
    content = path.read_bytes()
    choose = random.Random(0)
    for place in choose.sample(range(8 * len(content)), 600):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            assert Plan.load(path) == PLAN  # a bit of a space between two fields may say the same
        except ValueError as error:
            assert not isinstance(error, UnicodeDecodeError | json.JSONDecodeError)  # noqa: PT017


def test_a_file_without_a_checksum_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(PLAN.to_json())
    assert Plan.load(tmp_path / "plan.json") == PLAN


def test_what_is_no_text_is_said(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b'{"bits": "\xff"}')
    with pytest.raises(ValueError, match=r"plan\.json is damaged, or not a Plan"):
        Plan.load(tmp_path / "plan.json")


def test_a_file_is_the_old_one_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    PLAN.save(path)

    def full(*args: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        Plan({}).save(path)
    assert Plan.load(path) == PLAN
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]
    monkeypatch.undo()
    write_atomically(path, b"{}")
    assert path.read_bytes() == b"{}"


# Files as the version before wrote them: their form is the same, so that they are read.
PLAN_1 = (
    '{"bits": {"first.weight": 4, "first.input": 8, "second.weight": 2}, "kept": {"first": [0, 2, 3]}, "version": 1}'
)
FRONT_1 = (
    '{"points": [{"plan": %s, "relative_bops": 3.5, "ranges": {"w": {"log_beta": [0.5], "signed": true}}, '
    '"score": null, "mu": 0.1}], "version": 1}'
)


def test_records_of_the_version_before_are_read() -> None:
    assert Plan.from_json(PLAN_1) == PLAN
    front = Front.from_json(FRONT_1 % PLAN_1)
    assert front == Front((Point(PLAN, 3.5, {"w": Range((0.5,), True)}, None, 0.1),))


@pytest.mark.parametrize("record", [Plan, Front, Topology, Structure])
def test_records_of_other_versions_are_refused_with_a_way_out(record: type[Record]) -> None:
    for version in (record.VERSION - 1, record.VERSION + 1):
        with pytest.raises(ValueError, match=f"{record.__name__} version {version} cannot be read; .*Make it again"):
            record.from_json(json.dumps({"version": version}))


def test_a_name_that_is_missing_is_answered_with_those_that_there_are() -> None:
    assert find_by_name({"stem": 1}, "stem", "layer") == 1
    with pytest.raises(KeyError, match="no layer is called 'head'; there are: stem, tail"):
        find_by_name({"stem": 1, "tail": 2}, "head", "layer")
