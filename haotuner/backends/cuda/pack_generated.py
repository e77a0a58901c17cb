"""Generated programs of a CUDA pack: ops of one program a cell, and groups of whole models.

Groups of whole models in a CUDA pack: their code as a second image, and how each is launched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from haotuner.backends.backend import Choice, GroupLaunch
from haotuner.backends.cpu.pack_op import (
    PackedSliced,
    axes_of,
    in_place_bits,
    in_place_kernel,
    in_place_operands,
    operands_of,
    plan_tables,
)
from haotuner.backends.cpu.packing import cell_plans, tiled
from haotuner.backends.cuda.compiler import FLAGS, GROUP_FLAGS
from haotuner.backends.cuda.device_code import CodeCache, Entry, find_compiler
from haotuner.host.files import written_aside
from haotuner.microkernels.cuda.generated import CudaGenerated, Cut
from haotuner.microkernels.cuda.launch import Launch
from haotuner.spec.op import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedCudaGenerated(PackedSliced):
    """Everything the library holds about such an op on a CUDA device.

    ``dimensions``: those of the programs' graph, which are axes of the op.
    """

    op: Op
    launches: Sequence[Launch]
    cuts: Sequence[Cut]
    dimensions: Sequence[str]
    splits = False
    reads_kn = False

    @staticmethod
    def chosen(choice: Choice) -> PackedCudaGenerated:
        """Packed op from the result of tuning."""
        family = choice.family
        assert isinstance(family, CudaGenerated)
        kernels = tiled(choice)
        return PackedCudaGenerated(
            op=choice.op,
            name=choice.op.name,
            kind=choice.op.kind,
            axes=axes_of(choice.op, choice.ranges),
            operands=in_place_operands(operands_of(choice.op), kernels),
            kernels=kernels,
            plans=cell_plans(choice),
            launches=[family.launch(kernel) for kernel in choice.kernels],
            cuts=[family.cut(kernel) for kernel in choice.kernels],
            dimensions=family.plan(choice.kernels[0]).graph.dimensions,
        )

    @property
    def dtype(self) -> str:
        """Of the operands that have no type of their own."""
        return self.op.dtype

    def declarations(self) -> str:
        """Nothing: kernels are found in the device code by their names."""
        return ""

    def placed_tables(self, index: int, places: Mapping[str, int]) -> list[str]:
        """C source of ``plans_<index>`` and ``data_<index>``; ``places``: of kernels in the pack's list, by name."""
        for plan in self.plans:
            self._check(plan)
        axes = {axis.name: index for index, axis in enumerate(self.axes)}
        own = ", ".join(str(places[name]) for name in self.kernel_names)
        cuts = ", ".join(cut.initializer() for cut in self.cuts)
        over = ", ".join(f"{in_place_bits(self.operands, kernel)}u" for kernel in self.kernels)
        known = ", ".join(str(axes[name]) for name in self.dimensions) or "0"
        return [
            f"static const int32_t kernels_{index}[] = {{{own}}};",
            f"static const ht_cuda_generated_kernel programs_{index}[] = {{{cuts}}};",
            f"static const uint8_t dimensions_{index}[] = {{{known}}};",
            f"static const uint32_t over_{index}[] = {{{over}}};",
            f"static const ht_cuda_generated data_{index} = "
            f"{{kernels_{index}, programs_{index}, {len(self.cuts)}, {len(self.dimensions)}, dimensions_{index}, "
            f"over_{index}, {in_place_kernel(self.operands, self.kernels)}}};",
            *plan_tables(index, self.plans, axes),
        ]


def build_groups(source: str, out: Path, *, arch: str, cache: Path | None) -> None:
    """Write the cubin of CUDA C++ to ``out``. EnvironmentMissing without a compiler, CompileFailed with its words.

    ``cache``: the folder of units by content that kernels are kept in, too.
    """
    content = json.dumps([source, arch, FLAGS, GROUP_FLAGS])
    code_cache = None if cache is None else CodeCache(cache)
    entry = None if code_cache is None else code_cache.find(content, None)
    if entry is None:
        compiler = find_compiler(arch)
        done = compiler.compile(source, arch, GROUP_FLAGS)
        facts = {"compiler": compiler.name, "arch": arch, "resources": done.resources}
        entry = Entry(unit=source, cubin=done.cubin, facts=facts)
        if code_cache is not None:
            code_cache.keep(content, compiler.name, entry)
    with written_aside(out) as aside:
        aside.write_bytes(entry.cubin)


def group_tables(launches: Sequence[GroupLaunch], image: Sequence[str]) -> str:
    """C of ``ht_cuda_pack_groups``, see runtime/native/cuda/loaded.h; ``image``: C of ``ht_cuda_group_image``."""
    text = ['#include "cuda/loaded.h"', *image]
    for launch in launches:
        text.append(f"static const int32_t {launch.name}_sizes[] = {{{', '.join(map(str, launch.sizes)) or '0'}}};")
    rows = [
        f'  {{"{launch.name}", {launch.lanes}, {launch.points}, {len(launch.sizes)}, {launch.name}_sizes}},'
        for launch in launches
    ]
    text += ["static const ht_cuda_group cuda_groups[] = {", *rows, "  {0, 0, 0, 0, 0},", "};"]
    text.append(f"const ht_cuda_groups_code ht_cuda_pack_groups = {{ht_cuda_group_image, {len(launches)}, cuda_groups}};")
    return "\n".join(text) + "\n"
