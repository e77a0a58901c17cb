// What a cubin says of its kernels: parameters, registers, most threads, static shared memory, and a count of instructions.
#include "standin.h"

#include <elf.h>

#include <algorithm>

namespace standin {
namespace {

constexpr int kCudaMachine = 190;  // EM_CUDA
// .nv.info: a format byte (4: sized), an attribute byte, then 16 bits of size. Attributes as `cuobjdump -elf` names them.
enum { kSized = 4, kMaxThreads = 0x05, kParameter = 0x17, kRegisters = 0x2f, kParameter2 = 0x45 };
// The low nine bits of an instruction of sm_70 and later.
enum { kOpcode = 0x1ff, kFma = 0x023, kMatrix = 0x03c, kWarpgroupMatrix = 0x1f0 };

uint32_t word(const unsigned char* data, int index) {
    uint32_t value;
    std::memcpy(&value, data + 4 * index, 4);
    return value;
}

template <class Visit>
void each_attribute(const unsigned char* notes, size_t size, Visit visit) {
    for (size_t at = 0; at + 4 <= size;) {
        const unsigned format = notes[at], attribute = notes[at + 1], value = notes[at + 2] | notes[at + 3] << 8;
        at += 4;
        if (format != kSized) continue;
        if (at + value > size) return;
        visit(attribute, notes + at, value);
        at += value;
    }
}

void read_notes(Facts& facts, const unsigned char* notes, size_t size) {
    each_attribute(notes, size, [&](unsigned attribute, const unsigned char* data, unsigned bytes) {
        if ((attribute == kParameter && bytes >= 12) || (attribute == kParameter2 && bytes >= 16)) {
            const unsigned ordinal = word(data, 1) & 0xffff, offset = word(data, 1) >> 16;
            const unsigned width = attribute == kParameter2 && !(word(data, 2) >> 18) ? word(data, 3) : word(data, 2) >> 18;
            if (facts.parameters.size() <= ordinal) facts.parameters.resize(ordinal + 1);
            facts.parameters[ordinal] = {offset, width};
        } else if (attribute == kMaxThreads && bytes >= 12) {
            facts.max_threads = std::min<int>(1024, static_cast<int>(word(data, 0) * word(data, 1) * word(data, 2)));
        }
    });
}

void read_code(Facts& facts, const unsigned char* code, size_t size) {
    for (size_t at = 0; at + 16 <= size; at += 16) {
        const unsigned opcode = word(code + at, 0) & kOpcode;
        facts.scalar_fma += opcode == kFma;
        facts.matrix += opcode == kMatrix || opcode == kWarpgroupMatrix;
        facts.warpgroup |= opcode == kWarpgroupMatrix;
    }
}

// .nv.compat of CUDA 13: one byte (format 2) of EICOMPAT_ATTR_CUDA_ACCELERATOR_TARGET (9) is 1 for sm_90a.
bool exact_target(const unsigned char* notes, size_t size) {
    for (size_t at = 0; at + 4 <= size && notes[at] != kSized; at += 4)
        if (notes[at] == 2 && notes[at + 1] == 9 && notes[at + 2]) return true;
    return false;
}

size_t extent(const unsigned char* image, const Elf64_Ehdr* header, const Elf64_Shdr* sections) {
    size_t end = std::max<size_t>(header->e_shoff + size_t(header->e_shnum) * header->e_shentsize,
                                  header->e_phoff + size_t(header->e_phnum) * header->e_phentsize);
    for (int i = 0; i < header->e_shnum; i++)
        if (sections[i].sh_type != SHT_NOBITS) end = std::max<size_t>(end, sections[i].sh_offset + sections[i].sh_size);
    (void)image;
    return end;
}

}  // namespace

CUresult read_cubin(const void* data, Cubin* cubin) {
    const auto* image = static_cast<const unsigned char*>(data);
    if (std::memcmp(image, ELFMAG, SELFMAG)) {
        const bool text = std::memcmp(image, ".version", 8) == 0 || std::memcmp(image, "//", 2) == 0;
        if (text) say("PTX is not compiled here: give a cubin");
        return text ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_INVALID_IMAGE;
    }
    const auto* header = reinterpret_cast<const Elf64_Ehdr*>(image);
    if (header->e_machine != kCudaMachine || header->e_shentsize != sizeof(Elf64_Shdr)) return CUDA_ERROR_INVALID_IMAGE;
    cubin->abi = header->e_ident[8];
    // CUDA 13's ELF ABI (8) moved the architecture within the flags; a bit of CUDA 12's tells sm_90a from sm_90.
    cubin->exact = header->e_flags & (cubin->abi >= 8 ? 0x8 : 0x800);
    cubin->capability = static_cast<int>(cubin->abi >= 8 ? header->e_flags >> 8 & 0xff : header->e_flags & 0xff);
    const auto* sections = reinterpret_cast<const Elf64_Shdr*>(image + header->e_shoff);
    const auto* names = reinterpret_cast<const char*>(image + sections[header->e_shstrndx].sh_offset);
    cubin->bytes = extent(image, header, sections);
    auto kernel = [&](const char* name, const char* prefix) -> Facts* {
        const size_t length = std::strlen(prefix);
        return std::strncmp(name, prefix, length) ? nullptr : &cubin->kernels[name + length];
    };
    for (int i = 0; i < header->e_shnum; i++) {
        const char* name = names + sections[i].sh_name;
        const unsigned char* body = image + sections[i].sh_offset;
        if (Facts* found = kernel(name, ".text.")) read_code(*found, body, sections[i].sh_size);
    }
    const Elf64_Shdr *symbols = nullptr, *notes = nullptr;
    for (int i = 0; i < header->e_shnum; i++) {
        const char* name = names + sections[i].sh_name;
        if (sections[i].sh_type == SHT_SYMTAB) symbols = &sections[i];
        if (std::strcmp(name, ".nv.info") == 0) notes = &sections[i];
        if (std::strcmp(name, ".nv.compat") == 0) cubin->exact |= exact_target(image + sections[i].sh_offset, sections[i].sh_size);
        for (auto& [kernel_name, facts] : cubin->kernels) {
            if (name == ".nv.info." + kernel_name) read_notes(facts, image + sections[i].sh_offset, sections[i].sh_size);
            if (name == ".nv.shared." + kernel_name) facts.static_shared = sections[i].sh_size;
        }
    }
    if (!symbols || !notes) return CUDA_SUCCESS;
    each_attribute(image + notes->sh_offset, notes->sh_size, [&](unsigned attribute, const unsigned char* entry, unsigned bytes) {
        if (attribute != kRegisters || bytes < 8) return;
        const auto* symbol = reinterpret_cast<const Elf64_Sym*>(image + symbols->sh_offset) + word(entry, 0);
        const auto* name = reinterpret_cast<const char*>(image + sections[symbols->sh_link].sh_offset) + symbol->st_name;
        auto found = cubin->kernels.find(name);
        if (found != cubin->kernels.end()) found->second.registers = static_cast<int>(word(entry, 1));
    });
    return CUDA_SUCCESS;
}

}  // namespace standin
