// haotuner.hpp: haotuner.h for C++17. Handles close themselves, errors are exceptions, tensors may own their memory.
//
// A model or linear keeps its pack alive. Every const function may be called from any number of threads at once.
#ifndef HAOTUNER_HPP_
#define HAOTUNER_HPP_

#include <haotuner.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace haotuner {

// What haotuner.h answers in an ht_error.
class Error : public std::runtime_error {
 public:
  explicit Error(const ht_error& error) : std::runtime_error(error.text), code_(error.code) {}
  ht_status code() const noexcept { return code_; }

 private:
  ht_status code_;
};

inline void check(ht_status status, ht_error& error) {
  if (status == HT_OK) return;
  error.code = status;
  throw Error(error);
}

template <typename T>
constexpr DLDataType type_of() {
  static_assert(std::is_arithmetic<T>::value, "types of C++ that DLPack knows");
  return {static_cast<uint8_t>(std::is_same<T, bool>::value ? kDLBool : std::is_floating_point<T>::value ? kDLFloat : std::is_signed<T>::value ? kDLInt : kDLUInt),
          static_cast<uint8_t>(8 * sizeof(T)), 1};
}

// A compact tensor on the CPU: a view of the caller's memory, or one with memory of its own. It can be moved, not copied.
class Tensor {
 public:
  Tensor(DLDataType type, std::vector<int64_t> shape, void* data = nullptr) : type_(type), shape_(std::move(shape)), data_(data) {
    if (data_ != nullptr) return;
    constexpr size_t line = 64;  // a cache line, as vectors like it
    own_.reset(std::aligned_alloc(line, (bytes() + line) / line * line));
    if (own_ == nullptr) throw std::bad_alloc();
    data_ = own_.get();
  }

  template <typename T>
  static Tensor view(T* data, std::vector<int64_t> shape) {
    return Tensor(type_of<T>(), std::move(shape), data);
  }

  const std::vector<int64_t>& shape() const noexcept { return shape_; }
  DLDataType type() const noexcept { return type_; }
  int64_t size() const noexcept {
    int64_t count = 1;
    for (int64_t extent : shape_) count *= extent;
    return count;
  }
  size_t bytes() const noexcept { return static_cast<size_t>(size()) * static_cast<size_t>((type_.bits + 7) / 8); }
  void* data() noexcept { return data_; }

  // Elements as T. Error where they are of another type.
  template <typename T>
  T* as() {
    constexpr DLDataType wanted = type_of<T>();
    if (wanted.code == type_.code && wanted.bits == type_.bits) return static_cast<T*>(data_);
    ht_error error{HT_BAD_TYPE, "the tensor has elements of another type; ask type()"};
    throw Error(error);
  }

  DLTensor dl() const noexcept {
    return {data_, {kDLCPU, 0}, static_cast<int32_t>(shape_.size()), type_, const_cast<int64_t*>(shape_.data()), nullptr, 0};
  }

 private:
  struct Free {
    void operator()(void* memory) const noexcept { std::free(memory); }
  };
  DLDataType type_;
  std::vector<int64_t> shape_;
  std::unique_ptr<void, Free> own_;
  void* data_;
};

// An op with a weight.
class Linear {
 public:
  // out = x . weight^T + bias, as ht_call.
  void call(const DLTensor& x, const DLTensor& out, void* stream = nullptr) const {
    ht_error error;
    check(ht_call(linear_.get(), &x, &out, stream, &error), error);
  }
  const ht_linear* get() const noexcept { return linear_.get(); }

 private:
  friend class Pack;
  explicit Linear(ht_linear* linear) : linear_(linear) {}
  struct Close {
    void operator()(ht_linear* linear) const noexcept { ht_linear_free(linear); }
  };
  std::unique_ptr<ht_linear, Close> linear_;
};

// A whole model.
class Model {
 public:
  std::vector<ht_model_end> inputs() const { return ends(ht_model_input); }
  std::vector<ht_model_end> outputs() const { return ends(ht_model_output); }

  std::vector<std::string> dims() const {
    std::vector<std::string> names;
    for (int i = 0; const char* name = ht_model_dim(model_.get(), i); ++i) names.emplace_back(name);
    return names;
  }

  // One call: a tensor for each input, in order; answers with the outputs. Also of models whose sizes depend on data.
  std::vector<Tensor> run(const std::vector<DLTensor>& inputs, const uint64_t* seed = nullptr) const {
    ends_must_be(inputs.size());
    Outputs outputs;
    outputs.tensors.resize(outputs_);
    ht_error error;
    ht_status status = ht_model_run_placed(model_.get(), inputs.data(), seed, Outputs::memory, &outputs, &error);
    check(status, error);
    std::vector<Tensor> answers;
    for (auto& tensor : outputs.tensors) answers.push_back(std::move(*tensor));
    return answers;
  }

  // The same into tensors of the caller's, one for each output; a size that was seen lately allocates nothing.
  void run(const std::vector<DLTensor>& inputs, const std::vector<DLTensor>& outputs) const {
    ends_must_be(inputs.size());
    ht_error error{HT_BAD_VALUE, "the number of outputs is not the model's; ask outputs()"};
    if (outputs.size() != outputs_) throw Error(error);
    check(ht_model_run(model_.get(), inputs.data(), outputs.data(), &error), error);
  }

  // Bytes of working memory that a call with these dimensions needs, in the order of dims().
  int64_t memory_bytes(const std::vector<int64_t>& sizes) const {
    ht_error error{HT_BAD_VALUE, "the number of sizes is not that of the model's dimensions; ask dims()"};
    if (sizes.size() != dims().size()) throw Error(error);
    int64_t bytes = 0;
    check(ht_model_memory(model_.get(), sizes.data(), &bytes, &error), error);
    return bytes;
  }

  ht_model* get() const noexcept { return model_.get(); }

 private:
  friend class Pack;
  explicit Model(ht_model* model) : model_(model), inputs_(inputs().size()), outputs_(outputs().size()) {}

  std::vector<ht_model_end> ends(ht_status (*end_of)(const ht_model*, int, ht_model_end*)) const {
    std::vector<ht_model_end> all;
    ht_model_end end;
    for (int i = 0; end_of(model_.get(), i, &end) == HT_OK; ++i) all.push_back(end);
    return all;
  }

  void ends_must_be(size_t count) const {
    ht_error error{HT_BAD_VALUE, "the number of inputs is not the model's; ask inputs()"};
    if (count != inputs_) throw Error(error);
  }

  struct Outputs {
    std::vector<std::unique_ptr<Tensor>> tensors;

    // Called from C: an exception must not leave it.
    static void* memory(void* self, int output, const DLTensor* wanted) noexcept {
      try {
        auto& tensor = static_cast<Outputs*>(self)->tensors.at(static_cast<size_t>(output));
        tensor = std::make_unique<Tensor>(wanted->dtype, std::vector<int64_t>(wanted->shape, wanted->shape + wanted->ndim));
        return tensor->data();
      } catch (...) {
        return nullptr;
      }
    }
  };

  struct Close {
    void operator()(ht_model* model) const noexcept { ht_model_free(model); }
  };
  std::unique_ptr<ht_model, Close> model_;
  size_t inputs_, outputs_;
};

// An open pack. Linears and models may outlive it.
class Pack {
 public:
  explicit Pack(const std::string& path, int threads = 1) {
    ht_error error;
    ht_pack* opened = nullptr;
    check(ht_pack_open(path.c_str(), threads, &opened, &error), error);
    pack_.reset(opened);
  }

  static Pack on_device(const std::string& path, int device) {
    ht_error error;
    ht_pack* opened = nullptr;
    check(ht_pack_open_on(path.c_str(), device, &opened, &error), error);
    return Pack(opened);
  }

  std::vector<std::string> ops() const { return names(ht_op_count(pack_.get()), ht_op_name); }
  std::vector<std::string> models() const { return names(ht_model_count(pack_.get()), ht_model_name); }

  Linear bind(const std::string& op, const DLTensor& weight, const DLTensor* bias = nullptr) const {
    ht_error error;
    ht_op* own = nullptr;
    ht_linear* linear = nullptr;
    check(ht_op_find(pack_.get(), op.c_str(), &own, &error), error);
    check(ht_bind(own, &weight, bias, &linear, &error), error);
    return Linear(linear);
  }

  Model model(const std::string& name) const {
    ht_error error;
    ht_model* model = nullptr;
    check(ht_model_open(pack_.get(), name.c_str(), &model, &error), error);
    return Model(model);
  }

  ht_pack* get() const noexcept { return pack_.get(); }

 private:
  explicit Pack(ht_pack* opened) : pack_(opened) {}

  std::vector<std::string> names(int count, const char* (*name_of)(const ht_pack*, int)) const {
    std::vector<std::string> all;
    for (int i = 0; i < count; ++i) all.emplace_back(name_of(pack_.get(), i));
    return all;
  }

  struct Close {
    void operator()(ht_pack* pack) const noexcept { ht_pack_close(pack); }
  };
  std::unique_ptr<ht_pack, Close> pack_;
};

}  // namespace haotuner

#endif  // HAOTUNER_HPP_
