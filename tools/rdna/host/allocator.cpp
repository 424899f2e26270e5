// The memory of torch's CPU tensors as the runner's device memory: a kernel may touch what is allocated, and nothing
// else.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <memory>
#include <string>

#include "c_api.h"

namespace {

struct Block {
  c10::DataPtr data;
  ~Block() { rdna_memory_remove(reinterpret_cast<uint64_t>(data.get())); }
};

class Tracked final : public c10::Allocator {
 public:
  explicit Tracked(c10::Allocator* base) : base_(base) {}

  c10::DataPtr allocate(size_t bytes) override {
    auto block = std::make_unique<Block>();
    block->data = base_->allocate(bytes);
    void* data = block->data.get();
    const std::string name = "a tensor's memory of " + std::to_string(bytes) + " bytes";
    rdna_memory_add(reinterpret_cast<uint64_t>(data), bytes, 1, name.c_str());
    return {data, block.release(), [](void* context) { delete static_cast<Block*>(context); }, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  c10::Allocator* base() const { return base_; }

 private:
  c10::Allocator* base_;
};

constexpr uint8_t kPriority = 100;  // above torch's own

}  // namespace

extern "C" {

// From here on, until stopped, new tensors are known to the runner.
__attribute__((visibility("default"))) void rdna_ops_track_memory(int on) {
  static auto* tracked = new Tracked(c10::GetCPUAllocator());  // never destroyed: it outlives every tensor
  c10::SetCPUAllocator(on != 0 ? tracked : tracked->base(), kPriority);
}
}
