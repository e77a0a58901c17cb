// Device memory is host memory between pages that fault. It is poisoned (NaN in every format), its slack is watched, a freed
// range faults from then on, and while a kernel runs the memory of other contexts faults.
#include "standin.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace standin {
namespace {

constexpr size_t kAlignment = 256;            // cuMemAlloc: suitably aligned for any kind of variable
constexpr size_t kPoisoned = size_t(4) << 20;  // at each end; the middle of a larger block is zero
constexpr unsigned char kCanary = 0xa5;
constexpr size_t kQuarantined = 4096;

std::map<CUdeviceptr, Allocation>& blocks() {
    static auto* made = new std::map<CUdeviceptr, Allocation>;
    return *made;
}
std::map<uintptr_t, size_t>& pinned() {
    static auto* made = new std::map<uintptr_t, size_t>;
    return *made;
}
std::deque<std::pair<unsigned char*, size_t>> g_freed;
unsigned long long g_numbers = 0;
bool g_hidden = false;

size_t page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
bool is_pinned(const void* host) {
    const auto at = reinterpret_cast<uintptr_t>(host);
    auto found = pinned().upper_bound(at);
    return found != pinned().begin() && at < (--found)->first + found->second;
}
bool slack_whole(CUdeviceptr start, const Allocation& block) {
    const auto* from = block.mapped + page();
    const auto* to = block.mapped + block.mapped_bytes - page();
    const auto* first = reinterpret_cast<const unsigned char*>(start);
    auto canary = [](unsigned char byte) { return byte == kCanary; };
    return std::all_of(from, first, canary) && std::all_of(first + block.bytes, to, canary);
}
void unmap(const Allocation& block) {
    mprotect(block.mapped, block.mapped_bytes, PROT_NONE);
    madvise(block.mapped, block.mapped_bytes, MADV_DONTNEED);
    g_freed.push_back({block.mapped, block.mapped_bytes});
    if (g_freed.size() <= kQuarantined) return;
    munmap(g_freed.front().first, g_freed.front().second);
    g_freed.pop_front();
}

}  // namespace

Allocation* allocation_at(CUdeviceptr address, CUdeviceptr* start) {
    auto found = blocks().upper_bound(address);
    if (found == blocks().begin()) return nullptr;
    --found;
    if (address >= found->first + found->second.bytes) return nullptr;
    if (start) *start = found->first;
    return &found->second;
}
bool reachable(const Context* context, CUdeviceptr address, size_t bytes) {
    CUdeviceptr start = 0;
    const Allocation* block = allocation_at(address, &start);
    return block && block->context == context && address + bytes <= start + block->bytes;
}
void show_only(const Context* context) {
    for (auto& [start, block] : blocks())
        if (block.context != context) {
            mprotect(block.mapped, block.mapped_bytes, PROT_NONE);
            g_hidden = true;
        }
}
void show_all() {
    if (!g_hidden) return;
    g_hidden = false;
    for (auto& [start, block] : blocks())
        mprotect(block.mapped + page(), block.mapped_bytes - 2 * page(), PROT_READ | PROT_WRITE);
    for (auto& [start, block] : blocks()) {
        mprotect(block.mapped, page(), PROT_NONE);
        mprotect(block.mapped + block.mapped_bytes - page(), page(), PROT_NONE);
    }
}
bool canaries_whole(const char** what) {
    *what = "something wrote beside an allocation";
    return std::all_of(blocks().begin(), blocks().end(), [](const auto& one) { return slack_whole(one.first, one.second); });
}
void free_all(Context* context) {
    forget_waiting(context);
    for (auto at = blocks().begin(); at != blocks().end();) {
        if (at->second.context == context) {
            unmap(at->second);
            at = blocks().erase(at);
        } else {
            ++at;
        }
    }
    context->used = 0;
}

namespace {

CUresult allocate(CUdeviceptr* address, size_t bytes) {
    if (!address || !bytes) return CUDA_ERROR_INVALID_VALUE;
    size_t used = 0;
    for (auto& [start, block] : blocks())
        if (block.context->device == current()->device) used += block.bytes;
    const size_t memory = device_of(current()).memory;
    if (bytes > memory || used + bytes > memory) return CUDA_ERROR_OUT_OF_MEMORY;
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const size_t body = (rounded + page() - 1) / page() * page();
    void* mapped = mmap(nullptr, body + 2 * page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    auto* base = static_cast<unsigned char*>(mapped) + page();
    if (mprotect(base, body, PROT_READ | PROT_WRITE)) return CUDA_ERROR_OUT_OF_MEMORY;
    auto* start = base + body - rounded;
    std::memset(base, kCanary, static_cast<size_t>(start - base));
    std::memset(start, 0xff, std::min(bytes, kPoisoned));
    if (bytes > kPoisoned) std::memset(start + bytes - std::min(bytes - kPoisoned, kPoisoned), 0xff, std::min(bytes - kPoisoned, kPoisoned));
    std::memset(start + bytes, kCanary, rounded - bytes);
    *address = reinterpret_cast<CUdeviceptr>(start);
    blocks()[*address] = {current(), static_cast<unsigned char*>(mapped), body + 2 * page(), bytes, ++g_numbers};
    return CUDA_SUCCESS;
}
CUresult release(CUdeviceptr address) {
    auto found = blocks().find(address);
    if (found == blocks().end()) return CUDA_ERROR_INVALID_VALUE;
    TRY(before_write(address, found->second.bytes, true));
    if (!slack_whole(address, found->second)) stick(CUDA_ERROR_ILLEGAL_ADDRESS, "something wrote beside an allocation that is freed");
    unmap(found->second);
    blocks().erase(found);
    forget_accesses(address);
    return g_sticky;
}

// A range of device memory, checked when asked for (an error of the call) and again when the copy is carried out (sticky).
CUresult checked(CUdeviceptr address, size_t bytes) {
    if (!bytes) return CUDA_SUCCESS;
    CUdeviceptr start = 0;
    const Allocation* block = allocation_at(address, &start);
    return block && address + bytes <= start + block->bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult copy(void* to, const void* from, size_t bytes, bool to_device, bool from_device) {
    if (!bytes) return CUDA_SUCCESS;
    const auto target = reinterpret_cast<CUdeviceptr>(to), source = reinterpret_cast<CUdeviceptr>(from);
    if ((to_device && checked(target, bytes)) || (from_device && checked(source, bytes))) return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (from_device) TRY(touch(source, bytes, false));
    if (to_device) TRY(touch(target, bytes, true));
    if (from_device) TRY(before_read(source));
    if (to_device) TRY(before_write(target, bytes, false));
    std::memmove(to, from, bytes);
    return CUDA_SUCCESS;
}
CUresult copy_now(void* to, const void* from, size_t bytes, bool to_device, bool from_device) {
    if (to_device) TRY(checked(reinterpret_cast<CUdeviceptr>(to), bytes));
    if (from_device) TRY(checked(reinterpret_cast<CUdeviceptr>(from), bytes));
    TRY(refuse_implicit(current()));
    TRY(refuse_unsafe());
    return synchronous([=] { return copy(to, from, bytes, to_device, from_device); });
}
// To a device from memory that is not pinned: the call waits for earlier work, takes the bytes and returns. They arrive in the legacy
// stream's order, which a stream that does not block never waits for (CUDA driver API, "API synchronization behavior").
CUresult copy_staged(void* to, const void* from, size_t bytes) {
    TRY(checked(reinterpret_cast<CUdeviceptr>(to), bytes));
    TRY(refuse_implicit(current()));
    TRY(refuse_unsafe());
    TRY(wait_stream(current()->legacy));
    const auto* first = static_cast<const unsigned char*>(from);
    auto kept = std::make_shared<std::vector<unsigned char>>(first, first + bytes);
    return submit(current()->legacy, [=] { return copy(to, kept->data(), bytes, true, false); }, 1.0);
}
// From memory that is not pinned the bytes are taken before the call returns; to such memory the call waits.
CUresult copy_later(void* to, const void* from, size_t bytes, bool to_device, bool from_device, CUstream handle, const char* planned) {
    Stream* stream = nullptr;
    TRY(find_stream(handle, &stream));
    if (to_device) TRY(checked(reinterpret_cast<CUdeviceptr>(to), bytes));
    if (from_device) TRY(checked(reinterpret_cast<CUdeviceptr>(from), bytes));
    const double us = 1.0 + static_cast<double>(bytes) / (from_device && to_device ? 5e5 : 2.5e4);
    if (!from_device && !is_pinned(from)) {
        auto kept = std::make_shared<std::vector<unsigned char>>(static_cast<const unsigned char*>(from), static_cast<const unsigned char*>(from) + bytes);
        return submit(stream, [=] { return copy(to, kept->data(), bytes, to_device, false); }, us, planned);
    }
    TRY(submit(stream, [=] { return copy(to, from, bytes, to_device, from_device); }, us, planned));
    if (!to_device && !is_pinned(to) && !stream->capture) return wait_stream(stream);
    return CUDA_SUCCESS;
}
template <class T>
CUresult fill(CUdeviceptr address, T value, size_t count) {
    if (!count) return CUDA_SUCCESS;
    if (checked(address, count * sizeof(T))) return CUDA_ERROR_ILLEGAL_ADDRESS;
    TRY(touch(address, count * sizeof(T), true));
    TRY(before_write(address, count * sizeof(T), false));
    std::fill_n(reinterpret_cast<T*>(address), count, value);
    return CUDA_SUCCESS;
}
template <class T>
CUresult fill_later(CUdeviceptr address, T value, size_t count, CUstream handle, const char* planned) {
    Stream* stream = nullptr;
    TRY(find_stream(handle, &stream));
    if (address % sizeof(T)) return CUDA_ERROR_INVALID_VALUE;
    TRY(checked(address, count * sizeof(T)));
    return submit(stream, [=] { return fill(address, value, count); }, 1.0 + static_cast<double>(count * sizeof(T)) / 1e6, planned);
}
template <class T>
CUresult fill_now(CUdeviceptr address, T value, size_t count) {  // asynchronous to the host: memsets of device memory are
    TRY(refuse_implicit(current()));
    TRY(refuse_unsafe());
    return fill_later(address, value, count, nullptr, "");
}
void* host(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
CUresult pin(void* memory, size_t bytes) {
    pinned()[reinterpret_cast<uintptr_t>(memory)] = bytes;
    return CUDA_SUCCESS;
}

}  // namespace
}  // namespace standin

using namespace standin;

STANDIN_API CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
    ENTER("cuMemAlloc", context);
    TRY(refuse_unsafe());
    return allocate(address, bytes);
}
STANDIN_API CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream handle) {
    ENTER("cuMemAllocAsync", context);
    Stream* stream = nullptr;
    TRY(find_stream(handle, &stream));
    if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;  // memory nodes of graphs are not modelled
    return allocate(address, bytes);
}
STANDIN_API CUresult cuMemFree_v2(CUdeviceptr address) {  // promises no wait: queued work that still reads the memory faults
    ENTER("cuMemFree", context);
    TRY(refuse_unsafe());
    return address ? release(address) : CUDA_SUCCESS;
}
STANDIN_API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
    ENTER("cuMemFreeAsync", context);
    Stream* stream = nullptr;
    TRY(find_stream(handle, &stream));
    if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
    if (!blocks().count(address)) return CUDA_ERROR_INVALID_VALUE;
    return submit(stream, [=] { return release(address); }, 0);
}
STANDIN_API CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
    ENTER("cuMemGetInfo", context);
    if (!free_bytes || !total) return CUDA_ERROR_INVALID_VALUE;
    *total = *free_bytes = device_of(current()).memory;
    for (auto& [start, block] : blocks())
        if (block.context->device == current()->device) *free_bytes -= block.bytes;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
    ENTER("cuMemGetAddressRange", context);
    CUdeviceptr start = 0;
    const Allocation* block = allocation_at(address, &start);
    if (!block) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = start;
    if (bytes) *bytes = block->bytes;
    return CUDA_SUCCESS;
}

STANDIN_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
    ENTER("cuMemcpyHtoD", context);
    return is_pinned(from) ? copy_now(host(to), from, bytes, true, false) : copy_staged(host(to), from, bytes);
}
STANDIN_API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
    ENTER("cuMemcpyDtoH", context);
    return copy_now(to, host(from), bytes, false, true);
}
STANDIN_API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    ENTER("cuMemcpyDtoD", context);
    return copy_now(host(to), host(from), bytes, true, true);
}
STANDIN_API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    ENTER("cuMemcpy", context);
    return copy_now(host(to), host(from), bytes, allocation_at(to), allocation_at(from));
}
STANDIN_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
    ENTER("cuMemcpyHtoDAsync", context);
    return copy_later(host(to), from, bytes, true, false, stream, call_.planned);
}
STANDIN_API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
    ENTER("cuMemcpyDtoHAsync", context);
    return copy_later(to, host(from), bytes, false, true, stream, call_.planned);
}
STANDIN_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    ENTER("cuMemcpyDtoDAsync", context);
    return copy_later(host(to), host(from), bytes, true, true, stream, call_.planned);
}
STANDIN_API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    ENTER("cuMemcpyAsync", context);
    return copy_later(host(to), host(from), bytes, allocation_at(to), allocation_at(from), stream, call_.planned);
}
STANDIN_API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    ENTER("cuMemsetD8", context);
    return fill_now(to, value, count);
}
STANDIN_API CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
    ENTER("cuMemsetD16", context);
    return fill_now(to, value, count);
}
STANDIN_API CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
    ENTER("cuMemsetD32", context);
    return fill_now(to, value, count);
}
STANDIN_API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    ENTER("cuMemsetD8Async", context);
    return fill_later(to, value, count, stream, call_.planned);
}
STANDIN_API CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
    ENTER("cuMemsetD16Async", context);
    return fill_later(to, value, count, stream, call_.planned);
}
STANDIN_API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    ENTER("cuMemsetD32Async", context);
    return fill_later(to, value, count, stream, call_.planned);
}

STANDIN_API CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
    ENTER("cuMemHostAlloc", context);
    TRY(refuse_unsafe());
    if (!memory || !bytes) return CUDA_ERROR_INVALID_VALUE;
    if (posix_memalign(memory, page(), bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    return pin(*memory, bytes);
}
STANDIN_API CUresult cuMemAllocHost_v2(void** memory, size_t bytes) { return cuMemHostAlloc(memory, bytes, 0); }
STANDIN_API CUresult cuMemFreeHost(void* memory) {
    ENTER("cuMemFreeHost", context);
    TRY(refuse_unsafe());
    if (!pinned().erase(reinterpret_cast<uintptr_t>(memory))) return CUDA_ERROR_INVALID_VALUE;
    free(memory);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuMemHostRegister_v2(void* memory, size_t bytes, unsigned) {
    ENTER("cuMemHostRegister", context);
    return memory && bytes ? pin(memory, bytes) : CUDA_ERROR_INVALID_VALUE;
}
STANDIN_API CUresult cuMemHostUnregister(void* memory) {
    ENTER("cuMemHostUnregister", context);
    return pinned().erase(reinterpret_cast<uintptr_t>(memory)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
