"""haotuner.h from C and C++: built as users build it, without Python or TVM in the process; costs, sanitizers, fuzzers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from haotuner.runtime import __main__ as runtime_folders
from haotuner.runtime.__main__ import main as folders
from tests.run_folder import toolchain
from tests.runtime.conftest import DENSE, SMALLEST
from tests.runtime.model_packs import planned
from tests.runtime.native_builds import ASAN, CLIB, HERE, LIBRARY, NATIVE, TSAN, c_pack, cc, run
from tests.runtime.packs import packed_op, put_manifest
from tests.runtime.test_models_c import encoder
from tests.runtime.test_pack_files import HOSTILE

WRAPPED = ("-Wl,--wrap=malloc", "-Wl,--wrap=calloc", "-Wl,--wrap=aligned_alloc")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libhaotuner installed by CMake."""
    if shutil.which("cmake") is None:
        pytest.skip("cmake: not installed")
    folder = tmp_path_factory.mktemp("clib")
    include = toolchain().include
    steps: tuple[list[str | Path], ...] = (
        ["cmake", "-S", CLIB, "-B", folder / "build", f"-DDLPACK_INCLUDE={include}",
         f"-DCMAKE_INSTALL_PREFIX={folder / 'root'}", "-DCMAKE_INSTALL_LIBDIR=lib", "-DHAOTUNER_EXAMPLES=ON"],
        ["cmake", "--build", folder / "build"],
        ["cmake", "--install", folder / "build"],
    )  # fmt: skip
    for step in steps:
        run(step)
    return folder / "root"


def flags(root: Path) -> list[str]:
    if shutil.which("pkg-config") is None:
        pytest.skip("pkg-config: not installed")
    process = run(["pkg-config", "--cflags", "--libs", "haotuner"], PKG_CONFIG_PATH=str(root / "lib/pkgconfig"))
    return process.stdout.split()


def test_the_c_example_serves_without_python_or_tvm(installed, built_pack, tmp_path):
    program = tmp_path / "serve"
    run(["cc", "-std=c99", "-pedantic-errors", "-Wall", "-Wextra", "-Werror", CLIB / "examples/serve.c", "-o", program,
         *flags(installed), "-lm", f"-Wl,-rpath,{installed / 'lib'}"])  # fmt: skip
    for threads in ("1", "2", "3"):
        answer = run([program, built_pack.path, DENSE, threads, "0", "1", "2", "40", "41", "500"]).stdout
        assert answer.startswith("calls=6 out_of_range=3")
    libraries = run(["ldd", program]).stdout + run(["ldd", next((built_pack.path / "lib").iterdir())]).stdout
    assert not re.search("python|tvm", libraries.replace(str(tmp_path), "").replace(str(built_pack.path), ""))
    assert subprocess.run([program, tmp_path, DENSE, "1", "1"], capture_output=True, check=False).returncode == 1


def test_cmake_builds_the_c_examples(installed, built_pack):
    build = installed.parent / "build"
    assert run([build / "serve", built_pack.path, DENSE, "1", "1", "40"]).stdout.startswith("calls=2 ")
    usage = subprocess.run([build / "serve_model"], capture_output=True, text=True, check=False)
    assert usage.returncode == 2 and usage.stderr == "usage: serve_model PACK MODEL THREADS DIM...\n"


def test_the_examples_of_a_whole_model_answer_alike(installed, tmp_path):
    """In C with the shared library, in C++ with the static one."""
    build = installed.parent / "build"
    if not (build / "serve_model_cpp").exists():
        pytest.skip("c++: not installed")
    written, _, ops = planned({"encoder": encoder()}, 4, exact=False)
    pack = c_pack(tmp_path / "pack", ops, models=written)
    words: list[str | Path] = [pack, "encoder", "2", "2", "7"]
    answer = run([build / "serve_model_cpp", *words]).stdout
    assert answer == run([build / "serve_model", *words]).stdout and answer.count(" sum=") == 2
    assert "libhaotuner" not in run(["ldd", build / "serve_model_cpp"]).stdout
    refused = {("encoder", "2", "2"): (2, "encoder takes 2 sizes: batch seq\n"), ("other", "2"): (1, "holds no model other")}
    for wrong, (code, why) in refused.items():
        done = subprocess.run([build / "serve_model_cpp", pack, *wrong], capture_output=True, text=True, check=False)
        assert done.returncode == code and why in done.stderr


def test_a_wheels_folder_is_a_cmake_package(tmp_path, built_pack):
    """find_package without an installation, the static target, and a version that is refused."""
    if shutil.which("cmake") is None:
        pytest.skip("cmake: not installed")
    text = (
        "cmake_minimum_required(VERSION 3.16)\nproject(server C)\nfind_package(haotuner {version} REQUIRED)\n"
        f"add_executable(server {CLIB / 'examples/serve.c'})\n"
        "target_link_libraries(server haotuner::haotuner_static m)\n"
    )
    folder = run([sys.executable, "-m", "haotuner", "--cmakedir"]).stdout.rstrip("\n")
    words = [f"-Dhaotuner_DIR={folder}", f"-DDLPACK_INCLUDE={toolchain().include}"]
    for version in ("0.1", "0.1.0", ""):
        (tmp_path / "CMakeLists.txt").write_text(text.format(version=version))
        run(["cmake", "-S", tmp_path, "-B", tmp_path / "build", *words])
    run(["cmake", "--build", tmp_path / "build"])
    assert run([tmp_path / "build/server", built_pack.path, DENSE, "1", "1", "40"]).stdout.startswith("calls=2 ")
    for version in ("0.2", "1.0", "0.1.9"):
        (tmp_path / "CMakeLists.txt").write_text(text.format(version=version))
        command = ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "other"), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0 and "compatible with requested version" in done.stderr, version


def test_errors_and_tensors_of_the_cpp_header(tmp_path, built_pack):
    if shutil.which("c++") is None:
        pytest.skip("c++: not installed")
    program = tmp_path / "header"
    objects = tmp_path / "objects"
    objects.mkdir()
    includes: list[str | Path] = ["-I", CLIB / "include", "-I", toolchain().include]
    for source in LIBRARY:
        run(["cc", "-std=c11", "-g1", "-fsanitize=address,undefined", "-c", source, "-I", NATIVE, *includes,
             "-o", objects / f"{source.stem}.o"])  # fmt: skip
    run(["c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g1", "-fsanitize=address,undefined",
         HERE / "header.cpp", *objects.iterdir(), *includes, "-ldl", "-pthread", "-o", program])  # fmt: skip
    answer = run([program, built_pack.path, DENSE], ASAN_OPTIONS="detect_leaks=1").stdout
    assert answer == "wrong=0\n"


def test_python_prints_the_folders_that_a_build_needs(capsys):
    expected = {"--cmakedir": "CMakeLists.txt", "--includedir": "haotuner.h", "--dlpackdir": "dlpack/dlpack.h",
              "--examplesdir": "serve_model.c"}  # fmt: skip
    for option, file in expected.items():
        assert folders([option]) == 0
        assert (Path(capsys.readouterr().out.rstrip("\n")) / file).is_file(), option
    with pytest.raises(SystemExit) as wrong:
        folders([])
    assert wrong.value.code == 2 and "--cmakedir" in capsys.readouterr().err


def test_a_folder_without_the_header_of_dlpack_is_an_error(capsys, monkeypatch):
    monkeypatch.setattr(runtime_folders, "dlpack_folder", lambda: None)
    assert folders(["--dlpackdir"]) == 4
    assert "reinstall apache-tvm-ffi" in capsys.readouterr().err


def test_the_cpp_example_through_cmake(installed, built_pack, tmp_path):
    if shutil.which("c++") is None:
        pytest.skip("c++: not installed")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(server CXX)\nfind_package(haotuner 0.1 REQUIRED)\n"
        "find_package(Threads REQUIRED)\n"
        f"add_executable(server {CLIB / 'examples/serve.cpp'})\n"
        "target_compile_options(server PRIVATE -std=c++17 -Wall -Wextra -Werror)\n"
        "target_link_libraries(server haotuner::haotuner Threads::Threads)\n"
    )
    run(["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={installed}"])
    run(["cmake", "--build", tmp_path / "build"])
    assert "wrong=0" in run([tmp_path / "build/server", built_pack.path, "2"]).stdout


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver that counts every allocation of its process."""
    return cc([HERE / "drive.c", *LIBRARY], tmp_path_factory.mktemp("plain") / "drive", "-O1", "-DCOUNT_ALL")


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_call_allocates_nothing(plain, built_pack, threads):
    assert run([plain, "quiet", built_pack.path, str(threads)]).stdout.strip() == "0"


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_system_calls_of_a_thousand_calls(plain, built_pack, threads, tmp_path):
    """One thread: none. More: futex only, at most one wake a call, and one wait a worker a call."""
    if shutil.which("strace") is None:
        pytest.skip("strace: not installed")
    log = tmp_path / "log"
    command = ["strace", "-f", "-o", log, plain, "quiet", built_pack.path, str(threads)]
    traced = subprocess.run(command, capture_output=True, check=False)
    if b"ptrace" in traced.stderr.lower():
        pytest.skip("strace: not permitted here")
    assert traced.returncode == 0, traced.stderr
    text = log.read_text()
    between = text[text.index('write(2, "begin') : text.index('write(2, "end')].splitlines()[1:]
    made_calls = [line.split(maxsplit=1)[1] for line in between if len(line.split()) > 1 and "resumed>" not in line]
    if threads == 1:
        assert made_calls == []
    assert all(line.startswith("futex(") for line in made_calls), made_calls[:5]
    assert sum("FUTEX_WAKE" in line for line in made_calls) <= 1000
    assert sum("FUTEX_WAIT" in line for line in made_calls) <= 1000 * (threads - 1) + threads


def test_open_agrees_with_python_on_hostile_manifests(plain, tmp_path):
    """What Python refuses for its files, schema or JSON the C library refuses; ops it asks the library, not the manifest."""
    only_python = {"1e3", "true extent", "huge extent", "thousands of digits", "too few panels", "op twice", "no ops",
                   "ops is a dict", "kernel name", "kernel without rows", "op name for a shell", "op name of other extents",
                   "another kind", "range upside down", "threads twice", "facts is a list", "lone surrogate", "many ops",
                   "key twice", "not text", "escape sequence", "escape in a key", "writing turned", "tuning is text",
                   "seconds is text", "numbers is text", "toolchain", "a cache of 1e18", "ratio is text", "regret is true",
                   "plans is a list", "times are texts", "curves"}  # fmt: skip
    for name, (raw, _) in HOSTILE.items():
        folder = tmp_path / name
        folder.mkdir()
        put_manifest(folder, raw)
        answer = run([plain, "open", folder]).stdout
        assert answer.startswith("-3 "), (name, answer)
        if name not in only_python:
            assert "manifest.json" in answer, (name, answer)


def test_damaged_and_foreign_packs_are_refused(plain, copied, tmp_path):
    path = next((copied / "lib").iterdir())
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "sha256" in run([plain, "open", copied]).stdout
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert run([plain, "open", copied, tmp_path / "missing"]).stdout.count("-3 ") == 2


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Driver and two packs under AddressSanitizer and UndefinedBehaviorSanitizer."""
    folder = tmp_path_factory.mktemp("asan")
    c_pack(folder / "one", [packed_op(DENSE, 4, 8), packed_op(SMALLEST, 4, 8)], *ASAN)
    c_pack(folder / "two", [packed_op(DENSE, 4, 4)], *ASAN)
    cc([HERE / "drive.c", *LIBRARY], folder / "drive", *ASAN, *WRAPPED)
    return folder


SANITIZED = {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}


@pytest.mark.long
def test_calls_swaps_and_starvation_under_address_sanitizer(address):
    for threads in ("1", "3"):
        run([address / "drive", "quiet", address / "one", threads], 40, **SANITIZED)
    run([address / "drive", "race", address / "one", address / "two", "500", "4"], 40, **SANITIZED)
    assert "failed=" in run([address / "drive", "starve", address / "one"], 40, **SANITIZED).stdout


def thread_build(folder: Path) -> Path:
    c_pack(folder / "one", [packed_op(DENSE, 4, 8)], *TSAN)
    c_pack(folder / "two", [packed_op(DENSE, 4, 4)], *TSAN)
    return cc([HERE / "drive.c", *LIBRARY], folder / "drive", *TSAN, *WRAPPED)


@pytest.mark.long
def test_races_under_thread_sanitizer(tmp_path):
    drive = thread_build(tmp_path)
    run([drive, "race", tmp_path / "one", tmp_path / "two", "1500", "64"], 100, TSAN_OPTIONS="halt_on_error=1")


@pytest.mark.long
@pytest.mark.parametrize("flags", [("-O1", "-DCOUNT_ALL"), ASAN, TSAN], ids=["plain", "address", "thread"])
def test_threads_bind_and_free_linears_of_one_pack(tmp_path, flags):
    """Their weights lie in shared chunks: every result is right, and memory is given back."""
    sanitized = flags in (ASAN, TSAN)
    c_pack(tmp_path / "one", [packed_op(DENSE, 4, 8)], *(flags if sanitized else ()))
    drive = cc([HERE / "drive.c", *LIBRARY], tmp_path / "drive", *flags, *(WRAPPED if sanitized else ()))
    command = [drive, "bind", tmp_path / "one", "1000", "8"]
    assert "errors=0" in run(command, 100, TSAN_OPTIONS="halt_on_error=1", **SANITIZED).stdout


@pytest.mark.long
@pytest.mark.parametrize("flags", [ASAN, TSAN], ids=["address", "thread"])
def test_shared_terms_under_sanitizers(tmp_path, flags):
    """Sums over k whose parts are computed by several threads, called by several at once while packs are swapped."""
    op = "dense_n100_k600"  # two parts
    for name, pw in (("one", 8), ("two", 4)):
        c_pack(tmp_path / name, [packed_op(op, 4, pw, splits=("serial", "k", "k"))], *flags)
    drive = cc([HERE / "drive.c", *LIBRARY], tmp_path / "drive", *flags, *WRAPPED, "-DK=600", f'-DOP="{op}"')
    command = [drive, "race", tmp_path / "one", tmp_path / "two", "1500", "4"]
    run(command, 100, TSAN_OPTIONS="halt_on_error=1", **SANITIZED)


@pytest.mark.long
def test_sixty_four_threads_while_packs_are_swapped_and_closed(plain, built_pack, tmp_path):
    """Zero errors, zero wrong results, and memory that does not grow over the second half."""
    other = c_pack(tmp_path / "other", [packed_op(DENSE, 4, 4)])
    assert "errors=0" in run([plain, "race", built_pack.path, other, "5000", "64"], 100).stdout


@pytest.mark.slow
def test_sixty_four_threads_for_a_minute(tmp_path, plain, built_pack, address):
    drive = thread_build(tmp_path)
    run([drive, "race", tmp_path / "one", tmp_path / "two", "60000", "64"], 300, TSAN_OPTIONS="halt_on_error=1")
    other = c_pack(tmp_path / "plain", [packed_op(DENSE, 4, 4)])
    assert "errors=0" in run([plain, "race", built_pack.path, other, "60000", "64"], 300).stdout
    run([address / "drive", "race", address / "one", address / "two", "20000", "64"], 300, **SANITIZED)
