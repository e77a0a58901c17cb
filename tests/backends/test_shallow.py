"""TVM's parser on a stack of its own: what ``inspect`` finds for it is found without looking through all modules."""

from __future__ import annotations

import ast
import inspect
import threading

import pytest

from haotuner.backends import script_parser as module
from haotuner.backends.script_parser import EVALUATED, parse_once, shallow

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


def test_a_text_is_parsed_once_and_each_caller_has_a_tree_of_its_own():
    calls: list[tuple[str, ...]] = []

    def parse(*arguments: str) -> ast.AST:
        calls.append(arguments)
        return ast.parse(*arguments)

    parsed = module._Parsed(parse)
    first, second = parsed("f(x)"), parsed("f(x)")
    first.body.clear()
    assert ast.dump(second) == ast.dump(parsed("f(x)")) == ast.dump(ast.parse("f(x)"))
    assert calls == [("f(x)", "<unknown>", "exec")]
    assert ast.dump(parsed("f(x)", mode="eval")) == ast.dump(ast.parse("f(x)", mode="eval")) and len(calls) == 2
    for _ in range(2):
        with pytest.raises(SyntaxError):
            parsed("f(")


def test_tvm_s_parser_parses_once_whoever_asks_and_makes_the_tree_that_it_made():
    from tvm.script.parser.core import doc

    parse_once()
    quick = doc.parse
    parse_once()
    assert doc.parse is quick and isinstance(quick, module._Parsed)
    text = inspect.getsource(test_an_expression_of_the_parser_is_of_no_module)
    whole = doc.from_doc(doc.to_doc(ast.parse(text, feature_version=(3, 8))))
    assert ast.dump(doc.from_doc(doc.parse(text)), include_attributes=True) == ast.dump(whole, include_attributes=True)


def test_a_macro_finds_the_parser_nearest_above_it():
    from tvm.script.parser.core.parser import ScriptMacro

    shallow(lambda: None)
    code = compile("call()", EVALUATED, "eval")
    names = {"call": lambda: ScriptMacro._find_parser_def(ScriptMacro)}
    outer = {"inner": lambda: eval(code, names), ScriptMacro.parser_object_name: "outer"}
    assert eval("inner()", outer) == "outer"
    assert eval(code, names | {ScriptMacro.parser_object_name: "inner"}) == "inner"
    with pytest.raises(RuntimeError, match="not available"):
        eval(code, names)
