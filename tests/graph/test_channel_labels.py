"""Labels of channels: which atoms become one class, which stay and why, and labels that repeat take no memory."""

import torch

from bayesbits.graph.channel_labels import ZERO, ChannelClasses, collapse, collapse_together, compact, filled


def test_atoms_that_meet_are_one_class() -> None:
    classes = ChannelClasses()
    first, second = classes.new(3), classes.new(3)
    assert (first.tolist(), second.tolist(), classes.atoms) == ([0, 1, 2], [3, 4, 5], 6)
    classes.unite(first, second.flip(0))
    assert [classes.find(atom) for atom in range(6)] == [0, 1, 2, 2, 1, 0]
    classes.unite(torch.tensor([3, ZERO]), torch.tensor([1, 0]))
    assert [classes.find(atom) for atom in range(6)] == [0, 1, 1, 1, 1, 0]


def test_a_class_keeps_the_first_of_its_reasons() -> None:
    classes = ChannelClasses()
    atoms = classes.new(4)
    classes.keep(atoms[2:3], "early")
    classes.keep(atoms[:2], "late")
    classes.keep(atoms[:1], "later")
    assert [classes.reason(atom) for atom in range(4)] == ["late", "late", "early", None]
    classes.unite(atoms[:1], atoms[2:3])
    assert [classes.reason(atom) for atom in range(4)] == ["early", "late", "early", None]


def test_foreign_values_have_a_label_and_words() -> None:
    classes = ChannelClasses()
    assert (ZERO, classes.source(ZERO)) == (-1, "a constant zero")
    assert classes.foreign("a network input") == classes.foreign("a network input") == -2
    assert classes.foreign("a parameter") == -3
    assert classes.source(-3) == "a parameter"


def test_columns_join_what_reaches_one_input_channel() -> None:
    classes = ChannelClasses()
    classes.new(4)
    network_input = classes.foreign("a network input")
    labels = torch.tensor([[0, 1, ZERO, network_input], [2, 1, 3, network_input]])
    assert classes.columns(labels, dim=1).tolist() == [2, 1, 3, 4]
    assert classes.find(0) == classes.find(2) == 0
    assert [classes.reason(atom) for atom in (0, 1, 3)] == [None, None, None]
    assert classes.reason(4) == "is a network input"
    mixed = torch.tensor([[0, 1], [network_input, 1]])
    assert classes.columns(mixed, dim=1).tolist() == [0, 1]
    assert [classes.reason(atom) for atom in (0, 2, 1)] == ["is a network input", "is a network input", None]


def test_labels_that_repeat_are_stored_once() -> None:
    labels = torch.arange(3).reshape(1, 3, 1).repeat(2, 1, 4)
    small = compact(labels)
    assert torch.equal(small, labels)
    assert [stride == 0 for stride in small.stride()] == [True, False, True]
    assert collapse(small).shape == (1, 3, 1)
    assert collapse(small, keep=(-1,)).shape == (1, 3, 4)


def test_tensors_are_collapsed_where_all_of_them_repeat() -> None:
    first = torch.arange(3).reshape(3, 1, 1).expand(3, 4, 5)
    second = torch.arange(4).reshape(1, 4, 1).expand(3, 4, 5)
    assert [tuple(part.shape) for part in collapse_together([first, second])] == [(3, 4, 1), (3, 4, 1)]
    assert [tuple(part.shape) for part in collapse_together([first, second], keep=(2,))] == [(3, 4, 5), (3, 4, 5)]


def test_one_label_for_a_tensor_or_several() -> None:
    assert filled(torch.empty(2, 3), 7).tolist() == [[7, 7, 7], [7, 7, 7]]
    assert [part.shape for part in filled((torch.empty(2), torch.empty(1, 2)), 7)] == [(2,), (1, 2)]
