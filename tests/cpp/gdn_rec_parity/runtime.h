// The CUDA runtime's objects with an owner, and its errors as exceptions.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

#include "problem.h"

namespace gdn::rec_parity {

inline void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

// What a launcher returns.
inline void accepted(const char* refused) {
  if (refused != nullptr) throw std::runtime_error(std::string("a launch was refused: ") + refused);
}

class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes) : bytes_(bytes) { check(cudaMalloc(&data_, bytes), "cudaMalloc"); }
  DeviceBuffer(const void* host, size_t bytes) : DeviceBuffer(bytes) {
    check(cudaMemcpy(data_, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { cudaFree(data_); }

  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  void poison(cudaStream_t stream) const { check(cudaMemsetAsync(data_, kPoison, bytes_, stream), "cudaMemsetAsync"); }
  void read(void* host, size_t bytes) const {
    check(cudaMemcpy(host, data_, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

// Host memory that kernels read and write while they run.
template <class T>
class MappedArray {
 public:
  explicit MappedArray(size_t size) : size_(size) {
    check(cudaHostAlloc(reinterpret_cast<void**>(&host_), size * sizeof(T), cudaHostAllocMapped), "cudaHostAlloc");
    check(cudaHostGetDevicePointer(reinterpret_cast<void**>(&device_), host_, 0), "cudaHostGetDevicePointer");
    fill(T{});
  }
  MappedArray(const MappedArray&) = delete;
  MappedArray& operator=(const MappedArray&) = delete;
  ~MappedArray() { cudaFreeHost(host_); }

  volatile T& operator[](size_t i) { return host_[i]; }
  size_t size() const { return size_; }
  T* device() const { return device_; }
  void fill(T value) {
    for (size_t i = 0; i < size_; ++i) static_cast<volatile T*>(host_)[i] = value;
  }

 private:
  T* host_ = nullptr;
  T* device_ = nullptr;
  size_t size_;
};

// Does not wait for the default stream, nor that for it.
class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }

  operator cudaStream_t() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }

  void record(cudaStream_t stream) const { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  void wait() const { check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  double milliseconds_since(const Event& start) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start.event_, event_), "cudaEventElapsedTime");
    return milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// What `launch` puts on the stream, for replays: a replay asks nothing of the runtime that could wait for the device.
class Graph {
 public:
  template <class Launch>
  Graph(cudaStream_t stream, Launch&& launch) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    launch();
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    const cudaError_t error = cudaGraphInstantiateWithFlags(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check(error, "cudaGraphInstantiateWithFlags");
  }
  Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }

  void replay(cudaStream_t stream) const { check(cudaGraphLaunch(graph_, stream), "cudaGraphLaunch"); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace gdn::rec_parity
