"""Checks of options: what passes, what does not, and what the error says."""

import math
from types import SimpleNamespace

import pytest

from bayesbits.utils.checks import check_choice, check_flag, check_integer, check_number, check_positive, check_type


class Options(SimpleNamespace):
    pass


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (lambda o: check_choice(o, "x", ("adam", "sgd")), "sgd", None),
        (lambda o: check_choice(o, "x", ("adam", "sgd")), "adma", r"one of adam, sgd; did you mean 'adam'\?"),
        (lambda o: check_choice(o, "x", ("adam", "sgd")), 3, r"Options\.x is 3; it is one of adam, sgd$"),
        (lambda o: check_flag(o, "x"), False, None),
        (lambda o: check_flag(o, "x"), 1, r"Options\.x is 1; it is True or False"),
        (lambda o: check_integer(o, "x", 2), 2, None),
        (lambda o: check_integer(o, "x", 2), 1, r"Options\.x is 1; it is an integer of at least 2"),
        (lambda o: check_integer(o, "x", 0), True, "is True; it is an integer"),
        (lambda o: check_integer(o, "x", 0), 1.0, r"is 1\.0; it is an integer"),
        (lambda o: check_number(o, "x", 0.0, 1.0), 1, None),
        (lambda o: check_number(o, "x", 0.0, 1.0), 1.1, r"is 1\.1; it is a number from 0 to 1"),
        (lambda o: check_number(o, "x", 0.0), -1e-9, "it is a number of at least 0"),
        (lambda o: check_number(o, "x", 0.0), math.inf, "is inf; it is a number"),
        (lambda o: check_positive(o, "x"), 1e-9, None),
        (lambda o: check_positive(o, "x"), 0.0, r"is 0\.0; it is a positive number"),
        (lambda o: check_positive(o, "x"), math.nan, "is nan; it is a positive number"),
        (lambda o: check_type(o, "x", str | None, "text"), None, None),
        (lambda o: check_type(o, "x", str | None, "text"), 3, r"^Options\.x is 3; it is text$"),
    ],
)
def test_what_passes_and_what_is_said(check, value, message):
    if message is None:
        check(Options(x=value))
    else:
        with pytest.raises(ValueError, match=message):
            check(Options(x=value))
