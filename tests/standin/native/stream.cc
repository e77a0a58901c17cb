// Streams are queues. Late: work runs when somebody waits, and each step takes a ready piece of some stream by a seeded draw.
// Early: work runs as it is submitted. What runs moves the stream's virtual clock.
#include "standin.h"

#include <algorithm>
#include <utility>

namespace standin {

double noisy(double us);  // clock.cc

Streams& streams() {
    static auto* made = new Streams;
    return *made;
}
namespace {
std::set<const Stream*>& addresses() {
    static auto* made = new std::set<const Stream*>;
    return *made;
}
void forget(Stream* stream) {
    streams().erase(stream);
    addresses().erase(stream);
    delete stream;
}
}  // namespace
Stream* new_stream(Context* context, unsigned flags) {
    static unsigned long long numbers = 0;
    auto* made = new Stream;
    made->number = ++numbers;
    made->context = context;
    made->flags = flags;
    streams().insert(made);
    addresses().insert(made);
    return made;
}
bool known_stream(Stream* stream) { return addresses().count(stream); }

CUresult find_stream(CUstream handle, Stream** found) {
    if (handle == nullptr || handle == CU_STREAM_LEGACY) {
        *found = current()->legacy;
        return CUDA_SUCCESS;
    }
    if (handle == CU_STREAM_PER_THREAD) {
        Stream*& own = current()->per_thread[std::this_thread::get_id()];
        if (!own) own = new_stream(current(), 0);
        *found = own;
        return CUDA_SUCCESS;
    }
    auto* stream = reinterpret_cast<Stream*>(handle);
    if (!known_stream(stream) || stream->destroyed) return CUDA_ERROR_INVALID_HANDLE;
    *found = stream;
    return CUDA_SUCCESS;
}

namespace {

bool blocking(const Stream* stream) { return !(stream->flags & CU_STREAM_NON_BLOCKING); }

bool ready(const Stream* stream) {
    if (stream->queue.empty() || stream->queue.front()->hangs) return false;
    const auto& after = stream->queue.front()->after;
    return g_sticky || std::all_of(after.begin(), after.end(), [](const WorkPointer& work) { return work->done; });
}

void finish(Stream* stream) {
    WorkPointer work = stream->queue.front();
    work->hangs = true;  // a kernel that never ends lets other threads in; they must not run it again, nor what comes after
    begin_work(stream, work.get());
    if (!g_sticky)
        if (CUresult error = work->run()) stick(error, "work on a stream failed");
    end_work();
    stream->queue.pop_front();
    double start = stream->clock;
    for (const WorkPointer& earlier : work->after) start = std::max(start, earlier->finished);
    const double us = work->us + spent();
    stream->clock = work->finished = start + (us > 0 ? noisy(us) : 0);
    work->done = true;
    work->after.clear();
    work->run = nullptr;
    if (stream->destroyed && stream->queue.empty()) forget(stream);
}

bool step() {
    std::vector<Stream*> busy;
    for (Stream* stream : streams())
        if (ready(stream)) busy.push_back(stream);
    if (busy.empty()) return false;
    finish(busy[busy.size() > 1 ? draw() % busy.size() : 0]);
    return true;
}

}  // namespace

void advance() { step(); }
CUresult run_to(const WorkPointer& work);

CUresult submit(Stream* stream, std::function<CUresult()> run, double us, const char* planned, std::vector<WorkPointer> after) {
    if (stream->capture) {
        if (stream->capture->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        add_node(stream, {std::move(run), us, {}, planned});
        return CUDA_SUCCESS;
    }
    if (stream == stream->context->legacy) TRY(refuse_implicit(stream->context));
    auto work = std::make_shared<Work>();
    work->run = std::move(run);
    work->us = us;
    work->after = std::move(after);
    if (std::strcmp(planned, "hang") == 0) work->hangs = true;
    if (std::strncmp(planned, "async:", 6) == 0) {
        const auto code = static_cast<CUresult>(std::atoi(planned + 6));
        work->run = [code] { return code; };
    }
    Stream* legacy = stream->context->legacy;
    auto comes_after = [&](const WorkPointer& earlier) {
        if (!earlier) return;
        join(work->clock, earlier->clock);
        if (!earlier->done) work->after.push_back(earlier);
    };
    if (stream == legacy) {
        for (Stream* other : streams())
            if (other != legacy && other->context == stream->context && blocking(other)) comes_after(other->last);
    } else if (blocking(stream)) {
        comes_after(legacy->last);
    }
    join(work->clock, host_clock());
    join(work->clock, std::exchange(stream->joined, {}));
    if (stream->last) join(work->clock, stream->last->clock);
    work->clock[stream->number] = ++stream->ticks;
    stream->queue.push_back(work);
    stream->last = work;
    return late() ? CUDA_SUCCESS : run_to(work);
}

CUresult wait_for(const WorkPointer& work) {
    if (work) host_knows(work->clock);
    return run_to(work);
}
CUresult run_to(const WorkPointer& work) {
    while (work && !work->done)
        if (!step()) {
            if (g_sticky) return g_sticky;
            wait_unlocked();  // a kernel that never ends: so does the wait
        }
    return g_sticky;
}
CUresult wait_stream(Stream* stream) {
    if (stream == stream->context->legacy)
        for (Stream* other : Streams(streams()))
            if (known_stream(other) && other->context == stream->context && blocking(other)) wait_for(WorkPointer(other->last));
    return wait_for(WorkPointer(stream->last));
}
CUresult wait_context(Context* context) {
    for (Stream* stream : Streams(streams()))
        if (known_stream(stream) && stream->context == context) wait_for(WorkPointer(stream->last));
    const auto busy = [](const Stream* stream) { return !stream->queue.empty(); };
    if (std::none_of(streams().begin(), streams().end(), busy)) all_is_done();
    const char* what = nullptr;
    if (!g_sticky && !canaries_whole(&what)) stick(CUDA_ERROR_ILLEGAL_ADDRESS, what);
    return g_sticky;
}

CUresult synchronous(std::function<CUresult()> run) {
    TRY(submit(current()->legacy, std::move(run), 1.0));
    return wait_stream(current()->legacy);
}

}  // namespace standin

using namespace standin;

namespace {
std::set<Event*>& events() {
    static auto* made = new std::set<Event*>;
    return *made;
}
CUresult find_event(CUevent handle, Event** found) {
    *found = reinterpret_cast<Event*>(handle);
    return events().count(*found) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult make_stream(CUstream* handle, unsigned flags, int priority) {
    if (!handle || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    Stream* made = new_stream(current(), flags);
    made->priority = priority;
    made->clock = current()->legacy->clock;
    *handle = reinterpret_cast<CUstream>(made);
    return CUDA_SUCCESS;
}
}  // namespace

STANDIN_API CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    ENTER("cuStreamCreate", context);
    return make_stream(stream, flags, 0);
}
STANDIN_API CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
    ENTER("cuStreamCreateWithPriority", context);
    return make_stream(stream, flags, priority);
}
STANDIN_API CUresult cuStreamDestroy_v2(CUstream handle) {
    ENTER("cuStreamDestroy", context);
    Stream* stream = nullptr;
    TRY(find_stream(handle, &stream));
    if (stream == current()->legacy || handle == CU_STREAM_PER_THREAD) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) break_capture(stream->capture);
    stream->destroyed = true;  // returns at once; its work still runs
    if (stream->queue.empty()) forget(stream);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamSynchronize(CUstream handle) {
    ENTER("cuStreamSynchronize", context);
    Stream* stream = nullptr;
    TRY(find_stream(handle, &stream));
    if (stream->capture) {
        break_capture(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (stream == stream->context->legacy) TRY(refuse_implicit(stream->context));
    return wait_stream(stream);
}
STANDIN_API CUresult cuStreamQuery(CUstream handle) {
    ENTER("cuStreamQuery", context);
    Stream* stream = nullptr;
    TRY(find_stream(handle, &stream));
    if (stream->capture) {
        break_capture(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (stream == stream->context->legacy) TRY(refuse_implicit(stream->context));
    const WorkPointer last = stream->last;
    const bool done = !last || last->done;
    if (!done) advance();  // time passes for one who polls
    else if (last) host_knows(last->clock);
    if (g_sticky) return g_sticky;
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
STANDIN_API CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
    ENTER("cuStreamGetCtx", context);
    Stream* stream = nullptr;
    TRY(find_stream(handle, &stream));
    *context = reinterpret_cast<CUcontext>(stream->context);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamGetDevice(CUstream handle, CUdevice* device) {
    ENTER("cuStreamGetDevice", context);
    Stream* stream = nullptr;
    TRY(find_stream(handle, &stream));
    *device = stream->context->device;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
    ENTER("cuStreamGetFlags", context);
    Stream* stream = nullptr;
    TRY(find_stream(handle, &stream));
    *flags = stream->flags;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamGetPriority(CUstream handle, int* priority) {
    ENTER("cuStreamGetPriority", context);
    Stream* stream = nullptr;
    TRY(find_stream(handle, &stream));
    *priority = stream->priority;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
    ENTER("cuStreamWaitEvent", context);
    Stream* stream = nullptr;
    Event* event = nullptr;
    TRY(find_stream(handle, &stream));
    TRY(find_event(event_handle, &event));
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    if (event->capture) {
        if (!event->capture->origin) return CUDA_ERROR_CAPTURED_EVENT;  // of a capture that has ended
        if (event->capture->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        if (stream == stream->context->legacy) {
            break_capture(event->capture);
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
        if (stream->capture && stream->capture != event->capture) {
            break_capture(stream->capture);
            break_capture(event->capture);
            return CUDA_ERROR_STREAM_CAPTURE_MERGE;
        }
        stream->capture = event->capture;
        stream->capture->members.insert(stream);
        for (int node : event->tails)
            if (std::find(stream->tails.begin(), stream->tails.end(), node) == stream->tails.end()) stream->tails.push_back(node);
        return CUDA_SUCCESS;
    }
    if (stream->capture && event->recorded) {
        break_capture(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (!event->recorded) return CUDA_SUCCESS;
    join(stream->joined, event->recorded->clock);
    if (event->recorded->done) return CUDA_SUCCESS;
    return submit(stream, [] { return CUDA_SUCCESS; }, 0, "", {event->recorded});
}
STANDIN_API CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
    ENTER("cuLaunchHostFunc", context);
    Stream* stream = nullptr;
    TRY(find_stream(handle, &stream));
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    return submit(stream, [=] { return function(data), CUDA_SUCCESS; }, 1.0);
}

STANDIN_API CUresult cuEventCreate(CUevent* handle, unsigned flags) {
    ENTER("cuEventCreate", context);
    if (!handle || flags > 7) return CUDA_ERROR_INVALID_VALUE;
    auto* made = new Event;
    made->context = current();
    made->flags = flags;
    events().insert(made);
    *handle = reinterpret_cast<CUevent>(made);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuEventDestroy_v2(CUevent handle) {
    ENTER("cuEventDestroy", context);
    Event* event = nullptr;
    TRY(find_event(handle, &event));
    events().erase(event);
    delete event;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuEventRecord(CUevent event_handle, CUstream handle) {
    ENTER("cuEventRecord", context);
    Stream* stream = nullptr;
    Event* event = nullptr;
    TRY(find_stream(handle, &stream));
    TRY(find_event(event_handle, &event));
    if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) {
        if (stream->capture->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        event->capture = stream->capture;
        event->tails = stream->tails;
        return CUDA_SUCCESS;
    }
    TRY(submit(stream, [] { return CUDA_SUCCESS; }, 0));
    event->capture = nullptr;
    event->recorded = stream->last;
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuEventSynchronize(CUevent handle) {
    ENTER("cuEventSynchronize", context);
    Event* event = nullptr;
    TRY(find_event(handle, &event));
    if (event->capture) {
        break_capture(event->capture);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    return wait_for(WorkPointer(event->recorded));
}
STANDIN_API CUresult cuEventQuery(CUevent handle) {
    ENTER("cuEventQuery", context);
    Event* event = nullptr;
    TRY(find_event(handle, &event));
    if (event->capture) {
        break_capture(event->capture);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    const bool done = !event->recorded || event->recorded->done;
    if (!done) advance();
    else if (event->recorded) host_knows(event->recorded->clock);
    if (g_sticky) return g_sticky;
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
#undef cuEventElapsedTime
STANDIN_API CUresult cuEventElapsedTime_v2(float* ms, CUevent start_handle, CUevent end_handle) {
    ENTER("cuEventElapsedTime", context);
    Event *start = nullptr, *end = nullptr;
    if (!ms) return CUDA_ERROR_INVALID_VALUE;
    TRY(find_event(start_handle, &start));
    TRY(find_event(end_handle, &end));
    if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING || !start->recorded || !end->recorded) return CUDA_ERROR_INVALID_HANDLE;
    if (!start->recorded->done || !end->recorded->done) return CUDA_ERROR_NOT_READY;
    *ms = static_cast<float>((end->recorded->finished - start->recorded->finished) / 1e3);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuEventElapsedTime(float* ms, CUevent start, CUevent end) { return cuEventElapsedTime_v2(ms, start, end); }
