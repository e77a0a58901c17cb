// A launch is checked against its cubin and its device when it is asked for; its parameters are taken then, as a driver does.
// It is carried out on the fiber machine when its stream gets there; a fault in it becomes the sticky error of the process.
#include "../../emulator/native/machine.h"
#undef threadIdx
#undef blockIdx
#include "standin.h"

#include <setjmp.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>

namespace standin {
namespace {

constexpr int kKept = 128;       // bytes between parameters: a tensor map wants 64
constexpr int kMapBytes = 128;   // CUtensorMap
long g_executed = 0;
unsigned g_geometry[2] = {0, 0};  // blocks and threads of the last launch

thread_local sigjmp_buf t_fault;
thread_local volatile sig_atomic_t t_inside = 0;
thread_local const char* volatile t_said = nullptr;
constexpr int kDied = 1000;      // beside signal numbers
constexpr auto kNeverEnds = static_cast<CUresult>(-1);

void faulted(int number) {
    if (t_inside) siglongjmp(t_fault, number);
    signal(number, SIG_DFL);
    raise(number);
}

// Signals are ours only while a kernel runs; fibers have no room for a handler, so it gets a stack of its own.
struct Guard {
    static constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    struct sigaction before[4];
    stack_t stack_before;
    Guard() {
        thread_local static char room[65536];
        stack_t stack{};
        stack.ss_sp = room;
        stack.ss_size = sizeof room;
        sigaltstack(&stack, &stack_before);
        struct sigaction action {};
        action.sa_handler = faulted;
        action.sa_flags = SA_ONSTACK | SA_NODEFER;
        for (int i = 0; i < 4; i++) sigaction(kSignals[i], &action, &before[i]);
    }
    ~Guard() {
        for (int i = 0; i < 4; i++) sigaction(kSignals[i], &before[i], nullptr);
        sigaltstack(&stack_before, nullptr);
    }
};

CUresult what_failed(int number) {
    if (number == kDied) {
        const std::string said = t_said;
        say("the kernel died: %s", said.c_str());
        if (said == "deadlock") return kNeverEnds;
        return said.rfind("misaligned", 0) == 0 ? CUDA_ERROR_MISALIGNED_ADDRESS : CUDA_ERROR_LAUNCH_FAILED;
    }
    // g++ traps (SIGILL) where an access is not aligned as its type.
    return number == SIGILL ? CUDA_ERROR_MISALIGNED_ADDRESS : number == SIGFPE ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

// Pointers of a kernel of ours must lie in memory of the launch's context; freed or foreign ones fault, as on a device.
CUresult check_pointers(const Launch& launch) {
    const Arguments* arguments = arguments_of(launch);
    if (const Program* program = program_of(launch))
        for (uint64_t pointer : program->data)
            if (pointer && !reachable(launch.context, pointer, 1)) {
                say("%s: %#llx is no memory of this context", launch.kernel->name.c_str(), static_cast<unsigned long long>(pointer));
                return CUDA_ERROR_ILLEGAL_ADDRESS;
            }
    if (const Program* program = program_of(launch))
        if (program->phase && !reachable(launch.context, program->partial, 1)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (!arguments) return CUDA_SUCCESS;
    for (uint64_t pointer : {arguments->x, arguments->w, arguments->bias, arguments->residual, arguments->y, arguments->partial,
                             arguments->scale, arguments->low, arguments->high, arguments->slope})
        if (pointer && !reachable(launch.context, pointer, 1)) {
            say("%s: %#llx is no memory of this context", launch.kernel->name.c_str(), static_cast<unsigned long long>(pointer));
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
    return CUDA_SUCCESS;
}

CUresult check(const Launch& launch) {
    const Facts& facts = launch.kernel->facts;
    const Device& device = device_of(launch.context);
    const uint64_t threads = uint64_t(launch.block[0]) * launch.block[1] * launch.block[2];
    if (!launch.grid[0] || !launch.grid[1] || !launch.grid[2] || !threads) return CUDA_ERROR_INVALID_VALUE;
    if (launch.grid[0] > 2147483647u || launch.grid[1] > 65535 || launch.grid[2] > 65535) return CUDA_ERROR_INVALID_VALUE;
    if (launch.block[0] > 1024 || launch.block[1] > 1024 || launch.block[2] > 64 || threads > 1024) return CUDA_ERROR_INVALID_VALUE;
    if (static_cast<int>(threads) > facts.max_threads) return CUDA_ERROR_INVALID_VALUE;
    if (static_cast<int64_t>(launch.shared) + static_cast<int64_t>(facts.static_shared) > std::max<int64_t>(launch.kernel->dynamic_limit + static_cast<int64_t>(facts.static_shared), 48 << 10) ||
        static_cast<int>(launch.shared) > launch.kernel->dynamic_limit)
        return CUDA_ERROR_INVALID_VALUE;
    if (resident_blocks(device, facts, static_cast<int>(threads), launch.shared) < 1) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    return CUDA_SUCCESS;
}

// What a kernel of ours reads and writes. Elements have 4 bytes, or 2 where the name says so.
CUresult touch_operands(const Launch& launch) {
    const Arguments* a = arguments_of(launch);
    if (!a) return CUDA_SUCCESS;
    const std::string& name = launch.kernel->name;
    const uint64_t size = name.find("fp16") == std::string::npos && name.find("bf16") == std::string::npos ? 4 : 2;
    const uint64_t written = a->y_type == 0 ? size : a->y_type == 1 ? 4 : 2;
    const uint64_t m = a->m, n = a->n, k = a->k, splits = std::max(a->splits, 1), rows = ((m - 1) * a->ldy + n) * written;
    const bool reduces = name.rfind("haotuner_reduce", 0) == 0, partial = splits > 1 && !reduces;
    if (!reduces) {
        TRY(touch(a->x, ((m - 1) * a->ldx + k) * size, false));
        TRY(touch(a->w, n * k * size, false));
    } else if (a->partial) {
        TRY(touch(a->partial, 4 * splits * m * n, false));
    }
    if (partial) return touch(a->partial, 4 * splits * m * n, true);
    for (uint64_t values : {a->bias, a->scale, a->low, a->high, a->slope})
        if (values) TRY(touch(values, n * size, false));
    if (a->residual && a->residual != a->y) TRY(touch(a->residual, rows, false));
    return touch(a->y, rows, true);
}

// From an array of pointers, or from one block of bytes laid out as the cubin says.
CUresult take(Launch& launch, void** parameters, void** extra) {
    const auto& wanted = launch.kernel->facts.parameters;
    const unsigned char* block = nullptr;
    size_t block_bytes = 0;
    if (extra) {
        for (void** at = extra; *at != CU_LAUNCH_PARAM_END; at += 2) {
            if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER) block = static_cast<const unsigned char*>(at[1]);
            if (*at == CU_LAUNCH_PARAM_BUFFER_SIZE) block_bytes = *static_cast<size_t*>(at[1]);
        }
        if (parameters || !block) return CUDA_ERROR_INVALID_VALUE;
    }
    if (!wanted.empty() && !parameters && !block) return CUDA_ERROR_INVALID_VALUE;
    size_t room = kKept;
    for (auto& [offset, bytes] : wanted) room += (bytes + kKept - 1) / kKept * kKept;
    launch.storage.resize(room);
    auto* to = reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(launch.storage.data()) + kKept - 1) / kKept * kKept);
    for (size_t i = 0; i < wanted.size(); i++) {
        const auto [offset, bytes] = wanted[i];
        if (block && offset + bytes > block_bytes) return CUDA_ERROR_INVALID_VALUE;
        std::memcpy(to, block ? block + offset : parameters[i], bytes);
        launch.parameters.push_back(to);
        to += (bytes + kKept - 1) / kKept * kKept;
    }
    return CUDA_SUCCESS;
}

CUresult run(const Launch& launch) {
    TRY(check_pointers(launch));
    TRY(check_map(launch));
    TRY(executable(launch.kernel));
    static const bool once = [] {
        emulator_set(late(), static_cast<unsigned>(std::strtoul(setting("STANDIN_SEED", "0"), nullptr, 10)));
        return true;
    }();
    (void)once;
    const dim3 grid(launch.grid[0], launch.grid[1], launch.grid[2]), block(launch.block[0], launch.block[1], launch.block[2]);
    const auto units = static_cast<unsigned>(device_of(launch.context).units());
    auto entry = launch.kernel->entry;
    auto** parameters = const_cast<void**>(launch.parameters.data());
    CUresult result = CUDA_SUCCESS;
    g_executed++;
    g_geometry[0] = launch.grid[0], g_geometry[1] = launch.block[0];
    show_only(launch.context);
    {
        Guard guard;
        if (int number = sigsetjmp(t_fault, 1)) {
            t_inside = 0;
            result = what_failed(number);
        } else {
            t_inside = 1;
            emu::execute(grid, block, launch.shared, units, [=] { entry(parameters); });
            t_inside = 0;
        }
    }
    show_all();
    while (result == kNeverEnds) wait_unlocked();  // as a device would
    if (result) say("%s failed with %d", launch.kernel->name.c_str(), static_cast<int>(result));
    return result;
}

}  // namespace

const Arguments* arguments_of(const Launch& launch) {
    const auto& wanted = launch.kernel->facts.parameters;
    const std::string& name = launch.kernel->name;  // what these take first is as large
    const bool others = name.rfind("haotuner_unfold", 0) == 0 || name.rfind("haotuner_fold", 0) == 0;
    return !others && !wanted.empty() && wanted[0].second == sizeof(Arguments) ? static_cast<const Arguments*>(launch.parameters[0]) : nullptr;
}

const Program* program_of(const Launch& launch) {
    const auto& wanted = launch.kernel->facts.parameters;
    return wanted.size() == 1 && wanted[0].second == sizeof(Program) ? static_cast<const Program*>(launch.parameters[0]) : nullptr;
}

CUresult check_map(const Launch& launch) {
    const auto& wanted = launch.kernel->facts.parameters;
    for (size_t i = 0; i < wanted.size(); i++) {
        if (wanted[i].second != kMapBytes) continue;
        uint64_t base = 0, check = 0;
        std::memcpy(&base, launch.parameters[i], 8);
        std::memcpy(&check, static_cast<const unsigned char*>(launch.parameters[i]) + kMapBytes - 8, 8);
        if (check != (base ^ 0x68616f74756e6572ull)) {
            say("%s: parameter %zu is no tensor map that cuTensorMapEncodeTiled wrote", launch.kernel->name.c_str(), i);
            return CUDA_ERROR_ILLEGAL_INSTRUCTION;
        }
        if (!reachable(launch.context, base, 1)) {
            say("%s: the tensor map of parameter %zu is over no memory of this context", launch.kernel->name.c_str(), i);
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
    }
    return CUDA_SUCCESS;
}

CUresult carry_out(const Launch& launch) { return run(launch); }

}  // namespace standin

using namespace standin;

// machine.cc calls this where a kernel does what no device allows.
extern "C" void emulator_died(const char* what) {
    if (!t_inside) return;
    t_said = what;
    siglongjmp(t_fault, kDied);
}

STANDIN_API long standin_executed() { return g_executed; }

STANDIN_API void standin_geometry(unsigned out[2]) { out[0] = g_geometry[0], out[1] = g_geometry[1]; }

namespace {
CUresult launch_kernel(const char* planned, CUfunction function, const unsigned (&grid)[3], const unsigned (&block)[3], unsigned shared,
                       CUstream handle, void** parameters, void** extra) {
    Stream* stream = nullptr;
    auto launch = std::make_shared<Launch>();
    launch->kernel = reinterpret_cast<Kernel*>(function);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    TRY(find_stream(handle, &stream));
    launch->context = current();
    if (stream->context != current() || launch->kernel->module->context != current()) return CUDA_ERROR_INVALID_HANDLE;
    if (launch->kernel->module->unloaded) return CUDA_ERROR_INVALID_HANDLE;
    std::copy_n(grid, 3, launch->grid);
    std::copy_n(block, 3, launch->block);
    launch->shared = shared;
    TRY(check(*launch));
    TRY(take(*launch, parameters, extra));
    auto work = [launch] {
        spend(launch_us(*launch));
        TRY(touch_operands(*launch));
        return defer(launch);
    };
    return submit(stream, work, 0, planned);
}
}  // namespace

STANDIN_API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                    unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void** parameters,
                                    void** extra) {
#ifdef STANDIN_BARE  // what a call of the driver costs with no driver in it
    static std::atomic<long> calls{0};
    calls++;
    return CUDA_SUCCESS;
#endif
    ENTER("cuLaunchKernel", context);
    return launch_kernel(call_.planned, function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, parameters, extra);
}
STANDIN_API CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction function, void** parameters, void** extra) {
    ENTER("cuLaunchKernelEx", context);
    if (!c) return CUDA_ERROR_INVALID_VALUE;
    return launch_kernel(call_.planned, function, {c->gridDimX, c->gridDimY, c->gridDimZ}, {c->blockDimX, c->blockDimY, c->blockDimZ},
                         c->sharedMemBytes, c->hStream, parameters, extra);
}
