// Included by each isa_*.cpp inside its anonymous namespace, after it has defined Vec (a GCC vector of floats), kLanes,
// kStripVectors, kColumns, broadcast(), fma(), and even() and odd() (the elements with even or odd index of two
// vectors, one after the other): what the kernels share on top of that.

inline Vec load(const float* p) {
  Vec x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
inline void store(float* p, Vec x) { __builtin_memcpy(p, &x, sizeof x); }

typedef float Quad __attribute__((vector_size(16)));

inline Quad load_quad(const float* p) {
  Quad x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
inline void store_quad(float* p, Quad x) { __builtin_memcpy(p, &x, sizeof x); }

inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

template <int rank>
inline int64_t index_at(const IndexView<rank>& view, int64_t offset) {
  return view.is_int64 ? static_cast<const int64_t*>(view.data)[offset]
                       : static_cast<const int32_t*>(view.data)[offset];
}

// The pool slot of sequence n, or -1 to skip it.
inline int64_t slot_of(const IndexView<1>& state_indices, int64_t n, int64_t slots) {
  const int64_t slot = state_indices ? index_at(state_indices, n * state_indices.stride[0]) : n;
  return slot >= 0 && slot < slots ? slot : -1;
}

inline bool starts_from_state(const BoolView& has_initial_state, int64_t n) {
  return !has_initial_state || has_initial_state.data[n * has_initial_state.stride];
}

// The parent of token t in a verify window; -1 is the committed state.
inline int64_t parent_of(const IndexView<2>& parents, int64_t n, int64_t t) {
  if (!parents) return t - 1;
  const int64_t parent = index_at(parents, n * parents.stride[0] + t * parents.stride[1]);
  return parent >= 0 && parent < t ? parent : -1;
}

// The i-th accepted row of a window, or -1 when the path ends.
inline int64_t accepted_row(const AcceptedShape& window, int64_t n, int64_t i) {
  if (!window.path) return i;
  const int64_t row = index_at(window.path, n * window.path.stride[0] + i * window.path.stride[1]);
  return row >= 0 && row < window.tokens ? row : -1;
}
inline int64_t accepted_count(const AcceptedShape& window, int64_t n) {
  return max64(0, min64(window.tokens, index_at(window.accepted, n * window.accepted.stride[0])));
}

template <class T>
inline const T* pointer_like(const void* data) {
  return static_cast<const T*>(data);
}
template <class T>
inline T* pointer_like(void* data) {
  return static_cast<T*>(data);
}

// f(data) with the view's data as a pointer to its element type.
template <class ViewType, class F>
inline void with_type(const ViewType& view, F&& f) {
  switch (view.dtype) {
    case DType::f32: return f(pointer_like<float>(view.data));
    case DType::bf16: return f(pointer_like<bf16>(view.data));
    case DType::f16: return f(pointer_like<f16>(view.data));
  }
}
// n elements from `offset` on, `stride` apart, widened exactly.
template <class T>
inline void widen_from(const T* x, int64_t stride, int64_t n, float* out) {
  if (stride == 1) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = to_f32(x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = to_f32(x[i * stride]);
  }
}
template <int rank>
inline void widen(const View<rank>& view, int64_t offset, int64_t stride, int64_t n, float* out) {
  with_type(view, [&](auto* x) { widen_from(x + offset, stride, n, out); });
}

// n floats rounded to the view's dtype.
template <class T>
inline void narrow_to(T* y, int64_t stride, int64_t n, const float* x) {
  if (stride == 1) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = from_f32<T>(x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) y[i * stride] = from_f32<T>(x[i]);
  }
}
template <int rank>
inline void narrow(const OutView<rank>& view, int64_t offset, int64_t stride, int64_t n, const float* x) {
  with_type(view, [&](auto* y) { narrow_to(y + offset, stride, n, x); });
}
