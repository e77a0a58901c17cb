// Modules are real cubins. What a kernel computes is the unit.cu beside an equal unit.cubin, translated for the fiber machine
// and compiled on the first execution (python -m tests.standin.image).
#include "standin.h"

#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>

extern char** environ;

namespace standin {
namespace {

constexpr int kAbiOfCuda13 = 8;  // of the cubin's ELF; an older driver cannot read it

std::set<void*>& known() {
    static auto* made = new std::set<void*>;
    return *made;
}
uint64_t fnv(const std::string& data) {
    uint64_t hash = 1469598103934665603ull;
    for (unsigned char byte : data) hash = (hash ^ byte) * 1099511628211ull;
    return hash;
}

CUresult load(Module* module, const void* image) {
    TRY(read_cubin(image, &module->cubin));
    const Device& device = device_of(module->context);
    const int wanted = module->cubin.capability, have = device.capability();
    if (module->cubin.abi >= kAbiOfCuda13 && driver_version() < 13000) return CUDA_ERROR_INVALID_IMAGE;
    if (wanted / 10 != have / 10 || wanted > have || (module->cubin.exact && wanted != have)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    module->bytes.assign(static_cast<const char*>(image), module->cubin.bytes);
    for (auto& [name, facts] : module->cubin.kernels) {
        Kernel& kernel = module->kernels[name];
        kernel.name = name;
        kernel.facts = facts;
        kernel.module = module;
        known().insert(&kernel);
    }
    return CUDA_SUCCESS;
}
CUresult load(Module** made, const void* image) {
    if (!image) return CUDA_ERROR_INVALID_VALUE;
    TRY(refuse_unsafe());
    auto* module = new Module;
    module->context = current();
    if (CUresult refused = load(module, image)) {
        delete module;
        return refused;
    }
    known().insert(module);
    *made = module;
    return CUDA_SUCCESS;
}

// Runs the builder; it prints nothing and leaves IMAGES/HASH.so.
bool build(const std::string& cubin) {
    std::string python = setting("STANDIN_PYTHON", "python3"), path = "PYTHONPATH=" + std::string(setting("STANDIN_ROOT", "."));
    std::string words[] = {python, "-m", "tests.standin.image", cubin};
    std::vector<char*> arguments, variables;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    for (char** one = environ; *one; one++)
        if (std::strncmp(*one, "PYTHONPATH=", 11) && std::strncmp(*one, "LD_PRELOAD=", 11)) variables.push_back(*one);
    variables.push_back(path.data());
    variables.push_back(nullptr);
    pid_t child = 0;
    if (int error = posix_spawnp(&child, python.c_str(), nullptr, nullptr, arguments.data(), variables.data())) {
        say("cannot start %s: %s", python.c_str(), std::strerror(error));
        return false;
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return true;  // somebody else reaped it; the file tells
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

CUresult find_image(Module* module) {
    if (!module->image.empty()) return CUDA_SUCCESS;
    char name[32];
    std::snprintf(name, sizeof name, "/%016llx", static_cast<unsigned long long>(fnv(module->bytes)));
    const std::string base = setting("STANDIN_IMAGES", ".") + std::string(name), library = base + ".so";
    if (access(library.c_str(), R_OK)) {
        const std::string fresh = base + "." + std::to_string(getpid());
        std::ofstream(fresh, std::ios::binary).write(module->bytes.data(), static_cast<std::streamsize>(module->bytes.size()));
        std::rename(fresh.c_str(), (base + ".cubin").c_str());
        if (!build(base + ".cubin")) return CUDA_ERROR_INVALID_SOURCE;
    }
    module->image = library;
    return CUDA_SUCCESS;
}

}  // namespace

CUresult executable(Kernel* kernel) {
    if (kernel->entry) return CUDA_SUCCESS;
    TRY(find_image(kernel->module));
    void* image = dlopen(kernel->module->image.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!image) return say("%s", dlerror()), CUDA_ERROR_INVALID_SOURCE;
    kernel->entry = reinterpret_cast<void (*)(void**)>(dlsym(image, ("standin_entry_" + kernel->name).c_str()));
    if (!kernel->entry) return say("the unit of this cubin has no kernel %s", kernel->name.c_str()), CUDA_ERROR_INVALID_SOURCE;
    return CUDA_SUCCESS;
}

// CUDA C++ programming guide, occupancy: whole warps, registers in units of 256 a warp over four schedulers, shared memory
// with 1024 bytes a block that the system keeps.
int resident_blocks(const Device& device, const Facts& facts, int threads, size_t dynamic) {
    const int warps = (threads + 31) / 32, registers = (std::max(facts.registers, 16) * 32 + 255) / 256 * 256;
    const int held_warps = device.at(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR) / registers / 4 * 4;
    const size_t shared = (facts.static_shared + dynamic + 1024 + 127) / 128 * 128;
    const auto whole = static_cast<size_t>(device.at(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR));
    return std::min({held_warps / warps, device.at(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) / (warps * 32),
                     device.at(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR), static_cast<int>(whole / shared)});
}

}  // namespace standin

using namespace standin;

namespace {
CUresult find_kernel(CUfunction function, Kernel** found) {
    *found = reinterpret_cast<Kernel*>(function);
    return known().count(*found) && !(*found)->module->unloaded ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
}  // namespace

STANDIN_API CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    ENTER("cuModuleLoadData", context);
    return module ? load(reinterpret_cast<Module**>(module), image) : CUDA_ERROR_INVALID_VALUE;
}
STANDIN_API CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
    ENTER("cuModuleLoadDataEx", context);
    return module ? load(reinterpret_cast<Module**>(module), image) : CUDA_ERROR_INVALID_VALUE;
}
STANDIN_API CUresult cuModuleUnload(CUmodule handle) {
    ENTER("cuModuleUnload", context);
    auto* module = reinterpret_cast<Module*>(handle);
    if (!known().count(module)) return CUDA_ERROR_INVALID_HANDLE;
    TRY(refuse_unsafe());
    known().erase(module);
    module->unloaded = true;  // queued work that still names it fails
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
    ENTER("cuModuleGetFunction", context);
    auto* module = reinterpret_cast<Module*>(handle);
    if (!function || !name) return CUDA_ERROR_INVALID_VALUE;
    if (!known().count(module)) return CUDA_ERROR_INVALID_HANDLE;
    auto found = module->kernels.find(name);
    if (found == module->kernels.end()) return CUDA_ERROR_NOT_FOUND;
    *function = reinterpret_cast<CUfunction>(&found->second);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuFuncGetModule(CUmodule* module, CUfunction function) {
    ENTER("cuFuncGetModule", context);
    Kernel* kernel = nullptr;
    TRY(find_kernel(function, &kernel));
    *module = reinterpret_cast<CUmodule>(kernel->module);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuFuncLoad(CUfunction function) {
    ENTER("cuFuncLoad", context);
    Kernel* kernel = nullptr;
    return find_kernel(function, &kernel);
}
STANDIN_API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    ENTER("cuFuncSetAttribute", context);
    Kernel* kernel = nullptr;
    TRY(find_kernel(function, &kernel));
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        const int most = device_of(current()).at(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
        if (value < 0 || value + static_cast<int>(kernel->facts.static_shared) > most) return CUDA_ERROR_INVALID_VALUE;
        kernel->dynamic_limit = value;
        return CUDA_SUCCESS;
    }
    return attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
STANDIN_API CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
    ENTER("cuFuncGetAttribute", context);
    Kernel* kernel = nullptr;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    TRY(find_kernel(function, &kernel));
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = kernel->facts.max_threads; break;
        case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = static_cast<int>(kernel->facts.static_shared); break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = kernel->facts.registers; break;
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = kernel->module->cubin.capability; break;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = kernel->dynamic_limit; break;
        default: *value = 0;
    }
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads, size_t dynamic) {
    ENTER("cuOccupancyMaxActiveBlocksPerMultiprocessor", context);
    Kernel* kernel = nullptr;
    TRY(find_kernel(function, &kernel));
    if (!blocks || threads < 1) return CUDA_ERROR_INVALID_VALUE;
    *blocks = threads > kernel->facts.max_threads ? 0 : resident_blocks(device_of(current()), kernel->facts, threads, dynamic);
    return CUDA_SUCCESS;
}
