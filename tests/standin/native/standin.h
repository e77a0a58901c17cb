// The stand-in's state: contexts, streams as queues of work, memory with guard pages, modules read from cubins.
// Everything is behind one recursive lock that each driver call takes (calls.cc).
#pragma once
#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#define STANDIN_API extern "C" __attribute__((visibility("default")))

namespace standin {

struct Context;
struct Stream;
struct Capture;

// ---- settings and devices (device.cc)
struct Device {
    std::string name = "stand-in";
    std::map<int, int> attributes;  // CUdevice_attribute -> value
    size_t memory = 0;
    int at(CUdevice_attribute attribute) const;
    int capability() const { return 10 * at(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) + at(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR); }
    int units() const { return at(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT); }
};
const char* setting(const char* name, const char* otherwise);
const std::vector<Device>& devices();
int driver_version();
bool late();  // work runs when somebody waits for it; otherwise at once
enum class Execute { always, demand, never };
Execute execute_mode();
uint64_t draw();  // the seeded generator that interleaves streams

// ---- one call of the driver (calls.cc)
enum class Needs { nothing, driver, context };  // what must be there before the call is looked at
struct Counter;
Counter& counter(const char* name);
struct Call {
    Call(Counter& counter, Needs needs);
    ~Call();
    Call(const Call&) = delete;
    CUresult refused = CUDA_SUCCESS;
    const char* planned = "";  // "hang" or "async:CODE": what a test planned for the work of this call
};
std::recursive_mutex& lock();
void wait_unlocked();  // lets other threads call for a moment
void say(const char* format, ...) __attribute__((format(printf, 1, 2)));
#define ENTER(NAME, NEEDS)                                             \
    static ::standin::Counter& counter_ = ::standin::counter(NAME);    \
    ::standin::Call call_(counter_, ::standin::Needs::NEEDS);          \
    if (call_.refused) return call_.refused
#define TRY(WORK)                              \
    do {                                       \
        if (CUresult result_ = (WORK)) return result_; \
    } while (0)

extern CUresult g_sticky;  // the error that this process keeps, once one came from the device
extern bool g_initialised;
CUresult stick(CUresult error, const char* why);

// ---- contexts (context.cc)
struct Context {
    int device = 0, retained = 0;
    unsigned flags = 0;
    bool primary = true, alive = false;
    const Device* part = nullptr;  // of a green context: the device with fewer units
    size_t used = 0;
    Stream* legacy = nullptr;
    std::map<std::thread::id, Stream*> per_thread;
};
Context* current();
Context* primary(int device);
Context* new_context(int device);
const Device& device_of(const Context* context);

// ---- queues (stream.cc)
using Clock = std::map<unsigned long long, unsigned long long>;  // number of a stream -> how many of its pieces come before
void join(Clock& clock, const Clock& other);
struct Work {
    Clock clock;  // what is ordered before this, and itself
    std::function<CUresult()> run;
    std::vector<std::shared_ptr<Work>> after;
    double us = 0, finished = 0;
    bool done = false, hangs = false;  // hangs: not to be taken up, for it never ends or is running
};
using WorkPointer = std::shared_ptr<Work>;
struct Stream {
    unsigned long long number = 0;  // in order of creation
    Context* context = nullptr;
    unsigned flags = 0;
    int priority = 0;
    bool destroyed = false;
    std::deque<WorkPointer> queue;
    WorkPointer last;
    double clock = 0;
    unsigned long long ticks = 0;
    Clock joined;  // events waited for since the last piece of work
    Capture* capture = nullptr;
    std::vector<int> tails;  // nodes of the capture that come next before anything new
};
struct Event {
    Context* context = nullptr;
    unsigned flags = 0;
    WorkPointer recorded;
    Capture* capture = nullptr;  // recorded inside this capture, at these nodes
    std::vector<int> tails;
};
struct ByNumber {  // and not by address, which no seed repeats
    bool operator()(const Stream* one, const Stream* other) const { return one->number < other->number; }
};
using Streams = std::set<Stream*, ByNumber>;
Streams& streams();
Stream* new_stream(Context* context, unsigned flags);
bool known_stream(Stream* stream);  // whether it is one, whatever the pointer
CUresult find_stream(CUstream handle, Stream** found);  // of the current context for the special handles
CUresult submit(Stream* stream, std::function<CUresult()> run, double us, const char* planned = "",
                std::vector<WorkPointer> after = {});
CUresult wait_for(const WorkPointer& work);  // the host's: what it submits later comes after
CUresult wait_stream(Stream* stream);
CUresult wait_context(Context* context);
void advance();  // one piece of work somewhere, as time passes on a device
CUresult synchronous(std::function<CUresult()> run);  // in order of the legacy stream, and done on return

// ---- captures (graph.cc)
struct Node {
    std::function<CUresult()> run;
    double us = 0;
    std::vector<int> after;
    std::string planned;
};
struct Capture {
    Stream* origin = nullptr;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::thread::id thread;
    unsigned long long id = 0;
    bool broken = false;
    std::vector<Node> nodes;
    std::set<Stream*> members;
};
CUresult refuse_unsafe();                  // calls that no capture allows
CUresult refuse_implicit(Context* context);  // use of the legacy stream beside a captured blocking stream
CUresult refuse_wait(Context* context);    // waits for a whole context of which a stream is captured
int add_node(Stream* stream, Node node);
void break_capture(Capture* capture);
void forget_captures(Context* context);

// ---- memory (memory.cc)
struct Allocation {
    Context* context;
    unsigned char* mapped;
    size_t mapped_bytes, bytes;
    unsigned long long id;
};
Allocation* allocation_at(CUdeviceptr address, CUdeviceptr* start = nullptr);
bool reachable(const Context* context, CUdeviceptr address, size_t bytes);
void show_only(const Context* context);  // memory of other contexts faults until show_all
void show_all();
bool canaries_whole(const char** what);
void free_all(Context* context);

// ---- order of accesses (races.cc)
void begin_work(const Stream* stream, const Work* work);
void end_work();
CUresult touch(CUdeviceptr address, size_t bytes, bool write);  // by the work that runs now
void host_knows(const Clock& clock);
const Clock& host_clock();
void all_is_done();
void forget_accesses(CUdeviceptr start);

// ---- modules (cubin.cc, module.cc)
struct Facts {
    int registers = 0, max_threads = 1024;
    size_t static_shared = 0;
    std::vector<std::pair<size_t, size_t>> parameters;  // offset, size
    long scalar_fma = 0, matrix = 0;                     // instructions in the code: FFMA, HMMA or HGMMA
    bool warpgroup = false;
};
struct Cubin {
    int capability = 0, abi = 0;
    bool exact = false;  // for this capability alone (sm_90a)
    size_t bytes = 0;
    std::map<std::string, Facts> kernels;
};
CUresult read_cubin(const void* image, Cubin* cubin);
struct Module;
struct Kernel {
    std::string name;
    Facts facts;
    Module* module = nullptr;
    int dynamic_limit = 48 << 10;
    void (*entry)(void**) = nullptr;
};
struct Module {
    Context* context = nullptr;
    bool unloaded = false;
    Cubin cubin;
    std::string bytes, image;
    std::map<std::string, Kernel> kernels;
};
CUresult executable(Kernel* kernel);  // finds, or has built, what the kernel computes
int resident_blocks(const Device& device, const Facts& facts, int threads, size_t dynamic);

// ---- launches (launch.cc), their time (clock.cc), and which of them are carried out (demand.cc)
struct Launch {
    Kernel* kernel = nullptr;
    Context* context = nullptr;
    unsigned grid[3], block[3], shared = 0;
    std::vector<unsigned char> storage;
    std::vector<void*> parameters;  // into storage, each at 128 bytes
};
struct Arguments {  // ht_cuda_args of haotuner/runtime/native/cuda/ht_cuda_args.h
    uint64_t x, w, bias, residual, y, partial;
    int32_t m, n, k, ldx, ldy, splits, y_type, ldw;
    uint64_t scale, low, high, slope, after;
};
const Arguments* arguments_of(const Launch& launch);  // null: the kernel takes something else
struct Program {  // ht_generated_args of haotuner/runtime/native/cuda/ht_cuda_generated.h
    uint64_t data[8];
    long long strides[8][8], sizes[8];
    uint64_t partial;
    int32_t parts, phase;  // 1: parts of a fold into `partial`; 2: joins them
    int last() const {  // the place of the output
        int at = 7;
        while (at > 0 && !data[at]) at--;
        return at;
    }
};
const Program* program_of(const Launch& launch);  // likewise
CUresult carry_out(const Launch& launch);
double launch_us(const Launch& launch);
void spend(double us);   // time of the device that the work now running takes, beside what it was submitted with
double spent();          // and takes back
void set_replaying(bool is);  // whether launches come out of a graph
CUresult defer(std::shared_ptr<Launch> launch);
void forget_waiting(const Context* context);
CUresult before_read(CUdeviceptr address);
CUresult before_write(CUdeviceptr address, size_t bytes, bool freed);
CUresult check_map(const Launch& launch);

}  // namespace standin
