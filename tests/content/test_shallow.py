"""TVM's parser on a stack of its own: what ``inspect`` finds for it is found without looking through all modules."""

from __future__ import annotations

import inspect
import threading

import pytest

from haotuner.backends.shallow import EVALUATED, shallow

FRAME = eval(compile("__import__('inspect').currentframe()", EVALUATED, "eval"))


def test_an_expression_of_the_parser_is_of_no_module(monkeypatch):
    monkeypatch.delitem(inspect.modulesbyfile, EVALUATED, raising=False)
    looked_for = inspect.getmodule(FRAME, EVALUATED), inspect.getsourcefile(FRAME)
    known = shallow(lambda: (inspect.getmodule(FRAME, EVALUATED), inspect.getsourcefile(FRAME)))
    assert known == looked_for == (None, None)
    assert EVALUATED in inspect.modulesbyfile


def test_what_a_function_raises_comes_from_its_thread():
    caller = threading.get_ident()

    def raising() -> None:
        raise KeyError(threading.get_ident())

    with pytest.raises(KeyError) as caught:
        shallow(raising)
    assert caught.value.args != (caller,)
