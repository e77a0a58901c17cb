// haotuner.hpp: handles close themselves and may outlive their pack, errors are exceptions, tensors check their type.
//   header PACK OP
#include <haotuner.hpp>

#include <cstdio>

namespace {

int wrong = 0;

void expect(bool right, int line) {
  if (!right) std::printf("line %d\n", line), ++wrong;
}

template <typename F>
void refused(F call, ht_status code, const char* words, int line) {
  try {
    call();
    expect(false, line);
  } catch (const haotuner::Error& error) {
    expect(error.code() == code && std::string(error.what()).find(words) != std::string::npos, line);
  }
}

}  // namespace

int main(int argc, char** argv) {
  long long n = 0, k = 0;
  if (argc != 3 || std::sscanf(argv[2], "dense_n%lld_k%lld", &n, &k) != 2) return 2;
  refused([] { haotuner::Pack("/nowhere"); }, HT_PACK_INVALID, "no such pack", __LINE__);
  refused([&] { haotuner::Pack(argv[1], 0); }, HT_BAD_VALUE, "threads=0", __LINE__);
  std::vector<float> weight(static_cast<size_t>(n * k), 0.5f);
  haotuner::Tensor w = haotuner::Tensor::view(weight.data(), {n, k});
  haotuner::Linear linear = [&] {
    haotuner::Pack pack(argv[1], 2), moved(std::move(pack));
    expect(moved.ops().size() > 0 && moved.models().empty(), __LINE__);
    refused([&] { moved.bind("dense_n7_k7", w.dl()); }, HT_BAD_VALUE, "holds no op", __LINE__);
    refused([&] { moved.model("net"); }, HT_BAD_VALUE, "holds no model net", __LINE__);
    haotuner::Linear bound = moved.bind(argv[2], w.dl());
    haotuner::Tensor x(haotuner::type_of<float>(), {3, k}), y(haotuner::type_of<float>(), {3, n});
    for (int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] = 2.0f;
    bound.call(x.dl(), y.dl());
    for (int64_t i = 0; i < y.size(); ++i) expect(y.as<float>()[i] == static_cast<float>(k), __LINE__);
    refused([&] { bound.call(y.dl(), y.dl()); }, HT_BAD_VALUE, "", __LINE__);
    return bound;
  }();
  haotuner::Tensor x(haotuner::type_of<float>(), {1, k}), y(haotuner::type_of<float>(), {1, n});
  refused([&] { linear.call(x.dl(), y.dl()); }, HT_CLOSED, "closed", __LINE__);
  refused([&] { x.as<int32_t>(); }, HT_BAD_TYPE, "another type", __LINE__);
  expect(haotuner::Tensor(haotuner::type_of<int8_t>(), {0, 7}).bytes() == 0, __LINE__);
  std::printf("wrong=%d\n", wrong);
  return wrong == 0 ? 0 : 1;
}
