// Stream capture and graphs: what may not be called while a stream is captured, and graphs replayed in any order that they allow.
#include "standin.h"

#include <algorithm>
#include <iterator>

namespace standin {
namespace {
std::set<Capture*>& active() {
    static auto* made = new std::set<Capture*>;
    return *made;
}
thread_local CUstreamCaptureMode t_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
unsigned long long g_captures = 0;

struct Graph {
    std::vector<Node> nodes;
};
std::set<void*>& known() {
    static auto* made = new std::set<void*>;
    return *made;
}
using GraphPointer = std::shared_ptr<const Graph>;

// One of the first eight nodes that may run, drawn; what only waited for it may run then. Some graphs have thousands of nodes.
CUresult replay(const Graph& graph) {
    std::vector<std::vector<int>> followers(graph.nodes.size());
    std::vector<size_t> awaited(graph.nodes.size());
    std::set<int> ready;
    for (size_t i = 0; i < graph.nodes.size(); i++) {
        awaited[i] = graph.nodes[i].after.size();
        for (int before : graph.nodes[i].after) followers[before].push_back(static_cast<int>(i));
        if (!awaited[i]) ready.insert(static_cast<int>(i));
    }
    while (!ready.empty()) {
        const size_t choices = std::min<size_t>(ready.size(), 8);
        const auto taken = std::next(ready.begin(), late() && choices > 1 ? static_cast<long>(draw() % choices) : 0);
        const int place = *taken;
        ready.erase(taken);
        const Node& node = graph.nodes[place];
        if (node.planned.rfind("async:", 0) == 0) return static_cast<CUresult>(std::atoi(node.planned.c_str() + 6));
        TRY(node.run());
        for (int follower : followers[place])
            if (--awaited[follower] == 0) ready.insert(follower);
    }
    return CUDA_SUCCESS;
}
void leave(Capture* capture) {
    for (Stream* stream : capture->members) {
        if (!known_stream(stream)) continue;
        stream->capture = nullptr;
        stream->tails.clear();
    }
    capture->origin = nullptr;  // events recorded in it still point here
    active().erase(capture);
}
CUresult instantiate(CUgraphExec* made, CUgraph graph) {
    if (!made || !known().count(graph)) return CUDA_ERROR_INVALID_VALUE;
    auto* pointer = new GraphPointer(std::make_shared<const Graph>(*reinterpret_cast<Graph*>(graph)));
    known().insert(pointer);
    *made = reinterpret_cast<CUgraphExec>(pointer);
    return CUDA_SUCCESS;
}
}  // namespace

void break_capture(Capture* capture) { capture->broken = true; }

CUresult refuse_unsafe() {
    bool refused = false;
    if (t_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
    for (Capture* capture : active()) {
        const bool own = capture->thread == std::this_thread::get_id();
        const bool global = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && t_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (!global && !(own && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED)) continue;
        break_capture(capture);
        refused = true;
    }
    return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}
CUresult refuse_implicit(Context* context) {
    bool refused = false;
    for (Capture* capture : active())
        for (Stream* stream : capture->members)
            if (known_stream(stream) && stream->context == context && !(stream->flags & CU_STREAM_NON_BLOCKING)) {
                break_capture(capture);
                refused = true;
            }
    return refused ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}
CUresult refuse_wait(Context* context) {
    bool refused = false;
    for (Capture* capture : active())
        if (capture->origin->context == context) {
            break_capture(capture);
            refused = true;
        }
    return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}
int add_node(Stream* stream, Node node) {
    Capture* capture = stream->capture;
    node.after = stream->tails;
    capture->nodes.push_back(std::move(node));
    stream->tails = {static_cast<int>(capture->nodes.size()) - 1};
    return stream->tails[0];
}
void forget_captures(Context* context) {
    for (Capture* capture : std::set<Capture*>(active()))
        if (capture->origin->context == context) leave(capture);
}

}  // namespace standin

using namespace standin;

#undef cuStreamBeginCapture
STANDIN_API CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
    ENTER("cuStreamBeginCapture", context);
    Stream* stream = nullptr;
    TRY(find_stream(handle, &stream));
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    if (stream == current()->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    auto* capture = new Capture;
    capture->origin = stream;
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->id = ++g_captures;
    capture->members.insert(stream);
    stream->capture = capture;
    stream->tails.clear();
    active().insert(capture);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
    ENTER("cuStreamEndCapture", context);
    Stream* stream = nullptr;
    TRY(find_stream(handle, &stream));
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    *graph = nullptr;
    Capture* capture = stream->capture;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    // Every node must come before the end of the origin's work; what another stream did since must have been joined.
    std::set<int> reached(stream->tails.begin(), stream->tails.end());
    for (int node = static_cast<int>(capture->nodes.size()) - 1; node >= 0; node--)
        if (reached.count(node)) reached.insert(capture->nodes[node].after.begin(), capture->nodes[node].after.end());
    const bool joined = reached.size() == capture->nodes.size();
    leave(capture);
    if (capture->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!joined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    auto* made = new Graph{std::move(capture->nodes)};
    known().insert(made);
    *graph = reinterpret_cast<CUgraph>(made);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
    ENTER("cuStreamIsCapturing", context);
    Stream* stream = nullptr;
    TRY(find_stream(handle, &stream));
    if (stream == stream->context->legacy) TRY(refuse_implicit(stream->context));
    *status = !stream->capture          ? CU_STREAM_CAPTURE_STATUS_NONE
              : stream->capture->broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                        : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}
#undef cuStreamGetCaptureInfo
STANDIN_API CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                               const CUgraphNode** nodes, size_t* count) {
    ENTER("cuStreamGetCaptureInfo", context);
    Stream* stream = nullptr;
    TRY(find_stream(handle, &stream));
    *status = !stream->capture          ? CU_STREAM_CAPTURE_STATUS_NONE
              : stream->capture->broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                        : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (id) *id = stream->capture ? stream->capture->id : 0;
    if (graph) *graph = nullptr;
    if (nodes) *nodes = nullptr;
    if (count) *count = stream->tails.size();
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
    return cuStreamGetCaptureInfo_v2(stream, status, id, nullptr, nullptr, nullptr);
}
STANDIN_API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    ENTER("cuThreadExchangeStreamCaptureMode", driver);
    if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, t_mode);
    return CUDA_SUCCESS;
}

STANDIN_API CUresult cuGraphInstantiateWithFlags(CUgraphExec* made, CUgraph graph, unsigned long long) {
    ENTER("cuGraphInstantiate", context);
    return instantiate(made, graph);
}
#undef cuGraphInstantiate
STANDIN_API CUresult cuGraphInstantiate_v2(CUgraphExec* made, CUgraph graph, CUgraphNode*, char*, size_t) {
    ENTER("cuGraphInstantiate", context);
    return instantiate(made, graph);
}
STANDIN_API CUresult cuGraphInstantiate(CUgraphExec* made, CUgraph graph, CUgraphNode*, char*, size_t) {
    ENTER("cuGraphInstantiate", context);
    return instantiate(made, graph);
}
STANDIN_API CUresult cuGraphUpload(CUgraphExec graph, CUstream) {
    ENTER("cuGraphUpload", context);
    return known().count(graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
STANDIN_API CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    ENTER("cuGraphLaunch", context);
    Stream* stream = nullptr;
    TRY(find_stream(stream_handle, &stream));
    if (!known().count(handle)) return CUDA_ERROR_INVALID_VALUE;
    GraphPointer graph = *reinterpret_cast<GraphPointer*>(handle);
    double us = 2.0;  // of the launch itself
    const char* planned = call_.planned;
    for (const Node& node : graph->nodes) {
        us += node.us;
        if (node.planned == "hang") planned = "hang";
    }
    auto work = [graph] {
        set_replaying(true);
        const CUresult result = replay(*graph);
        set_replaying(false);
        return result;
    };
    return submit(stream, work, us, planned);
}
STANDIN_API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    ENTER("cuGraphGetNodes", context);
    if (!known().count(graph) || nodes || !count) return CUDA_ERROR_INVALID_VALUE;  // only how many
    *count = reinterpret_cast<Graph*>(graph)->nodes.size();
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuGraphDestroy(CUgraph graph) {
    ENTER("cuGraphDestroy", context);
    if (!known().erase(graph)) return CUDA_ERROR_INVALID_VALUE;
    delete reinterpret_cast<Graph*>(graph);
    return CUDA_SUCCESS;
}
STANDIN_API CUresult cuGraphExecDestroy(CUgraphExec graph) {
    ENTER("cuGraphExecDestroy", context);
    if (!known().erase(graph)) return CUDA_ERROR_INVALID_VALUE;
    delete reinterpret_cast<GraphPointer*>(graph);
    return CUDA_SUCCESS;
}
