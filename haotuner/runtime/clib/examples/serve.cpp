// The same from C++: handles as unique_ptr, errors as exceptions of the server's own, several threads calling at once.
#include <haotuner.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

void check(ht_status status, const ht_error& error) {
  if (status != HT_OK) throw std::runtime_error(error.text);
}

struct Close {
  void operator()(ht_pack* pack) const { ht_pack_close(pack); }
  void operator()(ht_linear* linear) const { ht_linear_free(linear); }
};

DLTensor tensor(std::vector<float>& data, std::vector<int64_t>& shape) {
  return {data.data(), {kDLCPU, 0}, static_cast<int32_t>(shape.size()), {kDLFloat, 32, 1}, shape.data(), nullptr, 0};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fputs("usage: serve PACK THREADS\n", stderr), 2;
  try {
    ht_error error{};
    ht_pack* opened = nullptr;
    check(ht_pack_open(argv[1], std::stoi(argv[2]), &opened, &error), error);
    std::unique_ptr<ht_pack, Close> pack(opened);
    std::string name = ht_op_name(pack.get(), 0);
    long long n = 0, k = 0;
    if (std::sscanf(name.c_str(), "dense_n%lld_k%lld", &n, &k) != 2) return 3;
    ht_op* op = nullptr;
    check(ht_op_find(pack.get(), name.c_str(), &op, &error), error);
    std::vector<float> w(static_cast<size_t>(n * k), 0.5f);
    std::vector<int64_t> w_shape{n, k};
    DLTensor weight = tensor(w, w_shape);
    ht_linear* bound = nullptr;
    check(ht_bind(op, &weight, nullptr, &bound, &error), error);
    std::unique_ptr<ht_linear, Close> linear(bound);
    std::atomic<int> wrong{0};
    std::vector<std::thread> servers;
    for (int s = 0; s < 4; ++s)
      servers.emplace_back([&, s] {
        for (int64_t m = 1; m < 60; ++m) {
          std::vector<float> x(static_cast<size_t>(m * k), static_cast<float>(s)), y(static_cast<size_t>(m * n));
          std::vector<int64_t> x_shape{m, k}, y_shape{m, n};
          DLTensor tx = tensor(x, x_shape), ty = tensor(y, y_shape);
          ht_error mine{};
          if (ht_call(linear.get(), &tx, &ty, nullptr, &mine) != HT_OK) ++wrong;
          for (float v : y) wrong += std::fabs(v - 0.5f * static_cast<float>(s) * static_cast<float>(k)) > 1e-3f;
        }
      });
    for (auto& server : servers) server.join();
    DLTensor broken = tensor(w, w_shape);
    broken.shape = nullptr;
    if (ht_call(linear.get(), &broken, &broken, nullptr, &error) == HT_OK) ++wrong;
    std::printf("%s wrong=%d refused=%s\n", name.c_str(), wrong.load(), error.text);
    return wrong.load() == 0 ? 0 : 4;
  } catch (const std::exception& problem) {
    return std::fprintf(stderr, "%s\n", problem.what()), 1;
  }
}
