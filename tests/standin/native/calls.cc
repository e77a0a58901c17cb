// What every driver call passes: the lock, its counter, a failure that a test planned, and what must be there before it.
//   STANDIN_FAIL="cuMemAlloc:3=2,cuLaunchKernel:5+=719"  the third call answers 2; each from the fifth on 719
//   ...:2=async:700  the work of that call ends with a sticky 700;  :2=hang  never ends;  :2=lost  the device is gone
//   ...:2=wait:20    that call takes 20 ms
#include "standin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace standin {

constexpr CUresult kLost = CUDA_ERROR_UNKNOWN;  // what calls answer after the device fell off the bus

struct Plan {
    long nth = 0;
    bool onward = false;
    std::string what;
};
struct Counter {
    std::string name;
    std::atomic<long> calls{0};
    std::vector<Plan> plans;
};

CUresult g_sticky = CUDA_SUCCESS;
bool g_initialised = false;

namespace {

pid_t g_process = 0;

std::mutex& registry_lock() {
    static auto* made = new std::mutex;
    return *made;
}
std::map<std::string, Counter>& registry() {
    static auto* made = new std::map<std::string, Counter>;
    return *made;
}
std::vector<std::pair<std::string, Plan>> parse(const std::string& text) {
    std::vector<std::pair<std::string, Plan>> plans;
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find(',', at), text.size());
        const std::string one = text.substr(at, end - at);
        at = end + 1;
        const size_t colon = one.find(':'), equals = one.find('=');
        if (colon == std::string::npos || equals == std::string::npos || equals < colon) {
            std::fprintf(stderr, "stand-in: STANDIN_FAIL: %s is not NAME:NTH[+]=CODE\n", one.c_str());
            std::abort();
        }
        const std::string nth = one.substr(colon + 1, equals - colon - 1);
        plans.push_back({one.substr(0, colon), {std::atol(nth.c_str()), nth.back() == '+', one.substr(equals + 1)}});
    }
    return plans;
}
Counter& entry(const std::string& name) {
    auto [found, fresh] = registry().try_emplace(name);
    if (fresh) {
        found->second.name = name;
        for (auto& [function, plan] : parse(setting("STANDIN_FAIL", "")))
            if (function == name) found->second.plans.push_back(plan);
    }
    return found->second;
}
const char* planned_for(const Counter& counter, long call) {
    for (const Plan& plan : counter.plans)
        if (call == plan.nth || (plan.onward && call > plan.nth)) return plan.what.c_str();
    return "";
}

}  // namespace

Counter& counter(const char* name) {
    std::lock_guard<std::mutex> guard(registry_lock());
    return entry(name);
}

std::recursive_mutex& lock() {
    static auto* made = new std::recursive_mutex;
    return *made;
}

void wait_unlocked() {
    lock().unlock();
    usleep(1000);
    lock().lock();
}

void say(const char* format, ...) {
    va_list words;
    va_start(words, format);
    std::fputs("stand-in: ", stderr);
    std::vfprintf(stderr, format, words);
    std::fputc('\n', stderr);
    va_end(words);
}

CUresult stick(CUresult error, const char* why) {
    if (!g_sticky) {
        say("sticky error %d: %s", static_cast<int>(error), why);
        g_sticky = error;
    }
    return g_sticky;
}

Call::Call(Counter& counter, Needs needs) {
    lock().lock();
    const long call = ++counter.calls;
    planned = planned_for(counter, call);
    if (needs != Needs::nothing) {
        if (!g_initialised || g_process != getpid()) {  // a forked child has no driver
            refused = CUDA_ERROR_NOT_INITIALIZED;
            return;
        }
    } else if (!g_process) {
        g_process = getpid();
    }
    if (g_process != getpid() && counter.name == "cuInit") {
        refused = CUDA_ERROR_NOT_INITIALIZED;
        return;
    }
    if (needs == Needs::context) {
        if (!current() || !current()->alive) {
            refused = CUDA_ERROR_INVALID_CONTEXT;
            return;
        }
        if ((refused = g_sticky)) return;
    }
    if (std::strncmp(planned, "wait:", 5) == 0) {  // other threads go on meanwhile
        lock().unlock();
        std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(planned + 5)));
        lock().lock();
    }
    if (std::strcmp(planned, "lost") == 0) refused = stick(kLost, "the device was lost, as a test planned");
    else if (*planned && planned[0] >= '0' && planned[0] <= '9') refused = static_cast<CUresult>(std::atoi(planned));
}
Call::~Call() { lock().unlock(); }

}  // namespace standin

using namespace standin;

// ---- for tests: symbols that no driver has
STANDIN_API long standin_count(const char* name) {
    std::lock_guard<std::mutex> guard(registry_lock());
    auto found = registry().find(name);
    return found == registry().end() ? 0 : found->second.calls.load();
}
STANDIN_API void standin_counts_reset() {
    std::lock_guard<std::mutex> guard(registry_lock());
    for (auto& [name, counter] : registry()) counter.calls = 0;
}
// All calls so far as "NAME COUNT\n"; returns the length that the whole text needs.
STANDIN_API size_t standin_counts(char* text, size_t room) {
    std::lock_guard<std::mutex> guard(registry_lock());
    std::string all;
    for (auto& [name, counter] : registry())
        if (counter.calls) all += name + " " + std::to_string(counter.calls.load()) + "\n";
    if (room) std::snprintf(text, room, "%s", all.c_str());
    return all.size();
}
// From now on: the nth call of a function answers CODE; "" forgets all plans of it. Words as in STANDIN_FAIL.
STANDIN_API void standin_fail(const char* name, long nth, const char* what) {
    std::lock_guard<std::recursive_mutex> outer(lock());
    std::lock_guard<std::mutex> guard(registry_lock());
    Counter& counter = entry(name);
    if (!*what) return counter.plans.clear();
    counter.plans.push_back({counter.calls + nth, false, what});
}

// ---- errors and the table of functions
namespace {
struct Words {
    CUresult code;
    const char *name, *text;
};
#define WORDS(NAME, TEXT) {NAME, #NAME, TEXT}
const Words kWords[] = {
    WORDS(CUDA_SUCCESS, "no error"),
    WORDS(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    WORDS(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    WORDS(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    WORDS(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    WORDS(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    WORDS(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    WORDS(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    WORDS(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    WORDS(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    WORDS(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    WORDS(CUDA_ERROR_INVALID_SOURCE, "device kernel image is invalid"),
    WORDS(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    WORDS(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    WORDS(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    WORDS(CUDA_ERROR_NOT_READY, "device not ready"),
    WORDS(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    WORDS(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    WORDS(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    WORDS(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
    WORDS(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    WORDS(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    WORDS(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"),
    WORDS(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    WORDS(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    WORDS(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination"),
    WORDS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    WORDS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    WORDS(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"),
    WORDS(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    WORDS(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    WORDS(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
    WORDS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a capturing blocking stream"),
    WORDS(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
    WORDS(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "attempt to terminate a thread-local capture sequence from another thread"),
    WORDS(CUDA_ERROR_UNKNOWN, "unknown error"),
};
const Words* words_of(CUresult code) {
    for (const Words& words : kWords)
        if (words.code == code) return &words;
    return nullptr;
}
void* own_symbol(const std::string& name) {
    static void* self = [] {
        Dl_info found;
        dladdr(reinterpret_cast<void*>(&own_symbol), &found);
        return dlopen(found.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL);
    }();
    return dlsym(self, name.c_str());
}
}  // namespace

STANDIN_API CUresult cuGetErrorName(CUresult error, const char** text) {
    const Words* words = words_of(error);
    *text = words ? words->name : nullptr;
    return words ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
STANDIN_API CUresult cuGetErrorString(CUresult error, const char** text) {
    const Words* words = words_of(error);
    *text = words ? words->text : nullptr;
    return words ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

STANDIN_API CUresult cuInit(unsigned flags) {
    ENTER("cuInit", nothing);
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (!driver_version() || devices().empty()) return CUDA_ERROR_NO_DEVICE;
    g_initialised = true;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuDriverGetVersion(int* version) {
    ENTER("cuDriverGetVersion", nothing);
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = driver_version();
    return CUDA_SUCCESS;
}

#undef cuGetProcAddress
STANDIN_API CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t,
                                         CUdriverProcAddressQueryResult* status) {
    ENTER("cuGetProcAddress", nothing);
    if (!symbol || !function) return CUDA_ERROR_INVALID_VALUE;
    const std::string name = symbol;
    // What CUDA 12 headers call these; the plain symbols are older functions of other arguments.
    static const std::map<std::string, std::string> kRenamed = {{"cuGraphInstantiate", "cuGraphInstantiateWithFlags"}};
    auto renamed = kRenamed.find(name);
    *function = nullptr;
    if (renamed != kRenamed.end() && version >= 12000) *function = own_symbol(renamed->second);
    for (const char* suffix : {"_v2", ""})
        if (!*function && !(version < 12080 && name == "cuEventElapsedTime" && *suffix)) *function = own_symbol(name + suffix);
    if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
STANDIN_API CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}
