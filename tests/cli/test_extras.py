"""Where an optional package is missing, Python's doors say so as the command line does."""

from __future__ import annotations

import subprocess
import sys

import pytest

from haotuner.errors import EnvironmentMissing
from haotuner.host import extras


def without(package: str, statement: str) -> str:
    """What a statement ends with in a process that has not the package."""
    code = f"""
import importlib.util as util, sys
real = util.find_spec
util.find_spec = lambda name, *more: None if name == {package!r} else real(name, *more)
sys.modules[{package!r}] = None
{statement}
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    return ended.stderr


def test_tuning_without_its_extra_is_refused_in_the_words_of_the_command_line():
    message = without("pandas", "import haotuner; haotuner.tune('dense:n=8,k=8')")
    assert "haotuner.tune needs the tuning extra; not installed: pandas" in message
    assert "pip install '.[tune]' in a clone of haotuner" in message and "No module named" not in message


def test_torchs_door_without_torch_says_what_to_install():
    message = without("torch", "import haotuner.torch")
    assert "haotuner.torch needs PyTorch, which is not installed. Run: pip install torch" in message


def test_whoever_catches_import_errors_still_does(monkeypatch):
    monkeypatch.setattr(extras, "missing", list)
    for refused in (extras.require_tuning, extras.require_torch):
        with pytest.raises(ImportError) as error:
            refused()
        assert isinstance(error.value, EnvironmentMissing)


LEAN = """
import importlib.util as util, sys
from haotuner.host.extras import TUNING
absent = {*TUNING, "sympy"}
real = util.find_spec
util.find_spec = lambda name, *more: None if name in absent else real(name, *more)
sys.modules.update(dict.fromkeys(absent))
sys.argv = ["haotuner", *sys.argv[1:]]
from haotuner.entry import main
main()
"""


def without_a_tuner(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process that has the packages of the extra ``serve`` alone."""
    return subprocess.run([sys.executable, "-c", LEAN, *arguments], capture_output=True, text=True, check=False)


def test_serve_needs_no_tuner(tmp_path):
    pytest.importorskip("starlette")
    assert without_a_tuner("serve", "--help").returncode == 0
    refused = without_a_tuner("serve", str(tmp_path / "pack"), "--port", "0", "--grpc-port", "-1")
    assert refused.returncode == 5 and "is not a haotuner pack" in refused.stderr
    idle = without_a_tuner("serve", str(tmp_path / "pack"), "--tune-idle", "20%")
    assert idle.returncode == 4 and "--tune-idle needs the tuning extra" in idle.stderr
    assert "the command line needs the tuning extra" in without_a_tuner("inspect", str(tmp_path)).stderr
