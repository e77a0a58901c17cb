// A whole model from C++:  serve_model_cpp PACK MODEL THREADS DIM...   Inputs are 0, 1/8, ... 7/8, 0, ... (whole numbers: 0, 1, 0, ...);
// prints shape and sum of each output. Sizes stand in the order of Model::dims; without them they are listed.
#include <haotuner.hpp>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {

template <typename T>
void fill(haotuner::Tensor& tensor, int64_t period, double step) {
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.as<T>()[i] = static_cast<T>(static_cast<double>(i % period) * step);
}

template <typename T>
double total(haotuner::Tensor& tensor) {
  double sum = 0;
  for (int64_t i = 0; i < tensor.size(); ++i) sum += static_cast<double>(tensor.as<T>()[i]);
  return sum;
}

bool is(DLDataType type, int code, int bits) { return type.code == code && type.bits == bits; }

// A tensor for an input, with memory of its own; a server makes views of its own buffers instead.
haotuner::Tensor request(const ht_model_end& end, const std::vector<std::string>& dims, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> shape(end.extents, end.extents + end.ndim);
  for (int axis = 0; axis < end.ndim; ++axis)
    for (size_t i = 0; end.dims[axis] != nullptr && i < dims.size(); ++i)
      if (dims[i] == end.dims[axis]) shape[axis] = sizes[i];
  haotuner::Tensor tensor(end.dtype, shape);
  std::memset(tensor.data(), 0, tensor.bytes());
  if (is(end.dtype, kDLFloat, 32)) fill<float>(tensor, 8, 0.125);
  if (is(end.dtype, kDLInt, 64)) fill<int64_t>(tensor, 2, 1);
  if (is(end.dtype, kDLInt, 32)) fill<int32_t>(tensor, 2, 1);
  return tensor;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return std::fputs("usage: serve_model_cpp PACK MODEL THREADS DIM...\n", stderr), 2;
  try {
    haotuner::Pack pack(argv[1], std::stoi(argv[3]));
    haotuner::Model model = pack.model(argv[2]);
    const std::vector<std::string> dims = model.dims();
    if (dims.size() != static_cast<size_t>(argc - 4)) {
      std::fprintf(stderr, "%s takes %zu sizes:", argv[2], dims.size());
      for (const std::string& dim : dims) std::fprintf(stderr, " %s", dim.c_str());
      return std::fputs("\n", stderr), 2;
    }
    std::vector<int64_t> sizes;
    for (int i = 4; i < argc; ++i) sizes.push_back(std::stoll(argv[i]));
    std::vector<haotuner::Tensor> inputs;
    std::vector<DLTensor> feeds;
    for (const ht_model_end& end : model.inputs()) inputs.push_back(request(end, dims, sizes));
    for (const haotuner::Tensor& tensor : inputs) feeds.push_back(tensor.dl());
    std::vector<haotuner::Tensor> outputs = model.run(feeds);
    const std::vector<ht_model_end> ends = model.outputs();
    for (size_t i = 0; i < outputs.size(); ++i) {
      std::printf("%s:", ends[i].name);
      for (int64_t extent : outputs[i].shape()) std::printf(" %lld", static_cast<long long>(extent));
      const DLDataType type = outputs[i].type();
      if (is(type, kDLFloat, 32)) std::printf(" sum=%.6g", total<float>(outputs[i]));
      if (is(type, kDLInt, 64)) std::printf(" sum=%.6g", total<int64_t>(outputs[i]));
      std::printf("\n");
    }
    return 0;
  } catch (const std::exception& problem) {
    return std::fprintf(stderr, "%s\n", problem.what()), 1;
  }
}
