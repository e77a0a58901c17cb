"""Builds of the C runtime for tests: drivers, and packs whose kernels are plain C so that sanitizers see all."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from haotuner.backends.cpu.pack_source import MODEL_SOURCES, PackedAny, pack_data, sources_of
from haotuner.microkernels.cpu.conv import last_tile
from haotuner.pack.manifest import ModelContent
from haotuner.pack.write import write_pack
from haotuner.partition.executable import ExecutableModel, source_of
from haotuner.spec.kernel import MicroKernel
from tests.kept_objects import ours
from tests.run_folder import toolchain
from tests.runtime.packs import document, packed_op
from tests.standin.patience import WALL_S

RUNTIME = Path(__file__).parents[2] / "haotuner" / "runtime"
NATIVE, CLIB = RUNTIME / "native", RUNTIME / "clib"
HERE = Path(__file__).parent / "native"
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread")
LIBRARY = tuple(
    CLIB / name for name in ("open.c", "linear.c", "model.c", "arena.c", "files.c", "gpu.c", "manifest.c", "sha256.c")
)
DOORS = ("dlopen", "dlclose", "dlsym", "calloc", "aligned_alloc", "stat", "read")  # that drive_doors.c wraps
DOORS_FLAGS = tuple(f"-Wl,--wrap={name}" for name in DOORS)
# Of programs and generated code of tests, and of the linker; nothing of ours asks.
OTHERS_FLAGS = ("-D", "-I", "-Wl,", "-Wno-", "-rdynamic", "-shared", "-fwrapv")
# -O0: what is checked is every access as it is written, and to compile is most of what such a test takes.
# -g1: reports name lines, and packs, whose bytes are hashed each time one is opened, are a third as large.
ASAN = ("-g1", "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
TSAN = ("-g1", "-O1", "-fsanitize=thread")
HASH = CLIB / "sha256.c"  # without an optimiser it is most of what a program does that opens packs


def host_pack(out: Path) -> Path:
    """The CPU's pack that drive_doors.c wants: plans for eight, two and four threads."""
    return c_pack(out, [packed_op("dense_n9_k5", 4, 8, counts=(8, 2, 4))])


# Kernels of tests are nothing that is tested: under a sanitizer, too, they are optimised.
OPTIMISED = '#if defined __GNUC__ && !defined __clang__\n#pragma GCC optimize "O1"\n#endif\n'
KERNEL = """
int __tvm_ffi_{name}(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {{
  (void)self, (void)result;
  if (count != 6 && count != 7) return -1; /* 7: terms lie apart, those of rows with channels last, else those of columns */
  const int64_t* terms = count == 7 ? ((const DLTensor*)args[6].v_ptr)->data : NULL;
  const DLTensor *x = args[0].v_ptr, *w = args[1].v_ptr, *y = args[2].v_ptr;
  int64_t k = x->shape[1], rows = args[3].v_int64 * {mr}, columns = args[4].v_int64 * {nr};
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {{
      const float *row = (const float*)x->data + i * x->strides[0];
      const float *panel = (const float*)w->data + j / {pw} * w->strides[0];
      float sum = args[5].v_int64 ? ((float*)y->data)[i * y->strides[0] + j] : 0;
      for (int64_t t = 0; t < k; ++t)
        sum += row[terms && {cl} ? terms[t] : t] * panel[(terms && !{cl} ? terms[t] : t * {pw}) + j % {pw}];
      ((float*)y->data)[i * y->strides[0] + j] = sum;
    }}
  return 0;
}}
"""


def cc(sources: Sequence[Path], out: Path, *flags: str) -> Path:
    """Compile and link with warnings as errors; the test fails with the compiler's words.

    Sources of the runtime are compiled without ``OTHERS_FLAGS``, so that tests which differ in those share their objects.
    """
    includes = ["-I", str(NATIVE), "-I", str(CLIB), "-I", str(CLIB / "include"), "-I", str(toolchain().include)]
    own = dict.fromkeys(flag for flag in flags if not flag.startswith(OTHERS_FLAGS))
    words, plain = (["cc", *STRICT, *some, *includes] for some in (flags, own))
    known = [source for source in sources if source.is_relative_to(RUNTIME)]
    objects = [
        *ours(words, [source for source in sources if source not in known], [NATIVE, CLIB, HERE]),
        *ours(plain, [source for source in known if source != HASH], [NATIVE, CLIB]),
        *ours([*plain, "-O1"], [source for source in known if source == HASH], [NATIVE, CLIB]),
    ]
    done = subprocess.run([*words, *objects, "-o", str(out), "-lm", "-ldl"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def c_pack(
    out: Path,
    ops: Sequence[PackedAny],
    *flags: str,
    level: str = "x86-64",
    sources: Sequence[Path] = (),
    models: Sequence[ExecutableModel] = (),
) -> Path:
    """A pack with reference kernels in C instead of TVM's; ``level`` is what its manifest says.

    Without ``flags`` the runtime is as tuned packs have it, and shares their objects; with flags warnings are errors.
    ``sources`` hold the kernels of ops that are not dense; ``models`` are whole models of these ops.
    """
    library, all_sources = out.with_suffix(".so"), [*pack_sources(out, ops, models), *sources]
    if flags:
        optimized = () if {"-O0", "-O1"} & {*flags} else ("-g1", "-O1")
        cc(all_sources, library, "-shared", "-fPIC", "-fvisibility=hidden", *optimized, *LOOSE, *flags)
    else:
        toolchain().link([], all_sources, [NATIVE], library)
    files = {model.name: content_of(model) for model in models}
    write_pack(out, library, document(ops, level), lambda _: None, files)
    return out


def content_of(model: ExecutableModel) -> ModelContent:
    """What a pack holds of a model."""
    return ModelContent(model.schedule, model.bytecode, model.weights)


def write_files(folder: Path, models: Sequence[ExecutableModel]) -> list[str]:
    """Bytecode and weights of models, as native/bytecodes.h reads them; returns the models' names."""
    for model in models:
        (folder / f"{model.name}.weights").write_bytes(model.weights)
        (folder / f"{model.name}.bytecode").write_bytes(model.bytecode or b"")
    return [model.name for model in models]


LOOSE = ("-Wno-missing-field-initializers", "-Wno-unused-function", "-Wno-unused-variable")  # of generated C


def pack_sources(out: Path, ops: Sequence[PackedAny], models: Sequence[ExecutableModel] = ()) -> list[Path]:
    """All C that a pack's library is made of; what is generated is written beside ``out``."""
    kernels = {kernel.name: kernel for op in ops for kernel in op.micro_kernels}
    text = f"{OPTIMISED}#include <tvm/ffi/c_api.h>\n" + "".join(
        KERNEL.format(name=name, mr=tile["mr"], nr=tile["nr"], pw=tile["pw"], cl=tile.get("cl", 0))
        for kernel in kernels.values()
        for name, tile in _programs(kernel)
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    code, data = out.parent / f"{out.name}_kernels.c", out.parent / f"{out.name}_data.c"
    code.write_text(text)
    data.write_text(pack_data(ops))
    sources = [code, data, *(NATIVE / name for name in sources_of(ops))]
    if models:
        groups = out.parent / f"{out.name}_groups.c"
        groups.write_text(source_of(models))
        sources += [groups, *(NATIVE / name for name in MODEL_SOURCES)]
    return sources


def _programs(kernel: MicroKernel) -> Iterator[tuple[str, dict[str, int]]]:
    """A kernel's functions and their tiles: its own, and that of the last tile of a convolution's features."""
    params = dict(kernel.params)
    if kernel.family.startswith("cpu_conv_direct_"):
        return  # the runtime has its program
    yield kernel.name, params
    if kernel.family.startswith("cpu_conv_") and last_tile(kernel):
        yield f"{kernel.name}_tail", params | ({"nr": params["nt"]} if "nt" in params else {"mr": params["mt"]})


def run(command: Sequence[str | Path], timeout_s: float = WALL_S, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program with nothing of this process's environment but a path; its output is shown if it fails."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=timeout_s, check=False,
        env={"PATH": "/usr/bin:/bin", **environment},
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stdout[-2000:], done.stderr[-6000:])
    return done
